package proof

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestBadInputLeavesNothing: invalid input is refused with a SQLSTATE and a message that contains the value, and leaves no row behind.
func TestBadInputLeavesNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "known")
	exec(t, conn, `SELECT weir.enqueue('known', 'k')`)
	count := func() int {
		t.Helper()
		return value[int](t, conn, `SELECT (SELECT count(*) FROM weir.job) + (SELECT count(*) FROM weir.later) + (SELECT count(*) FROM weir.batch)
			+ (SELECT count(*) FROM weir.result) + (SELECT count(*) FROM weir.queue) + (SELECT count(*) FROM weir.worker)`)
	}
	before := count()
	const invalid = "22023"
	long := strings.Repeat("n", 129)
	many := func(args string) string { return `SELECT weir.enqueue_many(` + args + `)` }
	for _, c := range []struct {
		sql, code, says string
		args            []any
	}{
		{sql: `SELECT weir.set('backoff', '1 second')`, says: "backoff is a setting of each queue, and no queue is named"},
		{sql: `SELECT weir.set('new', 'backoff_form', 'square')`, says: "weir: backoff_form must be exponential, linear or fixed, got 'square'"},
		{sql: `SELECT weir.enqueue('new', 'k', priority => 0)`, says: "unknown priority 0"},
		{sql: `SELECT weir.enqueue('new', 'k', priority => 5)`, says: "unknown priority 5"},
		{sql: `SELECT weir.enqueue('new', 'k', '[1]')`, says: "got a JSON array"},
		{sql: `SELECT weir.enqueue('new', 'k', '7')`, says: "got a JSON number"},
		{sql: `SELECT weir.enqueue('new', 'k', 'null')`, says: "got a JSON null"},
		{sql: `SELECT weir.enqueue('new', 'k', jsonb_build_object('k', repeat('x', 1048577)))`, says: "args too large: 10485"},
		{sql: `SELECT weir.enqueue('new', 'k', meta => '[]')`, says: "meta must be a JSON object, got a JSON array"},
		{sql: `SELECT weir.enqueue('new', 'k', meta => jsonb_build_object('k', repeat('x', 65537)))`, says: "meta too large: 655"},
		{sql: `SELECT weir.enqueue('new', 'k', meta => '{"a": 1, "weir.otel": {}, "weir.own": 1}')`, says: `the key "weir.own" of meta is reserved`},
		{sql: `SELECT weir.enqueue('new', 'k', meta => '{"weir.flow": {"id": 1}}', once => 'a', flow => 1)`, says: `the key "weir.flow" of meta is reserved`},
		{sql: `SELECT weir.enqueue_unique('new', 'k', meta => '{"weir.": 1}')`, says: `the key "weir." of meta is reserved`},
		{sql: `SELECT weir.set_schedule('s', '@daily', 'new', 'k', meta => '{"weir.own": 1}')`, says: `the key "weir.own" of meta is reserved`},
		{sql: `SELECT weir.flow('f', on_done => '{"queue": "new", "kind": "k", "meta": {"weir.task": 1}}')`, says: `the key "weir.task" of meta is reserved for Weir (on_done)`},
		{sql: many(`ARRAY['new', 'new'], ARRAY['k', 'k'], meta => ARRAY['{"weir.otel": 1}', '{"weir.own": 1}']::jsonb[]`), says: `the key "weir.own" of meta is reserved for Weir (job 2 of 2)`},
		{sql: `SELECT weir.enqueue(' new', 'k')`, says: `the queue name " new" begins or ends with a blank`},
		{sql: "SELECT weir.enqueue($1, 'k')", args: []any{"new\n"}, says: `the queue name "new\n" begins or ends with a blank`},
		{sql: many(`ARRAY['new '], ARRAY['k']`), says: `the queue name "new " begins`},
		{sql: `SELECT weir._start('w', ARRAY['new '])`, says: `the queue name "new " begins`},
		{sql: `SELECT weir.set('new ', 'backoff', '1 second')`, says: `the queue name "new " begins`},
		{sql: `SELECT weir.set_limit('new ', running => 1)`, says: `the queue name "new " begins`},
		{sql: `SELECT weir.enqueue($1, 'k')`, args: []any{long}, says: "queue name too long: 129"},
		{sql: `SELECT weir.enqueue('new', $1)`, args: []any{long}, says: "kind too long: 129"},
		{sql: `SELECT weir.enqueue('', 'k')`, says: "needs a queue, but its queue is empty"},
		{sql: `SELECT weir.enqueue(NULL, 'k')`, says: "needs a queue, but its queue is null"},
		{sql: `SELECT weir.enqueue('new', '')`, says: "needs a kind, but its kind is empty"},
		{sql: `SELECT weir.enqueue('new', NULL)`, says: "needs a kind, but its kind is null"},
		{sql: `SELECT weir.enqueue('new', $1)`, args: []any{"a\x00b"}, code: "22021", says: "0x00"},
		{sql: `SELECT weir.enqueue('new', 'k', '{"a": "\u0000"}')`, code: "22P05", says: "unsupported Unicode escape"},
		{sql: `SELECT weir.enqueue('new', 'k', max_attempts => 0)`, says: "max_attempts must be 1 to 1000, got 0"},
		{sql: `SELECT weir.enqueue('new', 'k', max_attempts => 1001)`, says: "got 1001"},
		{sql: `SELECT weir.enqueue('new', 'k', run_at => 'infinity')`, says: "run_at is infinity"},
		{sql: `SELECT weir.enqueue('new', 'k', run_at => '10000-01-01 00:00:00+00')`, says: "up to the year 9999"},
		{sql: many(`ARRAY['new'], ARRAY['k'], run_at => ARRAY['12000-01-01']::timestamptz[]`), says: "up to the year 9999 (job 1 of 1)"},
		{sql: many(`ARRAY['new', 'new'], ARRAY['k', 'k'], ARRAY['{}']::jsonb[]`), says: "differ in length: 2 kinds, 2 queues, 1 args"},
		{sql: many(`ARRAY['new'], ARRAY['k', 'k'], ARRAY['{}', '{}']::jsonb[]`), says: "2 kinds, 1 queues"},
		{sql: many(`ARRAY['new', 'new'], ARRAY['k', 'k'], ARRAY['{}', '{}']::jsonb[], ARRAY[1]`), says: "1 priorities"},
		{sql: many(`ARRAY['new', 'new'], ARRAY['k', 'k'], ARRAY['{}', '{}']::jsonb[], meta => ARRAY['{}']::jsonb[]`), says: "1 metas"},
		{sql: many(`NULL, ARRAY['k'], ARRAY['{}']::jsonb[]`), says: "differ in length"},
		{sql: many(`ARRAY['new'], NULL, ARRAY['{}']::jsonb[]`), says: "0 kinds, 1 queues, 1 args"},
		{sql: many(`'{}'::text[], '{}'::text[], priority => ARRAY[1, 2]`), says: "0 kinds, 0 queues, <NULL> args, 2 priorities"},
		{sql: many(`ARRAY['new'], NULL`), says: "0 kinds, 1 queues"},
		{sql: many(`ARRAY['new', 'new'], ARRAY['k', 'k'], ARRAY['{}', '{}']::jsonb[], ARRAY[1, 9]`), says: "unknown priority 9: priorities are 1 (first) to 4 (job 2 of 2)"},
		{sql: many(`ARRAY['new', 'new'], ARRAY['k', ''], ARRAY['{}', '{}']::jsonb[]`), says: "(job 2 of 2)"},
		{sql: many(`ARRAY['new', NULL], ARRAY['k', 'k'], ARRAY['{}', '{}']::jsonb[]`), says: "(job 2 of 2)"},
		{sql: many(`ARRAY['new'], ARRAY['k'], ARRAY['{}']::jsonb[], run_at => ARRAY['infinity']::timestamptz[]`), says: "run_at is infinity"},
		{sql: many(`ARRAY['new'], ARRAY['k'], ARRAY['{}']::jsonb[], max_attempts => ARRAY[0]`), says: "got 0 (job 1 of 1)"},
		{sql: many(`array_fill('new'::text, ARRAY[10001]), array_fill('k'::text, ARRAY[10001]), array_fill('{}'::jsonb, ARRAY[10001])`), says: "10001 jobs in one call"},
		{sql: many(`'[{"queue": "new", "kind": "k", "que": 1}]'::jsonb`), says: `unknown key "que"`},
		{sql: many(`'[{"queue": "new", "kind": "k"}, 7]'::jsonb`), says: "job 2 must be a JSON object, got a JSON number"},
		{sql: many(`'[{"queue": "new", "kind": "k"}, {"queue": "new", "kind": "k", "priority": 1.5}]'::jsonb`), says: "job 2 of 2: priority must be a whole number, got 1.5"},
		{sql: many(`'[{"queue": "new", "kind": "k", "max_attempts": 99999999999}]'::jsonb`), says: "job 1 of 1: max_attempts must be a whole number, got 99999999999"},
		{sql: many(`'[{"queue": "new", "kind": "k", "run_at": "soon"}]'::jsonb`), says: `job 1 of 1: run_at must be a time, got "soon"`},
		{sql: many(`'[{"queue": "new", "kind": "k"}, {"queue": "new", "kind": "k", "run_at": "soon", "unique": true}]'::jsonb`), says: `job 2 of 2: run_at must be a time, got "soon"`},
		{sql: many(`'[{"queue": "new", "kind": "k", "unique": {"within": "long"}}]'::jsonb`), says: `job 1 of 1: within must be an interval, got "long"`},
		{sql: many(`'[{"queue": "new", "kind": "k", "unique": {"untill": "started"}}]'::jsonb`), says: `within, replace and wait, got the key "untill"`},
		{sql: many(`'[{"queue": "new", "kind": "k", "unique": 7}]'::jsonb`), says: `within, replace and wait, got a JSON number`},
		{sql: many(`'[{"queue": "new"}]'::jsonb`), says: "needs a kind"},
		{sql: many(`'{}'::jsonb`), says: "got a JSON object"},
		{sql: many(`NULL::jsonb`), says: "got null"},
		{sql: `SELECT weir._start('w', ARRAY['new', ''])`, says: "queue"},
		{sql: `SELECT weir._start('w', ARRAY['new'], '0 s')`, says: "got 00:00:00"},
		{sql: `SELECT weir._start('w', ARRAY['new'], NULL)`, says: "lease"},
		{sql: `SELECT weir._claim($1, ARRAY['known'], ARRAY[1, 2])`, args: []any{worker}, says: "1 queues and 2 limits"},
		{sql: `SELECT weir._claim($1, ARRAY['known'], NULL)`, args: []any{worker}, says: "1 queues and null limits"},
		{sql: `SELECT weir._claim($1, NULL, NULL)`, args: []any{worker}, says: "null queues"},
		{sql: `SELECT weir._claim($1, ARRAY['known'], ARRAY[NULL]::integer[])`, args: []any{worker}, says: "got a null in limits"},
		{sql: `SELECT weir._claim($1, ARRAY['other'], ARRAY[1])`, args: []any{worker}, says: "other"},
		{sql: `SELECT weir._record($1, ARRAY[1], ARRAY[1, 2]::bigint[], ARRAY[1], ARRAY[1]::bigint[])`, args: []any{worker}, says: "1 lanes, 2 seqs"},
		{sql: `SELECT weir._record($1, ARRAY[1], ARRAY[1]::bigint[], ARRAY[2], ARRAY[1]::bigint[])`, args: []any{worker}, says: "got 1 ids, but sizes that add up to 2"},
		{sql: `SELECT weir._record($1, ARRAY[1], ARRAY[1]::bigint[], ARRAY[1], ARRAY[1]::bigint[], ARRAY['failed', 'failed'])`, args: []any{worker}, says: "got 1 ids, 2 outcomes"},
		{sql: `SELECT weir._record($1, ARRAY[1], ARRAY[1]::bigint[], ARRAY[10001], array_fill(1::bigint, ARRAY[10001]))`, args: []any{worker}, says: "at most 10000 attempts at once, got 10001"},
		{sql: `SELECT weir._reconcile($1, ARRAY[1], ARRAY[1]::bigint[], ARRAY[2], ARRAY[1]::bigint[])`, args: []any{worker}, says: "1 sizes and 1 ids"},
		{sql: `SELECT weir._settle($1)`, args: []any{worker}, says: "is not fenced"},
		{sql: `SELECT weir._promote(0)`, says: "got 0"},
		{sql: `SELECT weir._promote(upto => 'infinity')`, says: "got infinity"},
		{sql: `SELECT weir.enqueued(0)`, says: "got 0"},
		{sql: `SELECT weir.jobs('done')`, says: "unknown state done"},
		{sql: `SELECT weir.set('completed_retention', '-1 s')`, says: "-1 s"},
		{sql: `SELECT weir.set('retention_bytes', '5')`, says: "got 5"},
		{sql: `SELECT weir.set('colour', 'red')`, says: "unknown setting colour"},
	} {
		_, err := conn.Exec(t.Context(), c.sql, c.args...)
		if c.code == "" {
			c.code = invalid
		}
		shown := c.sql[:min(len(c.sql), 150)]
		if wantCode(t, shown, err, c.code); err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: the error is %q, which does not contain %q", shown, err, c.says)
		}
		if after := count(); after != before {
			t.Fatalf("%s: there were %d rows before, and %d after", shown, before, after)
		}
	}
	if n := value[int](t, conn, `SELECT cardinality(weir.enqueue_many('[]'::jsonb))`); n != 0 || count() != before {
		t.Errorf("an empty enqueue_many returned %d ids", n)
	}
	for _, none := range []string{`NULL, NULL`, `'{}', '{}'`, `NULL, '{}', priority => '{}'`} {
		if n := value[int](t, conn, `SELECT cardinality(weir.enqueue_many(`+strings.ReplaceAll(none, `'{}', '{}'`, `'{}'::text[], '{}'::text[]`)+`))`); n != 0 || count() != before {
			t.Errorf("enqueue_many(%s) returned %d ids", none, n)
		}
	}
	exec(t, conn, `SELECT weir.enqueue('new', 'k', meta => '{"weir.otel": {"traceparent": "x"}, "weir": 1, "own": {"weir.own": 1}}')`)
	exec(t, conn, `SELECT weir.enqueue_many(ARRAY['known'], ARRAY['k'], meta => ARRAY['{"weir.otel": {"traceparent": "x"}}']::jsonb[])`)
}

