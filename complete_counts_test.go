package weir_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// TestCountsArePartOfTheEndThatCompletesAJob: they are added in the row that counts the end, once however often the handler is run; too long names and jobs without a flow are refused.
func TestCountsArePartOfTheEndThatCompletesAJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	refusals := make(chan error, 2)
	stop := r.work(func(ctx context.Context, job *weir.Job[number]) error {
		complete := func(counts ...weir.Count) error {
			return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return job.CompleteTx(ctx, tx, counts...) })
		}
		if job.Args.N < 2 {
			refusals <- complete(weir.Count{Counter: strings.Repeat("x", 100+job.Args.N), N: 1})
			return complete()
		}
		return complete(weir.Count{Counter: "bytes", N: 40}, weir.Count{Counter: "bytes", N: 2}, weir.Count{Counter: "pages", N: 1})
	}, nil)
	if _, err := r.client.Enqueue(t.Context(), number{0}, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-refusals; err == nil || !strings.Contains(err.Error(), "member of none") {
		t.Errorf("got %v, want that counters belong to a flow", err)
	}
	flow, err := r.client.Flow(t.Context(), weir.Flow{Name: "count"}, weir.NewJob{Args: number{1}}, weir.NewJob{Args: number{2}}, weir.NewJob{Args: number{3}})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-refusals; err == nil || !strings.Contains(err.Error(), "1 to 100 characters, got 101") {
		t.Errorf("got %v, want that the name is too long", err)
	}
	eventually(t, func() error {
		info, err := r.client.FlowInfo(t.Context(), flow)
		if err == nil && (info.State != weir.FlowSucceeded || info.Counters["bytes"] != 84 || info.Counters["pages"] != 2 || len(info.Counters) != 2) {
			err = fmt.Errorf("%+v", info)
		}
		return err
	})
	var rows int
	if err := r.pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.arrival WHERE flow = $1 AND completed > 0`, flow).Scan(&rows); err != nil || rows != 3 {
		t.Errorf("%d rows count three ends (%v)", rows, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
