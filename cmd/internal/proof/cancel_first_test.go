package proof

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTheFirstCancellationByFilterIsSeenByEveryClaim: a claim looks at cancellations only where their file has a page. However often the file
// becomes empty again, by VACUUM, VACUUM FULL or TRUNCATE, or was only written by a transaction that has rolled back, no claim that began after the
// commit of a cancellation returns a job that it means, and others get every job that none means.
func TestTheFirstCancellationByFilterIsSeenByEveryClaim(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	var mu sync.Mutex
	cancelled := map[int64]bool{} // jobs whose cancellation is committed
	live := map[int64]int{}       // jobs that were claimed, and how often
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	for range cap(ended) {
		claimer := connect(t, url)
		worker := startWorker(t, claimer, "q")
		go func() {
			for ctx.Err() == nil {
				mu.Lock()
				before := maps.Clone(cancelled)
				mu.Unlock()
				got, err := claim(context.WithoutCancel(ctx), claimer, worker, []string{"q"}, []int32{5})
				if err != nil {
					ended <- err
					return
				}
				mu.Lock()
				for _, a := range got {
					live[a.ID]++
					if before[a.ID] {
						err = errors.Join(err, fmt.Errorf("a claim that began after the cancellation of job %d had been committed returned it", a.ID))
					}
				}
				mu.Unlock()
				if err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	var kept []int64
	empty := []string{`VACUUM weir.cancellation_where`, `TRUNCATE weir.cancellation_where`, `VACUUM FULL weir.cancellation_where`}
	for round := range 30 {
		drop, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// The jobs are committed together with their cancellation, so that none may be claimed.
		ids := column[int64](t, drop, `SELECT weir.enqueue('q', 'drop', priority => 1 + n % 4) FROM generate_series(1, 40) n`)
		exec(t, drop, `SELECT weir.cancel_where('q', kinds => ARRAY['drop'])`)
		if round%4 == 3 {
			err = drop.Rollback(t.Context())
		} else {
			mu.Lock() // no claim begins between the commit and its note
			if err = drop.Commit(t.Context()); err == nil {
				for _, id := range ids {
					cancelled[id] = true
				}
			}
			mu.Unlock()
		}
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, column[int64](t, conn, `SELECT weir.enqueue('q', 'keep', priority => 1 + n % 4) FROM generate_series(1, 40) n`)...)
		until(t, "all jobs are claimed or ended", func() bool {
			select {
			case err := <-ended:
				t.Fatalf("a claimer has ended: %v", err)
			default:
			}
			mu.Lock()
			defer mu.Unlock()
			for _, id := range kept {
				if live[id] == 0 {
					return false
				}
			}
			return value[int](t, conn, `SELECT count(*) FROM weir.result r, unnest(r.ids) i(id) WHERE r.outcome = 'cancelled'`) == len(cancelled)
		})
		exec(t, conn, `DELETE FROM weir.cancellation_where`)
		exec(t, conn, empty[round%len(empty)], pgx.QueryExecModeSimpleProtocol)
	}
	stop()
	for range cap(ended) {
		if err := pgtest.Receive(t, ended, "a claimer has ended"); err != nil {
			t.Error(err)
		}
	}
	for id, n := range live {
		if n != 1 || cancelled[id] {
			t.Errorf("job %d was claimed %d times; cancelled: %t", id, n, cancelled[id])
		}
	}
}
