package proof

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestEveryFunctionIsDocumentedAndPinned: every function has a comment with its contract, and does not depend on the caller's search_path.
func TestEveryFunctionIsDocumentedAndPinned(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, c := range []struct{ what, sql string }{
		// A procedure can't have settings, because they would forbid it to commit; so it may only call functions, with its caller's rights.
		{"procedure with SECURITY DEFINER", `SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace AND p.prokind = 'p' AND p.prosecdef`},
		// An array type is named like its element type, with an underscore in front, and a call with a single NULL would be a cast to it.
		{"function with the name of an array type", `SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_type t ON t.typnamespace = p.pronamespace AND t.typname = p.proname AND t.typrelid = 0  -- no call is a cast to a row
			WHERE p.pronamespace = 'weir'::regnamespace`},
		{"function without a comment", `SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace
			AND coalesce(obj_description(p.oid, 'pg_proc'), '') = ''`},
		// _key_bits, _once_key, _waits and _waits_later have no settings, because then they could not become part of the expressions of their callers, which pin theirs; only these may call them.
		{"function without a pinned search_path", `SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace
			AND p.prokind <> 'p' AND p.proname NOT IN ('_key_bits', '_once_key', '_waits', '_waits_later', '_means') AND NOT coalesce(p.proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)`},
		// A forced plan has such a high estimated cost that a server with JIT compiles it in each call.
		{"function without SET jit = off, whose statements may be compiled", `SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace
			AND p.prokind <> 'p' AND p.proname NOT IN ('_key_bits', '_once_key', '_waits', '_waits_later', '_means') AND NOT coalesce(p.proconfig @> ARRAY['jit=off'], false)`},
		// In an application's session, plan_cache_mode = force_custom_plan of its role would plan each enqueue again, at four times the cost.
		{"function for applications without a fixed plan_cache_mode", `SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace
			AND (has_function_privilege('weir_enqueue', p.oid, 'EXECUTE') OR has_function_privilege('weir_publish', p.oid, 'EXECUTE') OR p.proname IN ('_check_job', '_queue_id'))
			AND NOT coalesce(p.proconfig::text LIKE '%plan_cache_mode=%', false)`},
		{"function that catches a whole class of errors (a code that ends in 000)", `SELECT p.oid::regprocedure::text FROM pg_proc p
			WHERE p.pronamespace = 'weir'::regnamespace AND p.prosrc ~ $$SQLSTATE '..000'$$`},
		{"function with a backslash in a string that means something else with standard_conforming_strings = off: write E'...', or another regular expression", `
			SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace AND strpos(regexp_replace(p.prosrc, $$E'([^']|'')*'$$, '', 'g'), E'\\') > 0`},
		{"function that PUBLIC may execute", `SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace
			AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = 0))`},
		{"table without a comment", `SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind IN ('r', 'p')
			AND NOT c.relispartition AND c.relname <> 'migration' AND coalesce(obj_description(c.oid, 'pg_class'), '') = ''`},
		{"foreign key", `SELECT conname::text FROM pg_constraint WHERE connamespace = 'weir'::regnamespace AND contype = 'f'`},
		{"trigger", `SELECT tgname::text FROM pg_trigger WHERE NOT tgisinternal`},
	} {
		for _, name := range column[string](t, conn, c.sql) {
			t.Errorf("%s: %s", c.what, name)
		}
	}
}

