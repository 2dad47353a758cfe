package worker

import (
	"context"
	"flag"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/maintain"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/schema"
)

var fleetSize = flag.Int("fleet", 100, "how many workers TestIdleFleetCostsWhatAFewWorkersCost starts")

// TestIdleFleetCostsWhatAFewWorkersCost: a hundred idle workers poll rarely, still find a job, and use transaction ids only for jobs and
// for the heartbeats of workers that cannot attend. So do workers from which a limit withholds jobs, and they find out when it has room.
func TestIdleFleetCostsWhatAFewWorkersCost(t *testing.T) {
	pgtest.Alone(t, "a fleet uses all of a small machine")
	for _, attends := range []bool{true, false} {
		t.Run(map[bool]string{true: "attending", false: "by heartbeats"}[attends], func(t *testing.T) { idleFleet(t, *fleetSize, attends, "") })
	}
	t.Run("at a limit", func(t *testing.T) { idleFleet(t, *fleetSize, true, `SELECT weir.set_limit('q', running => 1)`) })
	t.Run("at a rate", func(t *testing.T) { idleFleet(t, *fleetSize, true, `SELECT weir.set_limit('q', rate => 1)`) })
}

func idleFleet(t *testing.T, fleet int, attends bool, limitIt string) {
	const jobs, patience, lease = 10, 2 * time.Minute, 30 * time.Second
	server := pgtest.Server(t, map[string]string{"max_connections": strconv.Itoa(fleet + 60)})
	url := server.URL("postgres")
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
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
	number := func(sql string) (n int64) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	ctx, stop := context.WithCancel(t.Context())
	// At a limit, all jobs are there from the beginning, and an attempt of another worker holds the only slot.
	var end func()
	if limitIt != "" {
		for _, sql := range []string{limitIt, `SELECT weir.enqueue('q', 'k') FROM generate_series(1, 1000)`, `SELECT weir._start('other', ARRAY['q'], '5 minutes')`} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
		}
		var token string
		if err := conn.QueryRow(ctx, `SELECT token FROM weir.take((SELECT max(id) FROM weir.worker)) WHERE event = 'job'`).Scan(&token); err != nil {
			t.Fatal(err)
		}
		end = func() {
			if _, err := conn.Exec(ctx, `SELECT weir.record((SELECT min(id) FROM weir.worker), json_build_array(json_build_object('token', $1::text))::text)`, token); err != nil {
				t.Fatal(err)
			}
		}
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	ran := make(chan struct{}, 1000)
	quiet := slog.New(slog.DiscardHandler)
	for range fleet {
		st, said := store.New(pool, 0), outage.New(quiet)
		keep := st
		if attends {
			own, err := store.OpenOwn(pool)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(own.Close)
			keep = own.Keep
		}
		w := New(Config{Store: st, Keep: keep, Name: "fleet", Queues: map[string]int{"q": 1}, Lease: lease, StopTimeout: time.Second,
			Poll: 3500 * time.Microsecond, Log: quiet, Outage: said, Maintainer: maintain.New(st, quiet, said),
			Handler: func(_ context.Context, _ *Task, r *Result) { ran <- struct{}{}; r.Outcome = store.Completed }})
		all.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	const (
		xids  = `SELECT pg_snapshot_xmax(s)::text::bigint + age(pg_snapshot_xmax(s)::xid) FROM pg_current_snapshot() s`
		beats = `SELECT count(*) FROM weir.last_word`
		made  = `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`
		here  = `SELECT count(*) FROM weir._attending()`
	)
	// The fleet calms down once all workers know of each other. Before that was so, a hundred workers made 800 transactions a second.
	limit := max(200, int64(fleet)/4)
	if !attends {
		limit += int64(fleet) / 2
	}
	rate, used, beaten := int64(0), int64(0), int64(0)
	isThere := false // all workers were, when the measurement began: each start needs transactions, too
	for until := time.Now().Add(patience); rate == 0 || rate > limit || !isThere; {
		if time.Now().After(until) {
			t.Fatalf("an idle fleet makes %d transactions a second, want at most %d", rate, limit)
		}
		const window = 5
		isThere = !attends || number(here) == int64(fleet)
		before, xidsBefore, beatsBefore := number(made), number(xids), number(beats)
		<-time.After(window * time.Second) // measures a rate
		rate, used, beaten = (number(made)-before)/window, number(xids)-xidsBefore, number(beats)-beatsBefore
	}
	t.Logf("an idle fleet of %d makes %d transactions a second, and in 5 s used up %d transaction ids, %d of them for heartbeats", fleet, rate, used, beaten)
	most := int64(5)
	if len(ran) > 0 { // a rate has allowed some meanwhile, each with a claim and a result
		most += 5 * 4
	}
	if attends && used > most {
		t.Errorf("in 5 s it used up %d transaction ids, want at most %d", used, most)
	}
	for len(ran) > 0 {
		<-ran
	}

	xidsBefore, beatsBefore := number(xids), number(beats)
	if end != nil {
		end()
	}
	for range jobs {
		if _, err := conn.Exec(ctx, `SELECT weir.enqueue('q', 'k')`); end == nil && err != nil {
			t.Fatal(err)
		}
		select {
		case <-ran:
		case <-time.After(patience):
			t.Fatal("a job was not found")
		}
	}
	used = number(xids) - xidsBefore - (number(beats) - beatsBefore)
	t.Logf("%d jobs used up %d transaction ids", jobs, used)
	if used > 6*jobs+20 {
		t.Errorf("%d jobs used up %d transaction ids: those of enqueue, claim and result are %d", jobs, used, 3*jobs)
	}
}