// TestSizesAreCountedAsWorkersGetThem: sizes are those of the text that a worker receives, even for compressed columns and for short numbers with
// long texts.
func TestSizesAreCountedAsWorkersGetThem(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `CREATE TABLE source (args jsonb, text text)`)
	exec(t, conn, `INSERT INTO source SELECT jsonb_build_object('k', t), t FROM repeat('x', 5000000) t`)
	if stored := value[int](t, conn, `SELECT pg_column_size(args) FROM source`); stored > 1_000_000 {
		t.Fatalf("the column takes %d bytes: it is not compressed", stored)
	}
	exec(t, conn, `CREATE TABLE number AS SELECT jsonb_build_object('k', jsonb_agg(1e100000::numeric)) AS args, jsonb_build_object('k', 1e100000::numeric) AS meta FROM generate_series(1, 200) i`)
	exec(t, conn, `CREATE TABLE exact AS SELECT jsonb_build_object('k', repeat('x', 1048567)) AS args, jsonb_build_object('k', repeat('x', 65527)) AS meta`)
	for sql, says := range map[string]string{
		`SELECT weir.enqueue('q', 'k', args) FROM source`:                                                                      "args too large: 5000009 bytes, at most 1048576",
		`SELECT weir.enqueue('q', 'k', args) FROM number`:                                                                      "args too large: 2000",
		`SELECT weir.enqueue('q', 'k', meta => args) FROM source`:                                                              "meta too large: 5000009 bytes, at most 65536",
		`SELECT weir.enqueue('q', 'k', meta => meta) FROM number`:                                                              "meta too large: 1000",
		`SELECT weir.enqueue_many(ARRAY['q'], ARRAY['k'], ARRAY[args]) FROM source`:                                            "args too large: 5000009 bytes, at most 1048576 are allowed (job 1 of 1)",
		`SELECT weir.enqueue_many(ARRAY['q'], ARRAY['k'], ARRAY[args]) FROM number`:                                            "args too large: 2000",
		`SELECT weir.enqueue_many(ARRAY['q'], ARRAY['k'], ARRAY['{}']::jsonb[], meta => ARRAY[meta]) FROM number`:              "meta too large: 1000",
		`SELECT weir.enqueue_many(jsonb_build_array(jsonb_build_object('queue', 'q', 'kind', 'k', 'args', args))) FROM source`: "args too large: 5000009",
		`SELECT weir.publish('c', text) FROM source`:                                                                           "payload too large: 5000000 bytes",
		`SELECT weir.notify('c', text) FROM source`:                                                                            "payload too large: 5000000 bytes",
		`SELECT weir.publish_bytes('c', convert_to(text, 'UTF8')) FROM source`:                                                 "payload too large: 5000000 bytes",
		`SELECT weir.publish_many(ARRAY['c'], ARRAY[text]) FROM source`:                                                        "payload too large: 5000000 bytes",
	} {
		_, err := conn.Exec(t.Context(), sql)
		wantCode(t, sql, err, "22023")
		if err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: the error is %q, which does not contain %q", sql, err, says)
		}
	}
	if n := value[int](t, conn, `SELECT (SELECT count(*) FROM weir.job) + (SELECT count(*) FROM weir.message)`); n != 0 {
		t.Errorf("%d rows were left behind", n)
	}
	exec(t, conn, `SELECT weir.enqueue('q', 'k', args, meta => meta), weir.enqueue_many(ARRAY['q'], ARRAY['k'], ARRAY[args], meta => ARRAY[meta]) FROM exact`)
}

