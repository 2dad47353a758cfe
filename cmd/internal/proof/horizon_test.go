package proof

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestNothingIsDeadUnderAPinnedHorizon: while a long transaction keeps VACUUM from removing anything, 125,000 jobs (1,000,000 with -long) leave no
// dead tuple, their space is reclaimed, and claims do not become slower; so do the jobs of 60 keys, of each of which 20 may run.
func TestNothingIsDeadUnderAPinnedHorizon(t *testing.T) {
	pgtest.Alone(t, "it compares the times of claims")
	for name, pin := range map[string][]string{
		"snapshot": {`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`, `SELECT count(*) FROM pg_class`},
		"xid":      {`BEGIN`, `SELECT pg_current_xact_id()`},
	} {
		t.Run(name, func(t *testing.T) { pinned(t, pin, false) })
		t.Run(name+", with keys", func(t *testing.T) { pinned(t, pin, true) })
	}
}

func pinned(t *testing.T, pin []string, keys bool) {
	const batch = 960
	total, retained, bound := 125_000, int64(4<<20), int64(20<<20)
	if *longFlag > 0 {
		total, retained, bound = 1_000_000, 32<<20, 64<<20
	}
	atOnce := total / 100
	url := pgtest.Database(t)
	conn, producer, holder := connect(t, url), connect(t, url), connect(t, url)
	exec(t, conn, `SELECT weir.set('completed_retention', '0 s')`)
	exec(t, conn, fmt.Sprintf(`SELECT weir.set('retention_bytes', '%d')`, retained))
	enqueue := `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[$1::int]), array_fill('noop'::text, ARRAY[$1::int]), array_fill('{"n": 1}'::jsonb, ARRAY[$1::int]))`
	if keys {
		enqueue = `SELECT weir.enqueue_many(array_agg('q'::text), array_agg('noop'::text), array_agg('{"n": 1}'::jsonb), key => array_agg('key ' || i % 60)) FROM generate_series(1, $1::int) i`
		exec(t, conn, `SELECT weir.set_limit('q', running => 20, per_key => true)`)
	}
	worker := startWorker(t, conn, "q")
	for _, sql := range pin {
		exec(t, holder, sql)
	}

	produced := make(chan error, 1)
	room := make(chan struct{}, 4) // limits the backlog, which would otherwise fill the log
	go func() {                    // ends with its jobs or the connection
		for range total / atOnce {
			room <- struct{}{}
			if _, err := producer.Exec(context.Background(), enqueue, atOnce); err != nil {
				produced <- err
				return
			}
		}
		produced <- nil
	}()

	var claims []time.Duration
	done, size, largest, reclaimed, steps := 0, int64(0), int64(0), 0, 0
	begin := time.Now()
	for done < total {
		before := time.Now()
		ids := pinnedStep(t, conn, worker, batch)
		if ids == batch {
			claims = append(claims, time.Since(before))
		}
		if done/atOnce < (done+ids)/atOnce {
			<-room
		}
		steps++
		if done += ids; ids == 0 || steps%10 == 0 {
			if did := value[string](t, conn, `SELECT coalesce(weir._rotate(), '')`); len(did) > 0 && did[0] == 'r' {
				reclaimed++
			}
			size = jobBytes(t, conn)
			largest = max(largest, size)
		}
		if time.Since(begin) > 5*patience {
			t.Fatalf("%d of %d jobs done after %v", done, total, time.Since(begin))
		}
	}
	if err := pgtest.Receive(t, produced, "the producer has ended"); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	// All jobs are done: the segments are reclaimed one by one, and little is left.
	until(t, "the space of finished jobs is reclaimed", func() bool {
		value[string](t, conn, `SELECT coalesce(weir._rotate(), '')`)
		size = jobBytes(t, conn)
		return size < 1<<20
	})

	if n := len(claims) / 10; n > 0 {
		first, last := median(claims[:n]), median(claims[len(claims)-n:])
		t.Logf("%d jobs in %v; claim and complete of %d: %v at the beginning, %v at the end; log at most %d MB, %d kB at the end, %d times reclaimed",
			total, took.Round(time.Millisecond), batch, first, last, largest>>20, size>>10, reclaimed)
		if last > 5*first {
			t.Errorf("claims became slower: %v at the beginning, %v at the end", first, last)
		}
	}
	if largest > bound {
		t.Errorf("the log grew to %d MB, want at most %d", largest>>20, bound>>20)
	}
	if reclaimed == 0 {
		t.Error("no segment was reclaimed in the meantime")
	}
	var state string
	if err := conn.QueryRow(t.Context(), `SELECT state FROM pg_stat_activity WHERE pid = $1`, holder.PgConn().PID()).Scan(&state); err != nil || state != "idle in transaction" {
		t.Errorf("the horizon is no longer pinned: %s %v", state, err)
	}
	for _, c := range []*pgx.Conn{conn, producer} { // a session reports its statistics when it ends
		_ = c.Close(t.Context())
	}
	noneDead(t, url, total)
	exec(t, holder, `COMMIT`)
}

// pinnedStep claims a batch, completes it, and returns its number of jobs.
func pinnedStep(t *testing.T, conn *pgx.Conn, worker int32, batch int32) int {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT lane, seq, id FROM weir._claim($1, ARRAY['q'], ARRAY[$2::int]) WHERE id IS NOT NULL`, worker, batch)
	if err != nil {
		t.Fatal(err)
	}
	var lane int64
	var seq, id int64
	var ids []int64
	if _, err := pgx.ForEachRow(rows, []any{&lane, &seq, &id}, func() error { ids = append(ids, id); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(ids) > 0 {
		exec(t, conn, `SELECT weir._record($1, ARRAY[$2::bigint], ARRAY[$3::bigint], ARRAY[$4::int], $5)`, worker, lane, seq, len(ids), ids)
	}
	return len(ids)
}

func jobBytes(t *testing.T, q querier) int64 {
	t.Helper()
	return value[int64](t, q, `SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
		WHERE relnamespace = 'weir'::regnamespace AND relkind = 'r' AND relname ~ '^(job|batch|result|turn)_'`)
}

func median(all []time.Duration) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// noneDead fails the test if a table of Weir has a dead tuple. It first waits until the statistics include all inserts.
func noneDead(t *testing.T, url string, inserted int) {
	t.Helper()
	conn := connect(t, url)
	until(t, "the statistics are current", func() bool {
		return value[int64](t, conn, `SELECT sum(n_tup_ins)::bigint FROM pg_stat_all_tables WHERE schemaname = 'weir' AND relname LIKE 'job\_%'`) >= int64(inserted)
	})
	rows, err := conn.Query(t.Context(), `SELECT relname::text || ' has ' || n_dead_tup || ' dead tuples, ' || n_tup_upd || ' updates, ' || n_tup_del || ' deletes'
		FROM pg_stat_all_tables WHERE schemaname = 'weir'
		AND n_dead_tup > CASE relname WHEN 'setting' THEN 2 ELSE 0 END -- the two updates that an operator asked for`)
	if err != nil {
		t.Fatal(err)
	}
	var dead string
	if _, err := pgx.ForEachRow(rows, []any{&dead}, func() error { t.Error(dead); return nil }); err != nil {
		t.Fatal(err)
	}
}