// TestRolesDoTheirPartAndNoMore: each role has exactly the privileges listed here.
func TestRolesDoTheirPartAndNoMore(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	enqueue := []string{"enqueue", "enqueue_many", "enqueue_unique", "_enqueue_unique_many", "_enqueue_many", "_enqueue_json", "_enqueue_request", "_enqueue_requests", "_hold_slot", "_slots", "flow", "seal", "flow_info", "add_tasks", "tasks", "increment"}
	work := append(slices.Clone(enqueue), "enqueued", "start", "take", "record", "progress", "checkpoint", "set_checkpoint", "stop", "complete", "flow_outputs", "flow_running", "chores", "attend", "heartbeat", "cancel", "_start", "_never_used", "_queue_names", "_watch", "_claim", "_record", "_complete", "_reconcile", "_fence", "_settle", "_cancelled_among",
		"_promote", "_rotate", "_rotate_history", "_rotate_later", "_rotate_messages", "_rescue", "_misses_one", "_resurvey", "_tidy", "_count_minutes", "rebase", "job_info", "jobs", "jobs_page", "flows", "cancel_flow", "_fold_arrivals", "_step_operations")
	publish := []string{"publish", "publish_bytes", "publish_many", "notify"}
	subscribe := []string{"ticks", "read", "newest_tick", "_epoch_of"}
	cut := []string{"_await_tick", "rebase_messages", "_rotate_messages"}
	relay := []string{"_relay_reached", "_relay_position", "_first_tick_after", "_shared_upto", "relays"}
	hub := slices.Concat(publish, subscribe, cut, relay, []string{"_publish_drafts", "_beat", "_fresh_queues", "_logins", "_login_secret", "revocations", "disconnect", "revoke", "queues"})
	operate := slices.Concat(work, publish, subscribe, cut, relay, []string{"forget_relay", "queues", "history", "workers", "cancel", "retry", "pause", "resume", "set", "settings", "set_limit", "clear_limit", "limits", "set_weight", "weights", "set_retry_rule", "drop_retry_rule", "retry_rules", "failure_groups", "hubs", "notify_callers", "restrict", "disconnect", "revoke", "revocations", "_jobs_after", "keys_in_use"})
	operate = append(operate, "delete", "cancel_where", "retry_where", "delete_where", "move_where", "retry_flow", "begin_operation", "stop_operation", "operations")
	watch := []string{"watch_table", "unwatch_table", "watched_tables", "_publish_changes", "_keys_now", "_watches_of"}
	operate = append(append(operate, "storage", "_assign_slots", "_leave_slots", "_holders_of_slots", "_depart", "_close_slots", "_departing", "_taken_upto", "_take_in", "_own_slots", "_stop_taking", "_stay", "_clear_departed"), watch...)
	operate = append(operate, "set_schedule", "drop_schedule", "pause_schedule", "resume_schedule", "run_schedule", "schedules", "next_times")
	for role, want := range map[string][]string{"weir_enqueue": enqueue, "weir_work": work, "weir_operate": operate,
		"weir_publish": slices.Concat(publish, watch), "weir_subscribe": subscribe, "weir_hub": hub} {
		want = slices.Compact(slices.Sorted(slices.Values(want)))
		got := column[string](t, conn, `SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'weir'::regnamespace AND has_function_privilege($1, oid, 'EXECUTE')`, role)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s may execute %v, want %v", role, got, want)
		}
		relations := column[string](t, conn, `SELECT c.relname || ' ' || p FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p
			WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND has_table_privilege($1, c.oid, p)
			UNION ALL SELECT c.relname || ' ' || p FROM pg_class c, unnest(ARRAY['SELECT', 'UPDATE', 'USAGE']) p
			WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind = 'S' AND CASE WHEN c.relkind = 'S' THEN has_sequence_privilege($1, c.oid, p) END`, role)
		slices.Sort(relations)
		wantRelations := map[string]string{
			"weir_enqueue": "",
			"weir_work":    "",
			"weir_operate": "available_jobs SELECT, cancelled_jobs SELECT, completed_jobs SELECT, failed_jobs SELECT, running_jobs SELECT, scheduled_jobs SELECT",
		}[role]
		if got := strings.Join(relations, ", "); got != wantRelations {
			t.Errorf("%s may use %s; want %s", role, got, wantRelations)
		}
	}

	exec(t, conn, `CREATE ROLE `+stranger)
	defer exec(t, conn, `DROP ROLE `+stranger)
	as := func(role, code string, statements ...string) {
		t.Helper()
		exec(t, conn, `SET ROLE `+role)
		for _, sql := range statements {
			if _, err := conn.Exec(t.Context(), sql); sqlstate(err) != code || code == "" && err != nil {
				t.Errorf("%s: %s: %v, want SQLSTATE %q", role, sql, err, code)
			}
		}
		exec(t, conn, `RESET ROLE`)
	}
	const denied = "42501"
	worker := startWorker(t, conn, "q")
	claimOne := fmt.Sprintf(`SELECT * FROM weir._claim(%d, ARRAY['q'], ARRAY[1])`, worker)
	as("weir_enqueue", "", `SELECT weir.enqueue('q', 'k')`, `SELECT weir.enqueue('new', 'k', run_at => now() + interval '1 hour')`,
		`SELECT weir.enqueue_many('[{"queue": "q", "kind": "k"}]')`, `SELECT weir.enqueue_many(ARRAY['q'], ARRAY['k'], ARRAY['{}']::jsonb[])`)
	as("weir_enqueue", "", `SELECT weir.seal(weir.flow('f'))`, `SELECT * FROM weir.flow_info(1)`, `SELECT weir.enqueue('q', 'k', flow => weir.flow('g'))`)
	as("weir_enqueue", denied, `SELECT * FROM weir.flows()`, `SELECT weir.cancel_flow(1)`, `SELECT * FROM weir.arrival`, `SELECT weir._fold_arrivals()`)
	as("weir_work", "", `SELECT * FROM weir.flows()`, `SELECT weir.cancel_flow(1)`, `SELECT * FROM weir._fold_arrivals()`, `SELECT * FROM weir._step_operations()`)
	as("weir_work", denied, `SELECT * FROM weir.retry_flow(1)`, `SELECT weir._arrive(1, 'jobs', 1)`, `SELECT * FROM weir.fold`)
	as("weir_operate", "", `SELECT * FROM weir.retry_flow(1)`)
	as("weir_enqueue", denied, claimOne, `SELECT * FROM weir.job`, `SELECT * FROM weir.request`, `SELECT weir._turn_requests()`, `SELECT * FROM weir.queue`, `INSERT INTO weir.cancellation VALUES (1)`, `SELECT weir.pause('q')`,
		`SELECT * FROM weir.job_info(1)`, `SELECT weir._queue_id('x')`, `SELECT nextval('weir.job_id')`, `CREATE TABLE weir.mine ()`)
	as("weir_work", "", claimOne, `SELECT weir.enqueue('q', 'k')`, `SELECT weir._start('w', ARRAY['newer'])`, `SELECT weir.heartbeat(1)`,
		`SELECT weir._promote()`, `SELECT weir._rotate()`, `SELECT weir._rotate_later()`, `SELECT weir._rescue()`, `SELECT weir._misses_one()`, `SELECT weir._resurvey()`, `SELECT weir._tidy()`, `SELECT weir._count_minutes()`, `SELECT weir.rebase()`,
		`SELECT * FROM weir.job_info(1)`, `SELECT weir.cancel(1)`, `CALL weir.chores()`, `SELECT weir.start('w', ARRAY['q'])`, `SELECT * FROM weir._watch(0, 0, NULL, NULL)`, fmt.Sprintf(`SELECT weir._fence(%d)`, worker))
	as("weir_work", denied, `SELECT * FROM weir.job`, `DELETE FROM weir.result`, `SELECT * FROM weir.history()`, `SELECT weir.pause('q')`, `SELECT weir.retry(1)`, `SELECT * FROM weir.failed_jobs`,
		`SELECT weir._reclaim(1)`, `SELECT nextval('weir.job_id')`, `SELECT weir._end_attempts(1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)`)
	as("weir_operate", "", `SELECT weir.pause('q')`, `SELECT weir.resume('q')`, `SELECT weir.cancel(1)`, `SELECT weir.retry(1)`, `SELECT weir.set('completed_retention', '1 day')`,
		`SELECT * FROM weir.queues()`, `SELECT * FROM weir.history()`, `SELECT * FROM weir.workers()`, `SELECT * FROM weir.jobs('available')`, `SELECT * FROM weir.available_jobs`,
		`SELECT * FROM weir.running_jobs`, `SELECT * FROM weir.scheduled_jobs`, `SELECT * FROM weir.completed_jobs`, `SELECT * FROM weir.failed_jobs`, `SELECT * FROM weir.cancelled_jobs`)
	as("weir_operate", denied, `SELECT * FROM weir.job`, `UPDATE weir.queue SET paused_at = now()`, `UPDATE weir.setting SET value = ''`, `SELECT weir._reclaim(1)`, `SELECT * FROM weir.minute`)
	// Arguments, results, errors, progress and checkpoints are for those who work jobs, schedules and their arguments for those who operate.
	as("weir_enqueue", "", `SELECT * FROM weir.enqueue_unique('q', 'k', unique_key => 'x')`)
	as("weir_enqueue", denied, `SELECT weir.checkpoint(1)`, `SELECT weir.progress(1, '[]')`, `SELECT * FROM weir.jobs('failed')`, `SELECT * FROM weir.schedules()`, `SELECT weir.cancel_where('q')`,
		`SELECT weir.set_schedule('s', '@daily', 'q', 'k')`, `SELECT * FROM weir.failure_groups()`, `SELECT weir.set_weight('q', 'a', 2)`, `SELECT * FROM weir.weights()`, `SELECT * FROM weir.report`, `SELECT * FROM weir.schedule`)
	as("weir_work", "", `SELECT weir.checkpoint(1)`, `SELECT weir.progress(weir.start('v', '{q}'), '[]')`)
	as("weir_work", denied, `SELECT * FROM weir.schedules()`, `SELECT weir.run_schedule('s')`, `SELECT weir.set_schedule('s', '@daily', 'q', 'k')`, `SELECT weir.cancel_where('q')`, `SELECT weir.retry_where('q')`,
		`SELECT weir.delete(1)`, `SELECT weir.delete_where('q')`, `SELECT weir.move_where('q', to_priority => 1)`, `SELECT weir.begin_operation('retry', '{"queue": "q"}')`, `SELECT * FROM weir.operations()`, `SELECT weir.stop_operation(1)`, `SELECT * FROM weir.failure_groups()`, `SELECT weir.set_retry_rule('r')`, `SELECT * FROM weir.report`, `SELECT weir._fire(NULL, now(), 1)`)
	as("weir_operate", "", `SELECT weir.set_schedule('s', '@daily', 'q', 'k')`, `SELECT * FROM weir.schedules()`, `SELECT weir.drop_schedule('s')`, `SELECT * FROM weir.failure_groups()`, `SELECT weir.cancel_where('none')`,
		`SELECT weir.retry_where('none')`, `SELECT weir.delete(1)`, `SELECT weir.delete_where('none')`, `SELECT weir.move_where('none', to_priority => 1)`, `SELECT weir.begin_operation('retry', '{"queue": "none"}')`, `SELECT * FROM weir.operations()`, `SELECT weir.stop_operation(1)`, `SELECT weir.set_retry_rule('r', 'retry', kind => 'k')`, `SELECT weir.drop_retry_rule('r')`, `SELECT weir.set_weight('q', 'a', 2)`, `SELECT * FROM weir.weights()`, `SELECT weir.checkpoint(1)`)
	as("weir_operate", denied, `SELECT * FROM weir.schedule`, `SELECT * FROM weir.report`, `SELECT * FROM weir.keyed`, `INSERT INTO weir.operation_step VALUES (1, 1, now(), 'done')`, `DELETE FROM weir.cancellation_where`, `SELECT weir._move('{}', '{}', NULL, NULL, 1, NULL)`)
	as("weir_hub", denied, `SELECT weir.checkpoint(1)`, `SELECT * FROM weir.schedules()`, `SELECT * FROM weir.job_info(1)`, `SELECT * FROM weir.failure_groups()`)
	as("weir_publish", "", `SELECT weir.publish('c', 'p')`, `SELECT weir.notify('c', 'p')`, `SELECT weir.publish_bytes('c', '\x00')`, `SELECT weir.publish_many(ARRAY['c'], ARRAY['p'])`)
	as("weir_publish", denied, `SELECT * FROM weir.ticks(0)`, `SELECT * FROM weir.read(1)`, `SELECT * FROM weir.message`, `SELECT * FROM weir._logins()`)
	as("weir_subscribe", "", `SELECT * FROM weir.ticks(0)`, `SELECT * FROM weir.read(1)`, `SELECT weir.newest_tick()`)
	as("weir_subscribe", denied, `SELECT * FROM weir._await_tick(0)`, `SELECT weir._rotate_messages()`, `SELECT weir.rebase_messages()`, `SELECT weir.publish('c')`, `SELECT * FROM weir.message`, `SELECT weir._cut()`, `SELECT weir._reclaim_messages(1, '0')`, `SELECT * FROM weir._logins()`)
	as("weir_hub", "", `SELECT * FROM weir._logins()`, `SELECT * FROM weir._login_secret()`, `SELECT weir._beat('h', '', 1, 0)`, `SELECT * FROM weir._fresh_queues(pg_current_snapshot())`, `SELECT * FROM weir.queues()`)
	as("weir_hub", denied, `SELECT * FROM weir.message`, `SELECT * FROM pg_authid`, `SELECT weir.set('message_bytes', '8000')`, `SELECT weir.enqueue('q', 'k')`)
	as("weir_operate", "", `SELECT weir.restrict('app', ARRAY['orders.*'])`, `SELECT weir.restrict('app')`, `SELECT * FROM weir.hubs()`, `SELECT * FROM weir.notify_callers()`, `SELECT weir.set('message_retention', '1 hour')`)
	as(stranger, denied, `SELECT weir.publish('c')`, `SELECT * FROM weir.ticks(0)`, `SELECT * FROM weir._await_tick(0)`, `SELECT * FROM weir._logins()`, `SELECT weir.enqueue('q', 'k')`, `SELECT * FROM weir.queues()`, `SELECT * FROM weir.job`)
}

