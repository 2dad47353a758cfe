package worker

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/maintain"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// TestIdleFleetCostsWhatAFewWorkersCost: a hundred workers with nothing to do look rarely, find a job all the same, and use up transaction ids
// for jobs alone.
func TestIdleFleetCostsWhatAFewWorkersCost(t *testing.T) {
	const fleet, jobs, patience = 100, 10, time.Minute
	url := pgtest.Database(t)
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 40
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	watcher := pgtest.Pool(t, url)
	number := func(sql string) (n int64) {
		t.Helper()
		if err := watcher.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	ran := make(chan struct{}, jobs)
	quiet := slog.New(slog.DiscardHandler)
	for range fleet {
		st, said := store.New(pool, 0), outage.New(quiet)
		w := New(Config{Store: st, Keep: st, Name: "fleet", Queues: map[string]int{"q": 1}, Lease: 30 * time.Second, StopTimeout: time.Second,
			Poll: 3500 * time.Microsecond, Log: quiet, Outage: said, Maintainer: maintain.New(st, quiet, said),
			Handler: func(context.Context, *Task) Result { ran <- struct{}{}; return Result{Outcome: store.Completed} }})
		all.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	// It comes to rest, once all know of each other. Before it did so, a hundred workers made 800 transactions a second.
	const most = 300
	rate := int64(0)
	for until := time.Now().Add(patience); rate == 0 || rate > most; {
		if time.Now().After(until) {
			t.Fatalf("an idle fleet makes %d transactions a second, want at most %d", rate, most)
		}
		const window = 3
		before := number(`SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`)
		<-time.After(window * time.Second) // what is measured is a rate
		rate = (number(`SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`) - before) / window
	}
	t.Logf("an idle fleet of %d makes %d transactions a second", fleet, rate)

	const xids = `SELECT pg_snapshot_xmax(s)::text::bigint + age(pg_snapshot_xmax(s)::xid) FROM pg_current_snapshot() s`
	const beats = `SELECT count(*) FROM weir.heartbeat`
	xidsBefore, beatsBefore := number(xids), number(beats)
	for range jobs {
		if _, err := watcher.Exec(ctx, `SELECT weir.enqueue('q', 'k')`); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ran:
		case <-time.After(patience):
			t.Fatal("a job was not found")
		}
	}
	used := number(xids) - xidsBefore - (number(beats) - beatsBefore)
	t.Logf("%d jobs used up %d transaction ids", jobs, used)
	if used > 6*jobs+20 {
		t.Errorf("%d jobs used up %d transaction ids: those of enqueue, claim and result are %d", jobs, used, 3*jobs)
	}
}