// TestClaimNeedsAutocommit: a claim is refused in another isolation level, where it would not see the newest batch, and in a transaction, which
// would keep the lane.
func TestClaimNeedsAutocommit(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 1)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, sql := range []string{`SELECT weir._claim($1, ARRAY['q'], ARRAY[1])`, `SELECT weir._record($1, '{}', '{}', '{}', '{}')`,
			`SELECT weir._complete($1, 1, 1, 1)`, `SELECT weir._fence($1)`, `SELECT weir._promote($1)`, `SELECT weir._rotate() WHERE $1 > 0`,
			`SELECT weir.rebase() WHERE $1 > 0`} {
			tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			if err != nil {
				t.Fatal(err)
			}
			_, err = tx.Exec(t.Context(), sql, worker)
			wantCode(t, string(level)+": "+sql, err, "WR004")
			if err != nil && !strings.Contains(err.Error(), strings.ToUpper(string(level))) {
				t.Errorf("%s: the message does not contain the isolation level: %v", sql, err)
			}
			if e, ok := errors.AsType[*pgconn.PgError](err); ok && strings.Contains(e.Hint, "autocommit") == strings.Contains(sql, "_complete") {
				t.Errorf("%s: the hint is %q", sql, e.Hint) // a completion belongs into a transaction
			}
			_ = tx.Rollback(t.Context())
		}
	}
	exec(t, conn, `BEGIN`)
	enqueueN(t, conn, "q", 1)
	_, err := claim(t.Context(), conn, worker, []string{"q"}, []int32{1})
	wantCode(t, "claim after a write", err, "WR004")
	exec(t, conn, `ROLLBACK`)
	exec(t, conn, `BEGIN`)
	until(t, "the transaction is old", func() bool {
		return value[bool](t, conn, `SELECT clock_timestamp() - now() > interval '2 seconds'`)
	})
	_, err = claim(t.Context(), conn, worker, []string{"q"}, []int32{1})
	wantCode(t, "claim in an old transaction", err, "55000")
	exec(t, conn, `ROLLBACK`)
	if got := mustClaim(t, conn, worker, "q", 10); len(got) != 1 {
		t.Errorf("claimed %v, want the single job", got)
	}
}

