package proof

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestNothingIsDeadWithEveryFeatureInUse: with unique jobs, keys, limits, flows, schedules, retry rules, progress, checkpoints and operations by filter in use under a
// pinned horizon, no row of any table of the schema is updated or deleted, whichever tables there are; and the segments of every log are emptied, even
// if those of jobs have something to do at every turn. Only what an operator changes leaves dead rows behind: settings, limits, weights that are changed,
// and at most three for each cancellation by filter. (Moving jobs does, too: see docs/bulk.md.)
func TestNothingIsDeadWithEveryFeatureInUse(t *testing.T) {
	t.Parallel()
	for name, pin := range map[string]string{
		"snapshot": `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT count(*) FROM pg_class`,
		"xid":      `BEGIN; SELECT pg_current_xact_id()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn, holder := connect(t, url), connect(t, url)
			smallSegments(t, conn)
			for _, sql := range []string{
				`SELECT weir.set('failed_retention', '0 s')`,
				`SELECT weir.set_retry_rule('soon', 'retry', error => 'again', backoff => '5 ms')`,
				`SELECT weir.set_schedule('s' || n, 'every 1 second', 'q', 'tick', missed => 'all') FROM generate_series(1, 5) n`,
				`SELECT weir.set_schedule('keyed', 'every 1 second', 'keys', 'tick', missed => 'all', key => 'key 1')`,
				`SELECT weir.set_limit('q', running => 960)`,
				`SELECT weir.set_limit('keys', running => 3, rate => 500, per => '1 second', per_key => true)`,
				`SELECT weir.set_limit('order', per_key => true, in_order => true)`,
				`SELECT weir.set_weight('keys', 'key ' || n, n + 1) FROM generate_series(1, 10) n`,
			} {
				exec(t, conn, sql)
			}
			f := &featureLoad{t: t, conn: conn, worker: startWorker(t, conn, append(featureQueues, "filler")...)}
			exec(t, holder, pin)
			until(t, "each log has been emptied twice", func() bool {
				f.round()
				return value[bool](t, conn, `SELECT count(*) = 0 FROM unnest('{job,later,failure,report}'::text[]) l(log)
					WHERE (SELECT count(*) FROM weir.segment s WHERE s.log = l.log AND s.event = 'reclaimed') < 2`)
			})
			f.ends()
			if open := value[bool](t, holder, `SELECT true`); !open {
				t.Error("the horizon is not pinned any more")
			}
			_ = conn.Close(context.Background()) // a session reports its statistics when it ends

			watch := connect(t, url)
			allowed := map[string]int64{"setting": 3, "schedule": 6, "cancellation_where": 3 * f.cancels, "key_weight": f.weights}
			var tables []string
			var found []string
			count := func() bool {
				found, tables = nil, nil
				rows, err := watch.Query(t.Context(), `SELECT c.relname::text, s.n_dead_tup, s.n_tup_ins, s.n_tup_upd + s.n_tup_del
					FROM pg_class c JOIN pg_stat_all_tables s ON s.relid = c.oid WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind = 'r'`)
				if err != nil {
					t.Fatal(err)
				}
				var table string
				var dead, inserted, changed int64
				if _, err := pgx.ForEachRow(rows, []any{&table, &dead, &inserted, &changed}, func() error {
					if inserted > 0 {
						tables = append(tables, table)
					}
					if dead > allowed[table] || changed > allowed[table] {
						found = append(found, fmt.Sprintf("%s has %d dead rows, after %d updates and deletes", table, dead, changed))
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				return len(found) == 0 && slices.Contains(tables, "job_1")
			}
			defer func() {
				if len(found) > 0 {
					t.Errorf("%s", strings.Join(found, "; "))
				}
			}()
			until(t, "no table has dead rows, according to the statistics of all sessions", count)
			for _, table := range []string{"job_1", "batch_1", "result_1", "later_1", "failure_1", "report_1", "keyed", "firing", "promotion", "reprieve", "settled", "schedule", "retry_rule", "cancellation_where",
				"turn_1", "turn_2", "turn_3", "turn_4", "ring", "with_keys", "gate", "release_1", "queue_limit", "key_weight", "flow", "fold", "arrival_1", "flow_cut", "edge", "seen_1", "output_1", "operation", "operation_step"} {
				if !slices.Contains(tables, table) {
					t.Errorf("nothing was ever written into %s", table)
				}
			}
			t.Logf("%d rounds, %d cancellations, %d changes of weights, in %d tables", f.rounds, f.cancels, f.weights, len(tables))
		})
	}
}

// featureQueues are where jobs wait: those of keys may have at most 3 of a key running, those of order run in order, and mixed has no limits.
var featureQueues = []string{"q", "r", "keys", "order", "mixed"}

// featureLoad uses all features of the queue, round by round.
type featureLoad struct {
	t                *testing.T
	conn             *pgx.Conn
	worker           int32
	rounds           int
	cancels, weights int64
}

func (f *featureLoad) round() {
	t, conn := f.t, f.conn
	f.rounds++
	exec(t, conn, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[300]), array_fill('k'::text, ARRAY[300]), array_fill(jsonb_build_object('pad', repeat('x', 300)), ARRAY[300]),
		meta => array_fill(jsonb_build_object('round', $1::int), ARRAY[300]))`, f.rounds)
	exec(t, conn, `SELECT count(u) FROM generate_series(1, 40) n CROSS JOIN LATERAL weir.enqueue_unique('q', 'unique', unique_key => 'key ' || n % 10, replace => n % 2 = 0) u`)
	exec(t, conn, `SELECT count(weir.enqueue('q', 'later', jsonb_build_object('pad', repeat('x', 500)), run_at => clock_timestamp() + interval '2 ms')) FROM generate_series(1, 100)`)
	exec(t, conn, `SELECT weir.enqueue_many(array_agg(q), array_agg('k'::text), key => array_agg('key ' || n % 40), priority => array_agg(1 + n % 2),
		meta => array_agg(jsonb_build_object('round', $1::int))) FROM generate_series(1, 60) n, unnest('{keys,order}'::text[]) q`, f.rounds)
	exec(t, conn, `SELECT weir.enqueue_many(array_agg('mixed'::text), array_agg('k'::text), key => array_agg(CASE WHEN n % 3 > 0 THEN 'key ' || $1::int % 100 || '.' || n END)) FROM generate_series(1, 60) n`, f.rounds)
	exec(t, conn, `SELECT count(r) FROM generate_series(1, 5) n CROSS JOIN LATERAL weir._enqueue_request(gen_random_uuid(), '[{"queue": "q", "kind": "k"}]') r`)
	exec(t, conn, `SELECT count(weir.enqueue('keys', 'later', key => 'key ' || n, run_at => clock_timestamp() + interval '2 ms')) FROM generate_series(1, 20) n`)
	exec(t, conn, `SELECT count(u) FROM generate_series(1, 10) n CROSS JOIN LATERAL weir.enqueue_unique('order', 'unique', unique_key => 'key ' || n % 5, key => 'key ' || n) u`)
	flow := value[int64](t, conn, `SELECT weir.flow('f', on_done => '{"queue": "mixed", "kind": "done"}', on_success => '{"queue": "mixed", "kind": "success"}')`)
	exec(t, conn, `SELECT weir.enqueue_many(array_agg('mixed'::text), array_agg('member'::text), key => array_agg(CASE WHEN n % 5 = 0 THEN 'key' END), flow => array_agg($1::bigint)), weir.seal($1) FROM generate_series(1, 60) n`, flow)
	// Within it: tasks that come after each other, and a flow of what is to be done once, found by two at a time.
	exec(t, conn, `SELECT weir.add_tasks($1, '[{"task": "a", "queue": "mixed", "kind": "task"}, {"task": "b", "after": ["a"], "queue": "mixed", "kind": "task"}, {"task": "c", "after": ["b", "a"], "ignore_failed": true, "queue": "mixed", "kind": "task"}]')`, flow)
	inner := value[int64](t, conn, `SELECT weir.flow('inner', on_done => '{"queue": "mixed", "kind": "done"}', parent => $1, fail_fast => $2::int % 3 = 0)`, flow, f.rounds)
	exec(t, conn, `SELECT weir.enqueue_many(array_agg('mixed'::text), array_agg('once'::text), flow => array_agg($1::bigint), once => array_agg((n % 20)::text)), weir.increment($1, 'rounds'), weir.seal($1) FROM generate_series(1, 40) n`, inner)
	if f.rounds%4 == 2 {
		exec(t, conn, `SELECT weir.cancel_flow($1)`, flow)
		f.cancels++
		if f.rounds%8 == 2 { // it runs after all: a cancellation that means these jobs is taken back
			exec(t, conn, `SELECT weir.retry_flow($1)`, flow)
		}
	}
	if f.rounds%8 == 0 {
		exec(t, conn, `SELECT weir.set_weight('keys', 'key 1', 2 + $1::int % 5)`, f.rounds/8)
		f.weights++
	}
	if f.rounds%4 == 0 {
		exec(t, conn, `SELECT weir.cancel_where(meta => jsonb_build_object('round', $1::int))`, f.rounds)
		f.cancels++
	}
	for _, queue := range featureQueues {
		f.work(mustClaim(t, conn, f.worker, queue, 960))
	}
	switch f.rounds % 8 {
	case 2:
		exec(t, conn, `SELECT weir.begin_operation('retry', '{"kinds": ["k"], "priority": 2}')`)
	case 4:
		exec(t, conn, `SELECT weir.retry_where(kinds => '{later}')`)
	case 6:
		exec(t, conn, `SELECT weir.delete_where(kinds => '{k}')`)
	}
	for _, chore := range []string{`_promote()`, `_rotate()`, `_rotate_history()`, `_rotate_later(65536)`, `_tidy()`, `_fold_arrivals()`, `_resurvey()`, `_count_minutes()`, `_step_operations()`, `_rescue()`, `heartbeat($1)`, `_reconcile($1, '{}', '{}', '{}', '{}')`} {
		if strings.Contains(chore, "$1") {
			exec(t, conn, `SELECT weir.`+chore, f.worker)
		} else {
			exec(t, conn, `SELECT weir.`+chore)
		}
	}
}