// stranger is a role without privileges.
const stranger = "weir_proof_stranger"

// TestEveryCopyOfAJobIsWhole: every statement that copies a row of a job copies all of its columns.
func TestEveryCopyOfAJobIsWhole(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	checked := 0
	for _, table := range []string{"job", "later"} {
		columns := column[string](t, conn, `SELECT attname::text FROM pg_attribute WHERE attrelid = ('weir.' || $1)::regclass AND attnum > 0 AND NOT attisdropped AND attname NOT IN ('leads', 'seq')`, table)
		// A copy always leads. Only a rebase sets seq, in rows that never move again. The rows that enqueue and retry log are new attempts, which were never put off; _retry_failed takes only jobs that are neither unique nor in a flow.
		for _, list := range column[string](t, conn, `SELECT p.proname || '(' || m[1] || ')' FROM pg_proc p, regexp_matches(p.prosrc, 'INSERT INTO weir\.' || $1 || ' \(([^)]*)\)', 'g') m
			WHERE p.pronamespace = 'weir'::regnamespace AND p.proname NOT IN ('enqueue', 'enqueue_unique', '_enqueue_unique_many', '_enqueue_many', '_log_member', 'enqueue_many', 'retry', '_retry', '_retry_failed', '_mark_due')`, table) {
			name, listed, _ := strings.Cut(strings.TrimSuffix(list, ")"), "(")
			for _, c := range columns {
				if !slices.Contains(strings.Split(listed, ", "), c) {
					t.Errorf("%s copies rows of weir.%s without the column %s", name, table, c)
				}
			}
			checked++
		}
	}
	if checked < 7 {
		t.Errorf("found only %d copies: does the test no longer recognize the statements?", checked)
	}
}

