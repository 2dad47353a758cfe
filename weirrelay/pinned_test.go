package weirrelay_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
)

// TestARelayPassesOnUnderAPinnedHorizon: beside a transaction that keeps VACUUM from removing anything, it passes everything on; it leaves nothing dead, and keeps no
// transaction open itself. What it has recorded is compacted meanwhile to the newest row of each relay.
func TestARelayPassesOnUnderAPinnedHorizon(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool, operator := pgtest.Pool(t, url), pgtest.Pool(t, url)
	pin, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pin.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // the test ends
	for _, sql := range []string{`BEGIN ISOLATION LEVEL REPEATABLE READ`, `SELECT pg_current_xact_id(), (SELECT count(*) FROM pg_class)`} {
		if _, err := pin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}

	target := &refusing{}
	c := weirrelay.Config{Name: "r", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c"}}, Observe: func(p weirrelay.Progress) {
		if p.Gap != nil {
			t.Errorf("there is a gap: %+v", p.Gap)
		}
	}}
	var want []string
	publish := func(n int) {
		t.Helper()
		for range n {
			want = append(want, fmt.Sprint(len(want)))
			exec(t, operator, `SELECT weir.publish('c', $1), weir.publish('others', 'x')`, want[len(want)-1])
		}
		pgtest.Until(t, "all have arrived", func() bool { return target.has(want[len(want)-1]) })
	}
	const rounds, each = 4, 100
	for range rounds {
		stop := run(t, c)
		publish(each)
		transactionsEnd(t, operator, pin)
		stop() // records how far it has come
	}

	// The positions of many relays, each of which is recorded again and again, and which are compacted under the one that runs.
	stop := run(t, c)
	publish(each)
	exec(t, operator, `SELECT weir._relay_reached('other ' || i % 7, i::text, i, NULL, repeat('x', 500)) FROM generate_series(1, 7000) i`)
	var inserted int64
	pgtest.Until(t, "the positions are compacted", func() bool {
		inserted = value[int64](t, operator, `SELECT last_value FROM weir.relay_no`)
		return value[string](t, operator, `SELECT coalesce(weir._compact_relays(), '')`) == "compacted relays"
	})
	if got := value[string](t, operator, `SELECT string_agg(position, ' ' ORDER BY position) FROM weir.relay WHERE relay LIKE 'other%'`); got != "6994 6995 6996 6997 6998 6999 7000" {
		t.Errorf("what is left of the others is %s", got)
	}
	if n := value[int](t, operator, `SELECT count(DISTINCT relay) FROM weir.relay`); n != 8 {
		t.Errorf("%d relays are left, want 8", n)
	}
	publish(each)
	pgtest.Until(t, "nothing waits", func() bool {
		return value[bool](t, operator, `SELECT oldest_waiting IS NULL FROM weir.relays() WHERE relay = 'r'`)
	})
	stop()
	if got := target.all(); got != strings.Join(want, " ") {
		t.Errorf("got %s", got)
	}
	at := weir.Position(value[string](t, operator, `SELECT position FROM weir.relays() WHERE relay = 'r'`))
	if end := value[string](t, operator, `SELECT weir._epoch_of(n) || '.' || n + 1 || '.0' FROM weir.newest_tick() n`); string(at) != end {
		t.Errorf("it has come to %s, and the log to %s", at, end)
	}

	// Sessions report what they did when they end.
	pool.Close()
	operator.Close()
	fresh := pgtest.Pool(t, url)
	pgtest.Until(t, "the statistics are current", func() bool {
		return value[bool](t, fresh, `SELECT n_tup_ins >= $1 FROM pg_stat_all_tables WHERE schemaname = 'weir' AND relname = 'relay'`, inserted)
	})
	// What a stop has cancelled is rolled back, and leaves the row of a tick dead: once for each stop at most, however many messages there are.
	if wrong := value[string](t, fresh, `SELECT coalesce(string_agg(format('%s has %s dead tuples, %s updates and %s deletes', relname, n_dead_tup, n_tup_upd, n_tup_del), '; '), '')
		FROM pg_stat_all_tables WHERE schemaname = 'weir' AND (n_dead_tup > CASE WHEN relname ~ '^tick_' THEN $1 ELSE 0 END OR n_tup_upd > 0 OR n_tup_del > 0)`, rounds+1); wrong != "" {
		t.Error(wrong)
	}
	if _, err := pin.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Errorf("the transaction has not been open all the time: %v", err)
	}
}

// transactionsEnd waits until every transaction has ended that is open now, but for the one that pins.
func transactionsEnd(t *testing.T, operator *pgxpool.Pool, pin *pgx.Conn) {
	t.Helper()
	now := value[time.Time](t, operator, `SELECT clock_timestamp()`)
	pgtest.Until(t, "the relay ends its transactions", func() bool {
		return value[bool](t, operator, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity a
			WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.xact_start <= $1 AND a.pid <> $2)`, now, pin.PgConn().PID())
	})
}