// TestArraysAreLists: parallel arrays must be lists: an array with another lower bound, two dimensions or a null is refused by name.
func TestArraysAreLists(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 2)
	got := mustClaim(t, conn, worker, "q", 2)
	for _, f := range []struct {
		call   string
		arrays []string // valid ones
		filled int      // the first of them, which must not contain nulls
		names  []string
	}{
		{call: fmt.Sprintf(`weir._record(%d, %%s)`, worker), filled: 4, names: []string{"lanes", "seqs", "sizes", "ids", "outcomes", "errors", "outputs", "run_at"},
			arrays: []string{`{4,4}::integer[]`, `{1,1}::bigint[]`, `{1,1}::integer[]`, `{1,2}::bigint[]`, `{failed,failed}::text[]`, `{a,b}::text[]`, `{a,b}::text[]`, `{2020-01-01,2020-01-01}::timestamptz[]`}},
		{call: fmt.Sprintf(`weir._reconcile(%d, %%s)`, worker), filled: 4, names: []string{"lanes", "seqs", "sizes", "ids"},
			arrays: []string{`{4,4}::integer[]`, `{1,1}::bigint[]`, `{1,1}::integer[]`, `{1,2}::bigint[]`}},
		{call: fmt.Sprintf(`weir._claim(%d, %%s)`, worker), filled: 2, names: []string{"queues", "limits"}, arrays: []string{`{q,q}::text[]`, `{1,1}::integer[]`}},
		{call: `weir.enqueue_many(%s)`, names: []string{"queue", "kind", "args", "priority", "run_at", "max_attempts", "meta"},
			arrays: []string{`{q,q}::text[]`, `{k,k}::text[]`, `{"{}","{}"}::jsonb[]`, `{1,2}::integer[]`, `{2020-01-01,2020-01-01}::timestamptz[]`, `{1,2}::integer[]`, `{"{}","{}"}::jsonb[]`}},
		{call: `weir.publish_many(%s)`, names: []string{"channels", "payloads"}, arrays: []string{`{c,d}::text[]`, `{c,d}::text[]`}},
	} {
		for i, name := range f.names {
			for _, shape := range []struct{ of, is string }{{"[0:1]=%s", "[0:1]"}, {"[2:3]=%s", "[2:3]"}, {"{%s}", "[1:1][1:2]"}, {"null", "a null in " + name}} {
				if shape.of == "null" && i >= f.filled {
					continue
				}
				var args []string
				for k, good := range f.arrays {
					literal, kind, _ := strings.Cut(good, "::")
					if k == i && shape.of == "null" {
						literal = "{NULL" + literal[strings.Index(literal, ","):]
					} else if k == i {
						literal = fmt.Sprintf(shape.of, literal)
					}
					args = append(args, "'"+literal+"'::"+kind)
				}
				sql := `SELECT ` + fmt.Sprintf(f.call, strings.Join(args, ", "))
				_, err := conn.Exec(t.Context(), sql)
				if sqlstate(err) != "22023" || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), shape.is) {
					t.Errorf("%s: %v, want SQLSTATE 22023 with %s and %s", sql, err, name, shape.is)
				}
			}
		}
	}
	if n := value[int](t, conn, `SELECT (SELECT count(*) FROM weir.result) + (SELECT count(*) FROM weir.message) + (SELECT count(*) FROM weir.job)`); n != len(got) {
		t.Errorf("%d rows were left behind", n-len(got))
	}
}

