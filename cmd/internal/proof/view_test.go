package proof

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTheQueryForKeysInUseFindsEveryJob: weir.keys_in_use finds the one job that is encrypted with an old key behind thousands of others, whatever its state is.
func TestTheQueryForKeysInUseFindsEveryJob(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "r")
	const others = `SELECT weir.enqueue_many(array_fill($1::text, ARRAY[3000]), array_fill('k'::text, ARRAY[3000]), array_fill('{"weir.encrypted": {"key": "new"}}'::jsonb, ARRAY[3000]))`
	check := func(when, place string) {
		t.Helper()
		if got := column[string](t, conn, `SELECT place || ' ' || n FROM weir.keys_in_use() WHERE key = 'old'`); !slices.Equal(got, []string{place + " 1"}) {
			t.Errorf("%s, the old key is in use in %q, want one of the %s", when, got, place)
		}
	}
	exec(t, conn, others, "q")
	id := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', '{"weir.encrypted": {"key": "old"}}', priority => 4)`)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.available_jobs`); n != 3001 {
		t.Errorf("of 3,001 jobs, the view has %d", n)
	}
	check("while its job waits", "jobs")
	all := claimAll(t, conn, worker, "q")
	check("while it runs", "jobs")
	old := all[slices.IndexFunc(all, func(a attempt) bool { return a.ID == id })]
	exec(t, conn, others, "r")
	if refused, err := record(t.Context(), conn, worker, []attempt{old}, "retried", nil); err != nil || len(refused) > 0 {
		t.Fatal(refused, err)
	}
	check("while it waits to be tried again", "jobs")
	exec(t, conn, `SELECT weir.cancel($1)`, id)
	check("once it is cancelled", "cancelled jobs")
}

// TestKeysInUseAreFoundInEveryPlace: weir.keys_in_use finds the key of everything that may still be read, and nothing of what will not be.
func TestKeysInUseAreFoundInEveryPlace(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	check := func(when string, want ...string) {
		t.Helper()
		if got := column[string](t, conn, `SELECT place || ' ' || key || ' ' || n FROM weir.keys_in_use() ORDER BY 1`); !slices.Equal(got, want) {
			t.Errorf("%s, the keys in use are\n%q, want\n%q", when, got, want)
		}
	}
	end := func(a attempt, end string) {
		t.Helper()
		if refused := column[string](t, conn, `SELECT refusal FROM weir.record($1, $2)`, worker, fmt.Sprintf(`[{"token": %q, %s}]`, a.token(), end)); len(refused) > 0 {
			t.Fatal(refused)
		}
	}
	claim := func() attempt { t.Helper(); return mustClaim(t, conn, worker, "q", 1)[0] }
	text := func(key string) string {
		return fmt.Sprintf(`"{\"weir.encrypted\":{\"key\":\"%s\",\"data\":\"AAAA\"}}"`, key)
	}

	exec(t, conn, `SELECT weir.set_schedule('s', '@yearly', 'q', 'k', '{"weir.encrypted": {"key": "a"}}'), weir.set_schedule('plain', '@yearly', 'q', 'k', '{"weir": {"key": "none"}}')`)
	check("with a schedule", "schedules a 1")
	exec(t, conn, `SELECT weir.drop_schedule('s')`)

	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	a := claim()
	if refused := report(t, conn, worker, a, `"checkpoint": {"weir.encrypted": {"key": "b", "data": ""}}, "message": `+text("c")+`, "log": [{"text": `+text("d")+`}, {"text": `+text("d")+`}, {"text": "plain"}]`); len(refused) > 0 {
		t.Fatal(refused)
	}
	check("while an attempt runs that has reported", "checkpoints b 1", "log lines d 1", "messages c 1")
	end(a, `"outcome": "failed", "final": true, "error": `+text("e"))
	check("once it has failed", "checkpoints b 1", "errors and outputs e 1", "log lines d 1", "messages c 1")
	exec(t, conn, `SELECT weir.retry($1)`, a.ID)
	a = claim()
	if refused := report(t, conn, worker, a, `"checkpoint": {"weir.encrypted": {"key": "f", "data": ""}}, "message": "plain"`); len(refused) > 0 {
		t.Fatal(refused)
	}
	check("once it has reported again", "checkpoints f 1", "errors and outputs e 1", "log lines d 1")
	end(a, `"outcome": "completed"`)
	check("once it has completed")

	flow := value[int64](t, conn, `SELECT weir.flow('f', on_done => '{"queue": "q", "kind": "k", "args": {"weir.encrypted": {"key": "g"}}}', on_success => '{"queue": "q", "kind": "k", "args": {"weir.encrypted": {"key": "h"}}}')`)
	exec(t, conn, `SELECT weir.add_tasks($1, '[{"task": "1", "queue": "q", "kind": "k"}, {"task": "2", "queue": "q", "kind": "k", "after": ["1"], "args": {"weir.encrypted": {"key": "i"}}}]')`, flow)
	exec(t, conn, `SELECT weir.seal($1)`, flow)
	check("with a flow", "flows g 1", "flows h 1", "tasks i 1")
	foldAll(t, conn)
	a = claim()
	end(a, `"outcome": "failed", "final": true`)
	foldAll(t, conn)
	check("once it has failed", "flows g 1", "flows h 1", "jobs g 1", "tasks i 1")
	end(claim(), `"outcome": "completed"`) // on_done
	exec(t, conn, `SELECT weir.retry_flow($1)`, flow)
	foldAll(t, conn)
	end(claim(), `"outcome": "completed"`)
	foldAll(t, conn)
	check("once its task has started", "flows g 1", "flows h 1", "jobs i 1")
	end(claim(), `"outcome": "completed", "output": `+text("j"))
	foldAll(t, conn)
	check("once it has succeeded", "flow outputs j 1", "jobs g 1", "jobs h 1")
	exec(t, conn, `UPDATE weir.fold SET failed = 1, fired_at = now() - interval '1 year'`)
	check("once it is forgotten", "jobs g 1", "jobs h 1")
}

// TestAViewReadsOnlyWhatIsAskedFor: the first rows of a view cost about the same, however many jobs are behind them.
func TestAViewReadsOnlyWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	const few = `SELECT * FROM weir.available_jobs LIMIT 10`
	enqueueN(t, conn, "q", 100)
	small := settled(t, conn, few)
	enqueueN(t, conn, "q", 5000)
	large := settled(t, conn, few)
	t.Logf("ten rows read %d blocks of 100 jobs, and %d of 5,100", small, large)
	if large > small*3/2+100 {
		t.Errorf("ten rows read %d blocks of 100 jobs, and %d of 5,100", small, large)
	}
}
