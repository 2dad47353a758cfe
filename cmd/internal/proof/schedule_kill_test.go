package proof

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/maintain"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/schema"
)

// TestEachDueTimeHasOneJobHoweverManyMaintainersAreKilled: hundreds of schedules (10,000 with -long) catch up with an hour, and others are due every
// second meanwhile, while maintainers, in Go and in plain SQL, are killed all the time, the server crashes, and a fleet declares its schedules again
// and again, in turns of two versions. Each due time has exactly one job. (Peers fire from a leader's memory, and lose what was due as it changed.)
func TestEachDueTimeHasOneJobHoweverManyMaintainersAreKilled(t *testing.T) {
	t.Parallel()
	schedules, crashes, span := 300, 2, 5*time.Second
	if *longFlag > 0 {
		schedules, crashes, span = 10_000, 5, max(*longFlag, 10*time.Second)
	}
	server := pgtest.Server(t, nil)
	url := server.URL("postgres")
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(newSeed(t), 0))
	// From every second, for a few, to once an hour.
	exec(t, conn, `SELECT weir.set_schedule('slow ' || i, CASE WHEN i % 100 = 0 THEN '*/20 * * * * *' WHEN i % 3 = 0 THEN 'every 7 minutes' WHEN i % 3 = 1 THEN i % 60 || ' * * * *'
		ELSE i % 7 || '/13 * * * *' END, 'q', 'k', time_zone => CASE WHEN i % 2 = 0 THEN 'Europe/Berlin' ELSE 'UTC' END, missed => 'all') FROM generate_series(1, $1) i`, schedules)
	exec(t, conn, `UPDATE weir.schedule SET generation = nextval('weir.schedule_generation'), first_due = weir._due_after(fields, time_zone, clock_timestamp() - interval '1 hour')`)
	exec(t, conn, `SELECT weir._mark_due(name, generation, first_due, first_due) FROM weir.schedule`)
	exec(t, conn, `SELECT weir.set_schedule('fast ' || i, '* * * * * *', 'q', 'k', missed => 'all') FROM generate_series(1, 20) i`)
	first := map[string]time.Time{}
	for _, s := range schedulesOf(t, conn) {
		first[s.name] = s.next
	}
	until := time.Now().Add(span)
	_ = conn.Close(t.Context())

	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var kills, declared atomic.Int64
	pause := func(most time.Duration) bool { return sleep.For(ctx, time.Duration(1+rand.Int64N(int64(most)))) }
	// again calls f with a new connection, until it fails, over and over.
	again := func(name string, f func(ctx context.Context, conn *pgx.Conn) error) {
		all.Go(func() { // ends with ctx
			for pause(20 * time.Millisecond) {
				config, err := pgx.ParseConfig(url)
				if err != nil {
					t.Error(err)
					return
				}
				config.RuntimeParams["application_name"] = name
				conn, err := pgx.ConnectConfig(ctx, config)
				if err != nil {
					continue
				}
				for err == nil && ctx.Err() == nil {
					err = f(ctx, conn)
				}
				_ = conn.Close(context.Background())
			}
		})
	}
	for range 2 {
		again("maintainer", func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `CALL weir.chores()`)
			pause(20 * time.Millisecond)
			return err
		})
		all.Go(func() { // a Go process, which is killed and started again; ends with ctx
			for ctx.Err() == nil {
				life, end := context.WithTimeout(ctx, time.Duration(100+rand.IntN(1500))*time.Millisecond)
				runMaintainer(life, t, url)
				end()
			}
		})
	}
	again("maintainer", func(ctx context.Context, conn *pgx.Conn) error { // its answers are lost: it closes the connection in the midst of a call
		short, end := context.WithTimeout(ctx, time.Duration(rand.IntN(30))*time.Millisecond)
		defer end()
		_, err := conn.Exec(short, `SELECT weir._promote(200)`)
		return err
	})
	again("fleet", func(ctx context.Context, conn *pgx.Conn) error {
		n := declared.Add(1)
		_, err := conn.Exec(ctx, `SELECT weir.set_schedule(s.name, s.schedule, s.queue, s.kind, args => jsonb_build_object('version', $1::int), time_zone => s.time_zone, missed => s.missed)
			FROM weir.schedules(max_rows => 10000) s WHERE hashtext(s.name || $2::text) % 50 = 0`, n%2, n)
		pause(50 * time.Millisecond)
		return err
	})
	again("killer", func(ctx context.Context, conn *pgx.Conn) error {
		var n int64
		err := conn.QueryRow(ctx, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name IN ('maintainer', 'fleet') AND random() < 0.3`).Scan(&n)
		kills.Add(n)
		pause(100 * time.Millisecond)
		return err
	})
	for range crashes {
		if !sleep.For(ctx, time.Duration(1000+rng.IntN(1500))*time.Millisecond) {
			break
		}
		if err := errors.Join(server.Kill(), server.Restart(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Until(until); d > 0 {
		sleep.For(ctx, d)
	}
	pgtest.Until(t, "at least 20 backends are killed", func() bool { return kills.Load() >= 20 })
	stop()
	all.Wait()

	conn = connect(t, url)
	now := value[time.Time](t, conn, `SELECT date_trunc('second', now())`)
	pgtest.Until(t, "the rest is fired", func() bool {
		exec(t, conn, `SELECT weir._promote(5000)`)
		return value[bool](t, conn, `SELECT min(next_at) > $1 FROM weir.schedules(max_rows => 10000)`, now)
	})
	rows, err := conn.Query(t.Context(), `SELECT meta->>'schedule', array_agg((meta->>'due')::timestamptz ORDER BY meta->>'due') FROM weir.job GROUP BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	var name string
	var due []time.Time
	fired := map[string][]time.Time{}
	if _, err := pgx.ForEachRow(rows, []any{&name, &due}, func() error { fired[name] = slices.Clone(due); return nil }); err != nil {
		t.Fatal(err)
	}
	total, wrong := 0, 0
	for _, s := range schedulesOf(t, conn) {
		want := []time.Time{first[s.name]}
		want = append(want, column[time.Time](t, conn, `SELECT n FROM weir.next_times($1, $2, $3, $5) n WHERE n < $4`, s.schedule, s.zone, first[s.name], s.next, len(fired[s.name])+1)...)
		total += len(want)
		if !slices.EqualFunc(fired[s.name], want, time.Time.Equal) {
			if wrong++; wrong <= 5 {
				t.Errorf("%s (%s) fired %v, want %v", s.name, s.schedule, fired[s.name], want)
			}
		}
	}
	t.Logf("%d schedules, %d due times, %d backends killed, %d crashes of the server, declared %d times", len(first), total, kills.Load(), crashes, declared.Load())
	if wrong > 0 || len(fired) != schedules+20 || kills.Load() < 10 {
		t.Errorf("%d of %d schedules fired wrongly", wrong, len(fired))
	}
}

type listedSchedule struct {
	name, schedule, zone string
	next                 time.Time
}

func schedulesOf(t *testing.T, conn *pgx.Conn) (all []listedSchedule) {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT name, schedule, time_zone, next_at FROM weir.schedules(max_rows => 10000)`)
	if err != nil {
		t.Fatal(err)
	}
	var s listedSchedule
	if _, err := pgx.ForEachRow(rows, []any{&s.name, &s.schedule, &s.zone, &s.next}, func() error { all = append(all, s); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// runMaintainer maintains until ctx ends.
func runMaintainer(ctx context.Context, t *testing.T, url string) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Error(err)
		return
	}
	config.ConnConfig.RuntimeParams["application_name"] = "maintainer"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return // it ended at once
	}
	defer pool.Close()
	log := slog.New(slog.DiscardHandler)
	maintain.New(store.New(pool, 1), log, outage.New(log)).Run(ctx)
}