// TestWhatOthersWaitForIsNotHeldForLong: a transaction left open after a call whose locks others wait for is ended by the server soon; a stricter
// setting of the role stays, and the setting ends with the transaction.
func TestWhatOthersWaitForIsNotHeldForLong(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	for _, own := range []struct{ is, becomes string }{{"0", "10s"}, {"1h", "10s"}, {"700ms", "700ms"}} {
		exec(t, conn, `SELECT set_config('idle_in_transaction_session_timeout', $1, false)`, own.is)
		for _, call := range []string{"_promote()", "_rotate()", "_rotate_later()", "_rotate_messages()", "_rescue()", "_resurvey()", "_count_minutes()", "_tidy()", "rebase()", "_claim($1, '{q}', '{1}')", "heartbeat($1)", "_reconcile($1, '{}', '{}', '{}', '{}')",
			"_record($1, '{}', '{}', '{}', '{}')", "_fence($1); SELECT weir._settle($1)", "_relay_reached('r', 'p', after => '')"} {
			exec(t, conn, `BEGIN`)
			for sql := range strings.SplitSeq(strings.ReplaceAll(call, "$1", fmt.Sprint(worker)), ";") {
				exec(t, conn, `SELECT weir.`+strings.TrimPrefix(strings.TrimSpace(sql), `SELECT weir.`))
			}
			if now := value[string](t, conn, `SHOW idle_in_transaction_session_timeout`); now != own.becomes {
				t.Errorf("after %s, a session may be idle for %s, want %s", call, now, own.becomes)
			}
			exec(t, conn, `ROLLBACK`)
			if now := value[string](t, conn, `SHOW idle_in_transaction_session_timeout`); now != own.is {
				t.Errorf("after %s, the setting is %s, want %s", call, now, own.is)
			}
		}
	}
}