// TestFiltersAreNoSQL: whatever a filter, a key, a name or an expression contains, it is compared, and nothing is executed or read as a pattern.
func TestFiltersAreNoSQL(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	fail(t, conn, worker, func() attempt { enqueueN(t, conn, "q", 1); return mustClaim(t, conn, worker, "q", 1)[0] }())
	id := value[int64](t, conn, `SELECT weir.enqueue('q', 'k')`)
	for _, text := range []string{`'; DROP SCHEMA weir CASCADE; --`, `$$; DROP SCHEMA weir CASCADE; $$`, `%`, `_`, `\`, `.*`, `"; --`, `q' OR 'x' = 'x`, `{k}`, `NULL`} {
		for _, sql := range []string{
			`SELECT coalesce(weir.cancel_where($1), 0)`, `SELECT retried FROM weir.retry_where($1)`, `SELECT retried FROM weir.retry_where(error => $1)`, `SELECT retried FROM weir.retry_where(kinds => ARRAY[$1])`,
			`SELECT deleted FROM weir.delete_where(error => $1)`, `SELECT deleted FROM weir.delete_where(meta => jsonb_build_object($1::text, $1::text))`,
			`SELECT moved FROM weir.move_where($1, to_priority => 1)`, `SELECT moved FROM weir.move_where(kinds => ARRAY[$1], to_queue => $1)`, `SELECT count(*) FROM weir.failure_groups(queue => $1)`,
			`SELECT jsonb_array_length(p.jobs) FROM weir.jobs_page(kinds => ARRAY[$1]) p`, `SELECT jsonb_array_length(p.jobs) FROM weir.jobs_page(args_text => $1) p`, `SELECT retried FROM weir.retry_where(shape => $1)`, `SELECT jsonb_array_length(p.jobs) FROM weir.jobs_page('{failed}', shape => $1) p`, `SELECT count(*) FROM weir.schedules($1)`,
		} {
			var n int64
			if err := conn.QueryRow(t.Context(), sql, text).Scan(&n); err != nil || n != 0 {
				t.Errorf("%s with %q: %d, %v", sql, text, n, err)
			}
		}
		if duplicate := value[bool](t, conn, `SELECT duplicate FROM weir.enqueue_unique('other', $1, jsonb_build_object('a', $1::text), unique_key => $1)`, text); duplicate {
			t.Errorf("the key %q is that of another job", text)
		}
		_, err := conn.Exec(t.Context(), `SELECT weir.set_schedule($1, $1, 'q', 'k')`, text)
		wantCode(t, "the schedule "+text, err, "22023")
	}
	wantState(t, conn, id, "available")
}
