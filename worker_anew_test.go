package weir_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAWorkerWhoseDatabaseIsAnotherOneNowBeginsAnew: it was dropped and made anew under its name, or has swapped names with another one. A worker that connects to the new one does not
// take itself for whoever began there, whose jobs it would put back.
func TestAWorkerWhoseDatabaseIsAnotherOneNowBeginsAnew(t *testing.T) {
	t.Parallel()
	before, now := newRig(t), newRig(t)
	name := func(r *rig) string { return r.pool.Config().ConnConfig.Database }
	var at atomic.Value // the database to which the name leads
	at.Store(name(before))
	config, err := pgxpool.ParseConfig(before.url)
	if err != nil {
		t.Fatal(err)
	}
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.Database = at.Load().(string)
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	moved := &rig{t: t, url: before.url, pool: pool, client: weir.NewClient(pool)}
	log := &pgtest.Log{}
	started := make(chan int, 4)
	moved.work(func(context.Context, *weir.Job[number]) error { started <- 2; return nil }, func(c *weir.WorkerConfig) { c.Logger = log.Logger() })
	release := make(chan struct{})
	now.work(func(ctx context.Context, _ *weir.Job[number]) error {
		started <- 1
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}, nil)
	moved.awaitAttendance(1)
	now.awaitAttendance(1)
	id := now.enqueue(1, nil)
	receive(t, started, "the job starts")

	at.Store(name(now))
	if _, err := before.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "the worker has begun anew", func() bool { return strings.Count(log.String(), "worker started") == 2 })
	close(release)
	if info := now.await(id, weir.StateCompleted); info.Attempt != 1 || len(started) > 0 {
		t.Errorf("the job was run again: %+v", info)
	}
}
