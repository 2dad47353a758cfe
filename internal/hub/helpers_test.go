package hub

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/pgtest"
)

// run runs a hub until the test ends, or until end is called, which returns when Run has.
func run(t testing.TB, c Config) (h *Hub, end func()) {
	t.Helper()
	h = New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); h.Run(ctx) }()
	end = func() { cancel(); <-done }
	t.Cleanup(end)
	return h, end
}

func texts(events []Event) (all []string) {
	for _, e := range events {
		if e.Message == nil {
			all = append(all, fmt.Sprintf("gap %s %s %s", e.Gap.Reason, e.Gap.From, e.Gap.To))
		} else {
			all = append(all, fmt.Sprintf("%s %s=%s", e.Message.Position, e.Message.Channel, e.Message.Payload))
		}
	}
	return all
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	pgtest.Until(t, what, holds)
}

// scan returns the single value of a query.
func scan[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// truncate reclaims the currently active segment.
func truncate(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	until(t, "a segment is reclaimed", func() bool {
		return strings.HasPrefix(scan[string](t, pool, `SELECT coalesce(weir._rotate_messages(), '')`), "reclaimed")
	})
}

// traffic publishes a few messages at a time on three channels that begin with prefix, from several sessions, until stop, which waits for them to end.
// Each time takes one of turns; with none (nil), nothing slows it.
func traffic(t *testing.T, pool *pgxpool.Pool, publishers int, prefix string, turns <-chan struct{}) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for n := range publishers {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if turns != nil {
					select {
					case <-turns:
					case <-ctx.Done():
						return
					}
				}
				_, err := pool.Exec(t.Context(), `SELECT weir.publish_many(array_agg($3::text || j % 3), array_agg($1 || '-' || j)) FROM generate_series(1, $2::int) j`, fmt.Sprintf("%d-%d", n, i), 1+i%7, prefix)
				if err != nil {
					t.Errorf("publish: %v", err)
					return
				}
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}
