package proof

import (
	"slices"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAJobMayHaveAKeyHoweverItIsEnqueued: each way to enqueue takes a key, which a worker gets with the job, after a failed attempt as well.
func TestAJobMayHaveAKeyHoweverItIsEnqueued(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, enqueue string }{
		{"enqueue", `SELECT weir.enqueue('q', 'k', priority => 3, key => 'acme')`},
		{"enqueue, scheduled", `SELECT weir.enqueue('q', 'k', priority => 3, key => 'acme', run_at => now() + interval '10 milliseconds')`},
		{"enqueue_many with arrays", `SELECT weir.enqueue_many(ARRAY['q'], ARRAY['k'], priority => ARRAY[3], key => ARRAY['acme'])`},
		{"enqueue_many with JSON", `SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "priority": 3, "key": "acme"}]')`},
		{"enqueue_many with JSON, unique", `SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "priority": 3, "key": "acme", "unique": {"key": "once"}}]')`},
		{"enqueue_many with JSON, unique by args", `SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "priority": 3, "key": "acme", "unique": true}]')`},
		{"enqueue_unique", `SELECT weir.enqueue_unique('q', 'k', priority => 3, key => 'acme')`},
		{"_enqueue_unique_many, one by one", `SELECT weir._enqueue_unique_many('[{"queue": "q", "kind": "k", "priority": 3, "key": "acme", "unique_key": "once", "wait": true}]')`},
		{"run_schedule", `SELECT weir.run_schedule('s')`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			exec(t, conn, `SELECT weir.set_schedule('s', '@yearly', 'q', 'k', priority => 3, key => 'acme')`)
			exec(t, conn, c.enqueue)
			if n := value[int](t, conn, `SELECT count(*) FROM (SELECT lane, key FROM weir.job UNION ALL SELECT lane, key FROM weir.later WHERE id > 0) j
				WHERE key = 'acme' AND lane = (SELECT id::bigint << 39 FROM weir.queue) + weir._key_bits('acme') + 2`); n != 1 {
				t.Errorf("%d jobs are in the lane of their key, want 1", n)
			}
			worker := startWorker(t, conn, "q")
			for attempt := range 2 {
				var all []taken
				until(t, "a job is taken", func() bool {
					exec(t, conn, `SELECT weir._promote()`)
					all = take(t, conn, worker, atOnce(10))
					return len(all) > 0
				})
				if len(all) != 1 || all[0].Key == nil || *all[0].Key != "acme" || all[0].Priority == nil || *all[0].Priority != 3 {
					t.Fatalf("attempt %d: taken is %+v, want one job of acme with priority 3", attempt+1, all)
				}
				if refused := recordEnds(t, conn, worker, ends{{"token": all[0].Token, "outcome": "failed", "error": "no", "delay": 0.001}}); len(refused) > 0 {
					t.Fatalf("refused: %v", refused)
				}
			}
		})
	}
}

// TestAKeyIsNoUniqueKey: jobs of one key are no duplicates of each other, and duplicates may have different keys.
func TestAKeyIsNoUniqueKey(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	ids := value[[]int64](t, conn, `SELECT weir.enqueue_many('[{"queue": "q", "kind": "k", "key": "a", "unique": {"key": "one"}}, {"queue": "q", "kind": "k", "key": "a", "unique": {"key": "two"}},
		{"queue": "q", "kind": "k", "key": "b", "unique": {"key": "one"}}, {"queue": "q", "kind": "k", "unique": {"key": "three"}}]'::jsonb)`)
	if ids[0] == ids[1] || ids[2] != ids[0] {
		t.Errorf("the ids are %v: the first and the third are duplicates, the second is none", ids)
	}
	if got := column[string](t, conn, `SELECT coalesce(key, 'none') FROM weir.job ORDER BY id`); !slices.Equal(got, []string{"a", "a", "none"}) {
		t.Errorf("the keys are %v, want a, a and none", got)
	}
}

// TestKeysThatAreNoneAreRefused: a key has 1 to 200 characters, wherever it is given.
func TestKeysThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, call := range []string{
		`SELECT weir.enqueue('q', 'k', key => $1)`,
		`SELECT weir.enqueue_many(ARRAY['q'], ARRAY['k'], key => ARRAY[$1])`,
		`SELECT weir.enqueue_many(jsonb_build_array(jsonb_build_object('queue', 'q', 'kind', 'k', 'key', $1::text)))`,
		`SELECT weir.enqueue_many(jsonb_build_array(jsonb_build_object('queue', 'q', 'kind', 'k', 'key', $1::text, 'unique', true)))`,
		`SELECT weir.enqueue_unique('q', 'k', key => $1)`,
		`SELECT weir.set_schedule('s', '@daily', 'q', 'k', key => $1)`,
		`SELECT weir.set_weight('q', $1, 2)`,
	} {
		for _, key := range []string{"", strings.Repeat("x", 201)} {
			if _, err := conn.Exec(t.Context(), call, key); sqlstate(err) != "22023" {
				t.Errorf("%s with a key of %d characters: %v, want 22023", call, len(key), err)
			}
		}
	}
	if n := value[int](t, conn, `SELECT (SELECT count(*) FROM weir.job) + (SELECT count(*) FROM weir.with_keys) + (SELECT count(*) FROM weir.schedule)`); n != 0 {
		t.Errorf("%d rows are left of what was refused", n)
	}
}

