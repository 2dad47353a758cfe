package maintain

import (
	"context"
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
		for name, want := range map[string]int{"rotate": c.rounds, "rotate_later": c.rounds, "rotate_messages": c.rounds, "resurvey": c.rounds, "tidy": c.tidy} {
			if made[name] != want {
				t.Errorf("%s: %d calls of %s in 40 turns, want %d", c.name, made[name], name, want)
			}
		}
	}
}
