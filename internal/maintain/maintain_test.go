package maintain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// calls counts the calls of each function.
type calls map[string]int

func (c calls) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if _, call, ok := strings.Cut(data.SQL, "weir._"); ok {
		name, _, _ := strings.Cut(call, "(")
		c[name]++
	}
	return ctx
}

func (calls) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestChoresComeRoundLessOftenWhileNothingIsLogged: of forty turns, all do a round if something was logged before each, and every fourth
// does if nothing was. Every tenth round tidies.
func TestChoresComeRoundLessOftenWhileNothingIsLogged(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	made := calls{}
	config.ConnConfig.Tracer = made
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	log := slog.New(slog.DiscardHandler)
	m := New(store.New(pool, 1), log, outage.New(log))
	for _, c := range []struct {
		name         string
		logged       bool
		rounds, tidy int
	}{{"idle", false, 10, 1}, {"busy", true, 40, 4}} {
		clear(made)
		r := rounds{Maintainer: m, passed: choresIdle, idle: choresIdle}
		for range 40 {
			if c.logged {
				m.Poke()
			}
			r.turn(t.Context())
		}
		for name, want := range map[string]int{"rotate": c.rounds, "rotate_history": c.rounds, "rotate_later": c.rounds, "rotate_messages": c.rounds, "resurvey": c.rounds, "count_minutes": c.rounds, "tidy": c.tidy} {
			if made[name] != want {
				t.Errorf("%s: %d calls of %s in 40 turns, want %d", c.name, made[name], name, want)
			}
		}
	}
}

// TestARescueThatHasBegunIsReported: a maintainer that stops while the server rescues jobs still reports them, since nobody else does.
func TestARescueThatHasBegunIsReported(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	var lost int32
	for _, err := range []error{
		pool.QueryRow(t.Context(), `SELECT weir.start('gone', '{default}')`).Scan(&lost),
		exec(t, pool, `SELECT weir.enqueue('default', 'test')`),
		exec(t, pool, `SELECT weir.take($1, '{default}', '{1}')`, lost),
		exec(t, pool, `SELECT weir._fence($1, 'test')`, lost),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1464158550, $1)`, lost); err != nil { // the worker's ends
		t.Fatal(err)
	}

	log := slog.New(slog.DiscardHandler)
	m := New(store.New(pool, 1), log, outage.New(log))
	var reported []int64
	m.Rescued = func(r store.Rescued) { reported = append(reported, r.Jobs...) }
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		m.rescues(ctx)
	}()
	pgtest.Eventually(t, func() error {
		var waits bool
		err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND NOT l.granted
			AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))`).Scan(&waits)
		if err == nil && !waits {
			err = errors.New("no rescue waits")
		}
		return err
	})
	stop()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Receive(t, ended, "the maintainer has stopped")
	if len(reported) != 1 {
		t.Errorf("reported %v, want the one job", reported)
	}
}

// TestWhoFindsAWorkerLostChecksAgainSoon: while the lease runs of a worker that seems to be lost, the maintainer that has advanced the clock checks again soon,
// without waiting for its turn, until the worker is fenced. Others need not.
func TestWhoFindsAWorkerLostChecksAgainSoon(t *testing.T) {
	t.Parallel()
	const attends, attended = `SELECT weir._note_word(%[1]d, 'attends', 0); `,
		`INSERT INTO weir.attendance (worker, started_at, watched) SELECT %[1]d, pg_postmaster_start_time(), last_value FROM weir.watched; `
	for name, how := range map[string]string{
		"with the server":    attends,
		"without a session":  `UPDATE weir.last_word SET at = at - interval '1 minute' WHERE worker = %[1]d`,
		"from a full server": attends + attended + `DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I CONNECTION LIMIT 0', current_database()); END $$`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.Database(t))
			log := slog.New(slog.DiscardHandler)
			m, other := New(store.New(pool, 1), log, outage.New(log)), New(store.New(pool, 1), log, outage.New(log))
			check := func(m *Maintainer, passed int) (missed bool) {
				t.Helper()
				err := exec(t, pool, `SELECT setval('weir.watched_at', (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1)`, passed)
				if err == nil {
					missed, err = m.rescue(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
				return missed
			}
			ask := func(sql string, to any, args ...any) {
				t.Helper()
				if err := pool.QueryRow(t.Context(), sql, args...).Scan(to); err != nil {
					t.Fatal(err)
				}
			}
			var alive, lost int32
			ask(`SELECT weir._start('alive', '{default}', '5 minutes')`, &alive)
			ask(`SELECT weir._start('lost', '{default}', '6 seconds')`, &lost)
			if check(m, 2000) {
				t.Error("a worker is missed that has just begun")
			}
			if err := exec(t, pool, fmt.Sprintf(how, lost)); err != nil {
				t.Fatal(err)
			}
			fenced, alone := false, false
			for checks := 1; !fenced; checks++ {
				if checks > 40 {
					t.Fatal("the lost worker is never fenced")
				}
				if !check(m, 500) {
					t.Errorf("after check %d, the maintainer waits for its turn", checks)
				}
				ask(`SELECT EXISTS (SELECT FROM weir.worker WHERE id = $1 AND fenced)`, &fenced, lost)
				missed, err := other.rescue(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				alone = alone || !fenced && !missed
			}
			if !alone {
				t.Error("a maintainer that checks just after another goes on as well")
			}
		})
	}
}