// TestAScheduleWithAnotherKeyHasChanged: the key is part of what a schedule declares.
func TestAScheduleWithAnotherKeyHasChanged(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, c := range []struct{ key, answer string }{{`'a'`, "created"}, {`'a'`, "unchanged"}, {`'b'`, "changed"}, {`NULL`, "changed"}} {
		if got := value[string](t, conn, `SELECT weir.set_schedule('s', '@daily', 'q', 'k', key => `+c.key+`)`); got != c.answer {
			t.Errorf("with the key %s, set_schedule answers %s, want %s", c.key, got, c.answer)
		}
		if got := value[string](t, conn, `SELECT coalesce(quote_literal(key), 'NULL') FROM weir.schedules()`); got != c.key {
			t.Errorf("the schedule's key is %s, want %s", got, c.key)
		}
	}
}

// TestWeightsAreKept: a weight is what was set last; the same again writes nothing, and 1 or NULL removes it.
func TestWeightsAreKept(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	weights := func() []string {
		return column[string](t, conn, `SELECT concat_ws(' ', queue, key, weight) FROM weir.weights()`)
	}
	exec(t, conn, `SELECT weir.set_weight('r', 'b', 1000), weir.set_weight('q', 'b', 0.01), weir.set_weight('q', 'a', 2)`)
	if got := weights(); !slices.Equal(got, []string{"q a 2", "q b 0.01", "r b 1000"}) {
		t.Errorf("the weights are %v", got)
	}
	if value[*string](t, conn, `SELECT pg_current_xact_id_if_assigned()::text FROM weir.set_weight('q', 'a', 2)`) != nil {
		t.Error("the same weight again has written something")
	}
	exec(t, conn, `SELECT weir.set_weight('q', 'a', 3), weir.set_weight('q', 'b', 1), weir.set_weight('r', 'b', NULL), weir.set_weight('r', 'c', NULL)`)
	if got := weights(); !slices.Equal(got, []string{"q a 3"}) {
		t.Errorf("the weights are %v", got)
	}
	for _, args := range []string{`'q', 'a', 0`, `'q', 'a', 1000.1`, `'q', 'a', 'NaN'`, `'q', NULL, 2`, `NULL, 'a', 2`, `'', 'a', 2`} {
		if _, err := conn.Exec(t.Context(), `SELECT weir.set_weight(`+args+`)`); sqlstate(err) != "22023" {
			t.Errorf("set_weight(%s): %v, want 22023", args, err)
		}
	}
}

// TestLimitsOfKeysAreListed: weir.limits has a row for the limits of a queue, and one for those of its keys; each is cleared on its own.
func TestLimitsOfKeysAreListed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	limits := func() []string {
		return column[string](t, conn, `SELECT concat_ws(' ', queue, CASE WHEN per_key THEN 'per key' END, CASE WHEN in_order THEN 'in order' END, running, rate, burst, running_now IS NULL) FROM weir.limits()`)
	}
	exec(t, conn, `SELECT weir.set_limit('q', 20)`)
	exec(t, conn, `SELECT weir.set_limit('q', running => 1, rate => 5, burst => 2, per_key => true, in_order => true)`)
	exec(t, conn, `SELECT weir.set_limit('r', running => 2, per_key => true)`)
	if got := limits(); !slices.Equal(got, []string{"q 20 f", "q per key in order 1 5 2 t", "r per key 2 t"}) {
		t.Errorf("the limits are %q", got)
	}
	exec(t, conn, `SELECT weir.clear_limit('q', false)`)
	if got := limits(); !slices.Equal(got, []string{"q per key in order 1 5 2 t", "r per key 2 t"}) {
		t.Errorf("without those of q as a whole, the limits are %q", got)
	}
	exec(t, conn, `SELECT weir.clear_limit('q', true)`)
	exec(t, conn, `SELECT weir.clear_limit('r')`)
	if got := limits(); len(got) != 0 {
		t.Errorf("once all are cleared, the limits are %q", got)
	}
}
