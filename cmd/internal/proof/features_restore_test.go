package proof

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestFeaturesSurviveADump: restored in another cluster, migrated and rebased, unique keys are held by the jobs that held them, schedules fire each due
// time once and paused ones none, checkpoints are read, rules and limits hold, and what was cancelled by filter stays cancelled, unless it was retried; and flows go on.
func TestFeaturesSurviveADump(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	exec(t, conn, `DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
	worker := startWorker(t, conn, "q", "limited")
	exec(t, conn, `SELECT weir.enqueue_unique('q', 'ended', unique_key => 'within', within => '1 hour')`)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
	running := value[int64](t, conn, `SELECT id FROM weir.enqueue_unique('q', 'running', unique_key => 'running')`)
	held := mustClaim(t, conn, worker, "q", 1)[0]
	if refused := report(t, conn, worker, held, `"percent": 40, "checkpoint": {"row": 7}`); len(refused) > 0 {
		t.Fatal(refused)
	}
	waiting := value[int64](t, conn, `SELECT id FROM weir.enqueue_unique('q', 'waiting', unique_key => 'waiting')`)
	scheduled := value[int64](t, conn, `SELECT id FROM weir.enqueue_unique('q', 'scheduled', unique_key => 'scheduled', replace => true, run_at => now() + interval '1 hour')`)
	doomed := value[int64](t, conn, `SELECT weir.enqueue('q', 'doomed')`)
	spared := value[int64](t, conn, `SELECT weir.enqueue('q', 'doomed')`)
	for _, sql := range []string{
		`SELECT weir.cancel_where('q', '{doomed}')`, `SELECT weir.enqueue('limited', 'k') FROM generate_series(1, 5)`,
		`SELECT weir.set_retry_rule('rule', 'snooze', error => 'busy', backoff => '5 minutes')`, `SELECT weir.set('q', 'backoff_form', 'linear')`,
		`SELECT weir.set_schedule('active', 'every 1 second', 'q', 'tick', missed => 'all'), weir.set_schedule('paused', 'every 1 second', 'q', 'tick')`,
		`SELECT weir.pause_schedule('paused')`, `SELECT weir._promote(upto => now() + interval '3 seconds')`, `SELECT weir.set_limit('limited', running => 2)`,
	} {
		exec(t, conn, sql)
	}
	exec(t, conn, `SELECT weir.retry($1)`, spared)
	if n := len(mustClaim(t, conn, worker, "limited", 5)); n != 2 {
		t.Fatalf("%d jobs of the limited queue run, want 2", n)
	}
	flow := newFlow(t, conn, "f")
	addTo(t, conn, flow, 1)
	fold(t, conn)
	exec(t, conn, `SELECT weir.seal($1)`, flow) // not counted before the move
	const fired = `SELECT (meta->>'due') FROM weir.job WHERE meta->>'schedule' = 'active' ORDER BY 1`
	due := column[string](t, conn, fired)
	if len(due) < 2 {
		t.Fatalf("the due times %v were fired", due)
	}
	const settings = `SELECT jsonb_build_array((SELECT jsonb_agg(s) FROM weir.settings() s), (SELECT jsonb_agg(r) FROM weir.retry_rules() r),
		(SELECT jsonb_agg(to_jsonb(s) - 'next_at' ORDER BY s.name) FROM weir.schedules() s), (SELECT jsonb_agg(l) FROM weir.queue_limit l))::text`
	set := value[string](t, conn, settings)

	check := func(t *testing.T, target *pgx.Conn) {
		if err := schema.Up(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		exec(t, target, `SELECT weir.rebase()`)
		if got := value[string](t, target, settings); got != set {
			t.Errorf("settings, rules, schedules and limits are\n%s, and were\n%s", got, set)
		}
		for key, id := range map[string]int64{"running": running, "waiting": waiting, "scheduled": scheduled} {
			if got := value[int64](t, target, `SELECT id FROM weir.enqueue_unique('q', 'another', unique_key => $1) WHERE duplicate`, key); got != id {
				t.Errorf("a job with the key %s is a duplicate of %d, want %d", key, got, id)
			}
		}
		if !value[bool](t, target, `SELECT duplicate FROM weir.enqueue_unique('q', 'another', unique_key => 'within', within => '1 hour')`) {
			t.Error("a key that was used within the time is free")
		}
		wantReported(t, target, "after the move", running, "40", `{"row": 7}`)
		exec(t, target, `SELECT weir._promote(upto => now() + interval '6 seconds')`)
		now := column[string](t, target, fired)
		if slices.Sort(now); len(now) <= len(due) || len(slices.Compact(slices.Clone(now))) != len(now) {
			t.Errorf("fired were %v, and after the move %v", due, now)
		}
		other := startWorker(t, target, "q", "limited")
		started := map[int64]attempt{}
		for _, a := range claimAll(t, target, other, "q") {
			if _, twice := started[a.ID]; twice || a.Kind == "another" || a.ID == doomed || a.ID == scheduled {
				t.Errorf("job %d (%s) starts", a.ID, a.Kind)
			}
			started[a.ID] = a
		}
		for _, id := range []int64{running, waiting, spared} {
			if started[id].ID == 0 {
				t.Errorf("job %d does not start", id)
			}
		}
		if a := started[running]; a.step() == (step{1, 0}) {
			t.Error("an attempt that had a checkpoint passes for one that was never started")
		}
		wantState(t, target, doomed, "cancelled")
		if n := len(mustClaim(t, target, other, "limited", 5)); n != 2 {
			t.Errorf("%d jobs of the limited queue run after the move, want 2", n)
		}
		if n := value[int](t, target, `SELECT count(*) FROM weir.job WHERE meta->>'schedule' = 'paused'`); n != 0 {
			t.Errorf("a paused schedule has fired %d times", n)
		}
	}
	inFlow := func(t *testing.T, target *pgx.Conn) {
		t.Helper()
		fold(t, target)
		wantFlow(t, target, flow, flowState{State: "running", Generation: 1, Jobs: 1, Unfinished: 1})
	}
	t.Run("copied tables", func(t *testing.T) {
		server := pgtest.Server(t, nil)
		target := connect(t, server.URL("postgres"))
		if err := schema.Up(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		copyAll(t, conn, target)
		check(t, target)
		inFlow(t, target)
	})
	t.Run("pg_dump", func(t *testing.T) {
		dump := dumpProgram(t)
		server := pgtest.Server(t, nil)
		run(t, bytes.NewReader(run(t, nil, dump, "--schema=weir", url)), filepath.Join(filepath.Dir(dump), "psql"), "-X", "-q", server.URL("postgres"))
		target := connect(t, server.URL("postgres"))
		check(t, target)
		inFlow(t, target)
	})
}