// TestTheFewThatAreLeftOfManyNoticeIt: a maintainer that hardly ever has its turn, because so many count as alive, rescues all the same once a worker that it looks at
// seems to be lost; and only then.
func TestTheFewThatAreLeftOfManyNoticeIt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	log := slog.New(slog.DiscardHandler)
	m := New(store.New(pool, 1), log, outage.New(log))
	m.Share(math.MaxInt32)
	check := func() {
		t.Helper()
		err := exec(t, pool, `SELECT setval('weir.watched_at', (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 2000)`) // since then, time counts
		if err == nil && m.hasTurn(t.Context()) {
			_, err = m.rescue(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	is := func(sql string) (yes bool) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), sql).Scan(&yes); err != nil {
			t.Fatal(err)
		}
		return yes
	}
	if err := exec(t, pool, `SELECT weir.heartbeat(weir._start('w', '{default}', '6 seconds'))`); err != nil {
		t.Fatal(err)
	}
	check()
	if is(`SELECT EXISTS (SELECT FROM weir.attendance)`) {
		t.Error("it was not its turn, nobody is lost, and it checks all workers")
	}
	if err := exec(t, pool, `UPDATE weir.last_word SET at = at - interval '1 minute'`); err != nil {
		t.Fatal(err)
	}
	for checks := 1; !is(`SELECT EXISTS (SELECT FROM weir.worker WHERE fenced)`); checks++ {
		if checks > 20 {
			t.Fatal("the lost worker is never fenced")
		}
		check()
	}
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) error {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	return err
}

// TestAMaintainerDoesWhatAnotherHasLeft: operations that have not ended are done by whichever maintainer there is, also by one that was not signalled that they
// began; and a maintainer that is signalled does them at once.
func TestAMaintainerDoesWhatAnotherHasLeft(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	log := slog.New(slog.DiscardHandler)
	begin := func() {
		t.Helper()
		if err := exec(t, pool, `SELECT weir.begin_operation('move', '{"queue": "q"}', to_queue => 'r') FROM (SELECT weir.enqueue('q', 'k') FROM generate_series(1, 50)) k LIMIT 1`); err != nil {
			t.Fatal(err)
		}
	}
	done := func(want int) {
		t.Helper()
		pgtest.Eventually(t, func() error {
			var n int
			err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.operations() WHERE state = 'done'`).Scan(&n)
			if err == nil && n < want {
				err = fmt.Errorf("%d of %d operations are done", n, want)
			}
			return err
		})
	}
	begin()
	if err := exec(t, pool, `SELECT weir._step_operations(10)`); err != nil { // another maintainer, which is gone
		t.Fatal(err)
	}
	m := New(store.New(pool, 1), log, outage.New(log))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		m.operations(ctx)
	}()
	done(1)
	begin()
	m.Begun()
	done(2)
	stop()
	pgtest.Receive(t, ended, "the maintainer has stopped")
}

// TestAChoreOfAnotherVersionSaysToMigrate: the schema may be older than the build.
func TestAChoreOfAnotherVersionSaysToMigrate(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	if err := exec(t, pool, `DROP FUNCTION weir._promote`); err != nil {
		t.Fatal(err)
	}
	var log pgtest.Log
	m := New(store.New(pool, 1), log.Logger(), outage.New(log.Logger()))
	_, _, err := m.promoteDue(t.Context())
	m.done(t.Context(), "promote", "", err)
	if said := log.String(); !strings.Contains(said, "_promote") || !strings.Contains(said, "run `weir migrate up`") {
		t.Errorf("the log says %q", said)
	}
}

// TestJobsBecomeDueInTimeWhereChoresAreRare: a maintainer of a database in which nothing happens does its chores less often, but attends whenever a job is due.
func TestJobsBecomeDueInTimeWhereChoresAreRare(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	log := slog.New(slog.DiscardHandler)
	m := New(store.New(pool, 1), log, outage.New(log))
	m.Rarely(100) // its next look would come after a minute
	for range 100 {
		if !m.attends(time.Minute) {
			t.Fatal("it leaves a job to others, and there may be none")
		}
	}
	var worker int32
	if err := pool.QueryRow(t.Context(), `SELECT weir.start('one', '{default}', '5 min')`).Scan(&worker); err != nil {
		t.Fatal(err)
	}
	if err := exec(t, pool, `SELECT weir.enqueue('default', 'test', run_at => clock_timestamp() + interval '55 s')`); err != nil {
		t.Fatal(err)
	}
	if _, next, err := m.promoteDue(t.Context()); err != nil || next == nil {
		t.Errorf("it does not know of a job that becomes due before its next look: %v, %v", next, err)
	}
	for range 100 {
		if wait := m.looks(); wait > rareAhead {
			t.Fatalf("the next look comes after %s, and the last one looks only %s ahead", wait, rareAhead)
		}
	}
	if err := exec(t, pool, `SELECT weir.enqueue('default', 'test', run_at => clock_timestamp() + interval '2 s')`); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		m.promote(ctx)
	}()
	defer func() {
		stop()
		pgtest.Receive(t, ended, "the maintainer has stopped")
	}()
	pgtest.Until(t, "the job can be taken", func() bool {
		taken := 0
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.take($1, wait => '0 s') WHERE event = 'job'`, worker).Scan(&taken); err != nil {
			t.Fatal(err)
		}
		return taken > 0
	})
}