// TestNullMeansTheDefault: an optional argument that is NULL has its default.
func TestNullMeansTheDefault(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, call := range []string{
		`SELECT weir.enqueue('q', 'k', NULL, NULL, NULL, NULL, NULL, NULL)`,
		`SELECT weir.enqueue('q', 'k', NULL, NULL, now() + interval '1 hour')`,
		`SELECT weir.enqueue_many(ARRAY['q'], ARRAY['k'], NULL, NULL, NULL, NULL, NULL, NULL)`,
		`SELECT weir.enqueue_many(ARRAY['q', 'q'], ARRAY['k', 'k'], ARRAY[NULL, NULL]::jsonb[], ARRAY[NULL, NULL]::integer[], ARRAY[NULL, now() + interval '1 hour'],
			ARRAY[NULL, NULL]::integer[], ARRAY[NULL, NULL]::jsonb[], ARRAY[NULL, NULL]::text[])`,
		`SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "args": null, "priority": null, "run_at": null, "max_attempts": null, "meta": null, "key": null}]')`,
	} {
		exec(t, conn, call)
	}
	if got := column[string](t, conn, `SELECT DISTINCT concat_ws(' ', args, priority, max_attempts, coalesce(meta::text, 'none')) FROM weir.jobs_page(), jsonb_to_recordset(jobs)
		j(args jsonb, priority integer, max_attempts integer, meta jsonb)`); !slices.Equal(got, []string{"{} 2 25 none"}) {
		t.Errorf("the jobs are %v", got)
	}
	for _, c := range []struct{ null, none string }{
		{`SELECT count(*) FROM weir.jobs('available', NULL, NULL)`, `SELECT count(*) FROM weir.jobs('available')`},
		{`SELECT jobs::text FROM weir.jobs_page(NULL, NULL, NULL, NULL, NULL, NULL)`, `SELECT jobs::text FROM weir.jobs_page()`},
		{`SELECT weir.set_schedule('s', '@daily', 'q', 'k', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)`, `SELECT 'created'`},
		{`SELECT 'unchanged'`, `SELECT weir.set_schedule('s', '@daily', 'q', 'k')`},
		{`SELECT name FROM weir.schedules(NULL, NULL, NULL)`, `SELECT name FROM weir.schedules()`},
		{`SELECT count(*) FROM weir.next_times('@daily', NULL, NULL, NULL)`, `SELECT count(*) FROM weir.next_times('@daily')`},
		{`SELECT retried || ' ' || (next IS NULL) FROM weir.retry_where('q', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)`, `SELECT retried || ' ' || (next IS NULL) FROM weir.retry_where('q')`},
		{`SELECT duplicate FROM weir.enqueue_unique('u', 'k', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)`, `SELECT false`},
		{`SELECT true`, `SELECT duplicate FROM weir.enqueue_unique('u', 'k')`},
	} {
		if got, want := value[string](t, conn, `SELECT x::text FROM (`+c.null+`) q(x)`), value[string](t, conn, `SELECT x::text FROM (`+c.none+`) q(x)`); got != want {
			t.Errorf("%s: %s, want %s", c.null, got, want)
		}
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, `SELECT weir.enqueue('q', 'k')`)
	if n := value[int](t, tx, `SELECT count(*) FROM weir.enqueued(NULL)`); n != 1 {
		t.Errorf("weir.enqueued(NULL) shows %d jobs, want 1", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'], NULL)`)
	exec(t, conn, `SELECT weir.heartbeat($1, NULL)`, worker)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.take($1, NULL, NULL, NULL, NULL, NULL, '0')`, worker); n == 0 {
		t.Error("a take with NULL limits takes nothing")
	}

	newest := value[int64](t, conn, `SELECT weir.newest_tick()`)
	exec(t, conn, `SELECT weir.publish('c', NULL, NULL), weir.publish_bytes('c', NULL, NULL), weir.publish_many(ARRAY['c'], ARRAY[NULL], NULL)`)
	exec(t, conn, `SELECT weir._await_tick($1)`, newest) // cuts
	tick := value[int64](t, conn, `SELECT seqs[1] FROM weir.ticks($1, NULL, NULL, NULL, NULL)`, newest)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.read($1, NULL, NULL, NULL)`, tick); n != 3 {
		t.Errorf("weir.read with NULLs returns %d messages, want 3", n)
	}
}
