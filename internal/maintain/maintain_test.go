package maintain

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

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
		r := rounds{Maintainer: m, passed: choresIdle}
		for range 40 {
			if c.logged {
				m.Poke()
			}
			r.turn(t.Context())
		}
		for name, want := range map[string]int{"rotate": c.rounds, "rotate_history": c.rounds, "rotate_later": c.rounds, "rotate_messages": c.rounds, "resurvey": c.rounds, "tidy": c.tidy} {
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

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) error {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	return err
}
