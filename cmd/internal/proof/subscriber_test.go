package proof

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestASubscriberStopsNobody: an open transaction of a role that may subscribe prevents neither ticks nor the reclaiming of segments.
func TestASubscriberStopsNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	subscriber, hub := connect(t, url), connect(t, url)
	exec(t, hub, `SELECT weir.publish('c', 'one')`)
	exec(t, hub, `SELECT * FROM weir._await_tick(1)`)
	exec(t, subscriber, `SET ROLE weir_subscribe; BEGIN`)
	for sql, code := range map[string]string{
		`SELECT * FROM weir.ticks(1)`: "", `SELECT * FROM weir.read(2)`: "", `SELECT weir.newest_tick()`: "",
		`SELECT * FROM weir._await_tick(1)`: "42501", `SELECT weir._cut()`: "42501", `SELECT weir.rebase_messages()`: "42501", `SELECT weir._rotate_messages()`: "42501",
		`SELECT weir._reclaim_messages(1, '0')`: "42501", `LOCK TABLE weir.message`: "42501",
	} {
		exec(t, subscriber, `SAVEPOINT before`)
		if _, err := subscriber.Exec(t.Context(), sql); sqlstate(err) != code {
			t.Errorf("%s: %v, want SQLSTATE %q", sql, err, code)
		}
		if code != "" {
			exec(t, subscriber, `ROLLBACK TO before`)
		}
		held := column[string](t, hub, `SELECT relation::regclass || ' ' || mode FROM pg_locks WHERE pid = $1 AND locktype = 'relation' AND granted
			AND relation::regclass::text ~ '^weir\.(message|tick)_[1-4]$'`, subscriber.PgConn().PID())
		if len(held) > 0 {
			t.Errorf("%s: the transaction holds %v", sql, held)
		}
	}
	exec(t, hub, `SET lock_timeout = '10s'`)
	exec(t, hub, `SELECT weir.publish('c', 'two')`)
	if n := value[int](t, hub, `SELECT cardinality(seqs) FROM weir._await_tick(2)`); n != 1 {
		t.Errorf("%d ticks were cut, want 1", n)
	}
	exec(t, hub, `SELECT weir._rotate_messages()`)
	exec(t, subscriber, `ROLLBACK`)
}

// TestWhatWasReadIsWhole: a reader's cursor stays complete even if it fetches the rest after the segment was reclaimed, and does not delay the
// reclaiming.
func TestWhatWasReadIsWhole(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	reader, conn := connect(t, url), connect(t, url)
	exec(t, conn, `SELECT weir.set('message_retention', '0 s')`)
	at := newest(t, conn)
	exec(t, conn, `SELECT weir.publish('c', string_agg(md5(n || ' ' || i), '')) FROM generate_series(1, 3) n, generate_series(1, 1000) i GROUP BY n`)
	seqs, _ := nextTicks(t, conn, at)
	exec(t, reader, `BEGIN`)
	exec(t, reader, fmt.Sprintf(`DECLARE message CURSOR FOR SELECT length(payload) FROM weir.read(%d)`, seqs[0]))
	got := column[int](t, reader, `FETCH 1 FROM message`)
	until(t, "the segment is reclaimed", func() bool {
		did := value[string](t, conn, `SELECT coalesce(weir._rotate_messages(), '')`)
		return did == "reclaimed message 1"
	})
	if got = append(got, column[int](t, reader, `FETCH ALL FROM message`)...); !slices.Equal(got, []int{32000, 32000, 32000}) {
		t.Errorf("read %v", got)
	}
	exec(t, reader, `COMMIT`)
}

// TestWhatWasLookedAtIsWhole: a cursor over a list of jobs returns complete args even if the rest is fetched after the segment was reclaimed.
func TestWhatWasLookedAtIsWhole(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	reader, conn := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	exec(t, conn, `SELECT weir.enqueue('q', 'k', jsonb_build_object('k', (SELECT string_agg(md5(n || ' ' || i), '') FROM generate_series(1, 1000) i))) FROM generate_series(1, 3) n`)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 3))
	exec(t, reader, `BEGIN`)
	exec(t, reader, `DECLARE job CURSOR FOR SELECT length(args->>'k') FROM weir.jobs('completed', 'q')`)
	got := column[int](t, reader, `FETCH 1 FROM job`)
	openNext(t, conn, worker)
	rotateUntil(t, conn, "reclaimed job 1")
	if got = append(got, column[int](t, reader, `FETCH ALL FROM job`)...); !slices.Equal(got, []int{32000, 32000, 32000}) {
		t.Errorf("the sizes of the args are %v", got)
	}
	exec(t, reader, `COMMIT`)
}