// work reports progress of some attempts, and ends all of them in different ways.
func (f *featureLoad) work(all []attempt) {
	var reports, ends []map[string]any
	for i, a := range all {
		if a.Dropped != nil {
			ends = append(ends, map[string]any{"token": a.token(), "outcome": "cancelled"})
			continue
		}
		if i%5 == 0 {
			reports = append(reports, map[string]any{"token": a.token(), "percent": i % 100, "message": strings.Repeat("m", 100), "checkpoint": map[string]any{"at": i, "pad": strings.Repeat("x", 200)}})
		}
		end := map[string]any{"token": a.token(), "outcome": "completed"}
		if i%3 == 0 {
			end["output"] = strings.Repeat("o", 100)
		}
		switch {
		case i%7 == 1:
			end["outcome"], end["error"] = "failed", "again"
		case i%7 == 2:
			end["outcome"], end["error"], end["final"] = "failed", strings.Repeat("for good", 40), true
		case i%23 == 3:
			end["outcome"], end["delay"] = "snoozed", 0.001
		}
		ends = append(ends, end)
	}
	f.pass("progress", reports)
	f.pass("record", ends)
}

func (f *featureLoad) pass(call string, entries []map[string]any) {
	f.t.Helper()
	for part := range slices.Chunk(entries, 500) {
		text, err := json.Marshal(part)
		if err != nil {
			f.t.Fatal(err)
		}
		exec(f.t, f.conn, `SELECT weir.`+call+`($1, $2)`, f.worker, string(text))
	}
}

// ends completes what is left, without anything new but what schedules enqueue.
func (f *featureLoad) ends() {
	exec(f.t, f.conn, `SELECT weir.pause_schedule(name) FROM weir.schedules()`)
	until(f.t, "no job is left", func() bool {
		exec(f.t, f.conn, `SELECT weir._promote()`)
		exec(f.t, f.conn, `SELECT weir._fold_arrivals()`)
		for _, queue := range featureQueues {
			mustComplete(f.t, f.conn, f.worker, claimAll(f.t, f.conn, f.worker, queue))
		}
		return value[int64](f.t, f.conn, `SELECT sum(available + running + scheduled)::bigint FROM weir.queues() WHERE name = ANY ($1)`, featureQueues) == 0
	})
}
