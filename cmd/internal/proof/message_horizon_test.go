package proof

import (
	"context"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestMessagesLeaveNothingDeadUnderAPinnedHorizon: while a long transaction keeps VACUUM from removing anything, a hundred thousand messages leave
// no dead tuple, their space is reclaimed, and ticks do not become slower.
func TestMessagesLeaveNothingDeadUnderAPinnedHorizon(t *testing.T) {
	pgtest.Alone(t, "it compares the times of ticks")
	for name, pin := range map[string][]string{
		"snapshot": {`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`, `SELECT count(*) FROM pg_class`},
		"xid":      {`BEGIN`, `SELECT pg_current_xact_id()`},
	} {
		t.Run(name, func(t *testing.T) { pinnedMessages(t, pin) })
	}
}

func pinnedMessages(t *testing.T, pin []string) {
	const total, atOnce, bound = 100_000, 200, 24 << 20
	url := pgtest.Database(t)
	conn, publisher, holder := connect(t, url), connect(t, url), connect(t, url)
	exec(t, conn, `SELECT weir.set('message_retention', '0 s')`)
	exec(t, conn, `SELECT weir.set('message_retention_bytes', '12582912')`)
	for _, sql := range pin {
		exec(t, holder, sql)
	}
	size := func() int64 {
		return value[int64](t, conn, `SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
			WHERE relnamespace = 'weir'::regnamespace AND relkind = 'r' AND relname ~ '^(message|tick)_'`)
	}
	var took []time.Duration
	var costs []int64
	largest, reclaimed, heard, at := int64(0), 0, 0, newest(t, conn)
	for sent := 0; sent < total; sent += atOnce {
		exec(t, publisher, `SELECT weir.publish_many(array_fill('c'::text, ARRAY[$1::int]), array_agg(lpad(n::text, 300) ORDER BY n)) FROM generate_series(1, $1::int) n`, atOnce)
		begin := time.Now()
		seqs, counts := nextTicks(t, conn, at)
		took = append(took, time.Since(begin))
		for i, seq := range seqs {
			at, heard = seq, heard+int(counts[i])
			if n := value[int](t, conn, `SELECT count(*) FROM weir.read($1)`, seq); n != int(counts[i]) {
				t.Fatalf("tick %d: read %d messages of %d", seq, n, counts[i])
			}
		}
		if sent%(10*atOnce) == 0 {
			if did := value[string](t, conn, `SELECT coalesce(weir._rotate_messages(), '')`); did != "" && did[0] == 'r' {
				reclaimed++
			}
			largest = max(largest, size())
		}
		if sent == total/20 || sent == total-atOnce {
			exec(t, publisher, `SELECT weir.publish('c', 'x')`)
			cost := buffers(t, conn, `SELECT * FROM weir._await_tick((SELECT weir.newest_tick()))`)
			costs = append(costs, cost)
		}
	}
	seqs, counts := nextTicks(t, conn, at)
	for i := range seqs {
		heard += int(counts[i])
	}
	n := len(took) / 10
	first, last := median(took[:n]), median(took[len(took)-n:])
	t.Logf("%d messages, a tick of %d: %v at the beginning, %v at the end, %v buffers; log at most %d MB, %d times reclaimed", heard, atOnce, first, last, costs, largest>>20, reclaimed)
	if heard != total+2 {
		t.Errorf("read %d messages of %d", heard, total+2)
	}
	if costs[1] > 2*costs[0]+100 || last > 10*first {
		t.Errorf("ticks became slower: %v, then %v; %v buffers", first, last, costs)
	}
	if largest > bound || reclaimed < 2 {
		t.Errorf("the log grew to %d MB, want at most %d; it was reclaimed %d times", largest>>20, bound>>20, reclaimed)
	}
	until(t, "the space of all messages is reclaimed", func() bool {
		value[string](t, conn, `SELECT coalesce(weir._rotate_messages(), '')`)
		return size() < 1<<19
	})
	if state := value[string](t, conn, `SELECT state FROM pg_stat_activity WHERE pid = $1`, holder.PgConn().PID()); state != "idle in transaction" {
		t.Errorf("the horizon is no longer pinned: %s", state)
	}
	_ = publisher.Close(context.Background()) // a session reports its statistics when it ends
	_ = conn.Close(context.Background())
	nothingDead(t, url, total)
	exec(t, holder, `COMMIT`)
}

// nothingDead fails the test if a table of Weir has a dead tuple, except in settings that the test changed.
func nothingDead(t *testing.T, url string, inserted int64) {
	t.Helper()
	conn := connect(t, url)
	until(t, "the statistics are current", func() bool {
		return value[int64](t, conn, `SELECT sum(n_tup_ins)::bigint FROM pg_stat_all_tables WHERE schemaname = 'weir' AND relname ~ '^message_\d'`) >= inserted
	})
	for _, dead := range column[string](t, conn, `SELECT format('%s has %s dead tuples, %s updates, %s deletes', relname, n_dead_tup, n_tup_upd, n_tup_del)
		FROM pg_stat_all_tables WHERE schemaname = 'weir' AND n_dead_tup > CASE relname WHEN 'setting' THEN 2 ELSE 0 END`) {
		t.Error(dead)
	}
}
