package doctor_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

func TestWeirsOwnTroublesAreNamed(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn,
		// A killed worker, and no other to rescue its jobs.
		"SELECT weir.enqueue('mail', 'welcome', '{}')",
		"SELECT weir._start('killed', ARRAY['mail'], interval '1 second')", "SELECT weir._claim(max(id), ARRAY['mail'], ARRAY[10]) FROM weir.worker",
		// A scheduled job, and no worker to promote it.
		"SELECT weir.enqueue('mail', 'reminder', '{}', run_at => now() + interval '1 second')",
		// A backlog without workers.
		"SELECT weir.enqueue_many((SELECT jsonb_agg(jsonb_build_object('queue', 'bulk', 'kind', 'k', 'args', '{}'::jsonb)) FROM generate_series(1, 1500)))",
		"SELECT weir.set('completed_retention', '1 second')")
	until(t, conn, "SELECT clock_timestamp() - max(at) > interval '1.1 seconds' FROM weir.segment")
	// A session enqueues and does not commit. Then the segment is made to look closed long ago.
	holder := connect(t, url)
	execute(t, holder, "SET application_name = 'forgetful'", "BEGIN", "SELECT weir.enqueue('mail', 'welcome', '{}')")
	execute(t, conn, "SELECT weir._rotate()", "UPDATE weir.segment SET at = at - interval '2 minutes'")
	until(t, conn, "SELECT min(run_at) < clock_timestamp() - interval '3.5 seconds' FROM weir.later")

	r := examine(t, url, time.Second)
	f := expect(t, r, doctor.WorkerDead, doctor.Critical)
	expectFact(t, f, "(killed): last heartbeat at", "1 job running")
	f = expectDownstream(t, r, doctor.PromotionLate)
	expectFact(t, f, "1 job is due")
	f = expectDownstream(t, r, doctor.SegmentStuck)
	expectFact(t, f, fmt.Sprintf("pid %d (forgetful", holder.PgConn().PID()))
	f, ok := r.Find(doctor.LaneBacklog)
	if !ok || f.Severity != doctor.Warning {
		t.Errorf("the backlog is not named:\n%s", describe(r))
	}
	expectFact(t, f, "bulk: 1,500 jobs waiting")
	if f.DownstreamOf != "" {
		t.Errorf("the backlog of a queue that no dead worker worked is a consequence of %s", f.DownstreamOf)
	}
}

// TestAQueueAtItsLimitIsNamedWithTheSilentWorkersThatHoldIt: slots that a dead worker holds until it is fenced are named as such; and a backlog at a
// limit is no failure of its workers.
func TestAQueueAtItsLimitIsNamedWithTheSilentWorkersThatHoldIt(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, "SELECT weir.set_limit('mail', running => 2)",
		"SELECT weir.enqueue_many((SELECT jsonb_agg(jsonb_build_object('queue', 'mail', 'kind', 'k', 'args', '{}'::jsonb)) FROM generate_series(1, 1500)))",
		"SELECT weir._start('killed', ARRAY['mail'], interval '1 second')",
		"SELECT weir._claim((SELECT max(id) FROM weir.worker), ARRAY['mail'], ARRAY[10])",
		"SELECT weir.heartbeat((SELECT max(id) FROM weir.worker), 2)",
		"SELECT weir._start('alive', ARRAY['mail'], interval '5 minutes')")
	r := examine(t, url, time.Second)
	f, ok := r.Find(doctor.WorkerDead)
	if !ok {
		t.Fatalf("the silent worker is not named:\n%s", describe(r))
	}
	expectFact(t, f, "queue mail is at its limit, 2 of 2 running, and silent workers hold 2 of these slots")
	if f, ok := r.Find(doctor.LaneBacklog); ok {
		t.Errorf("a backlog at a limit, which does not grow, is a finding: %s", f.Summary)
	}
}

// TestJobsThatNoWorkerWorksAreNamed: even one job that has waited for some minutes in a queue without a worker is a finding. Queues that are paused, whose
// jobs have just arrived or are not due, whose worker has claimed recently, or whose jobs were all cancelled, are none.
func TestJobsThatNoWorkerWorksAreNamed(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn,
		"SELECT weir.enqueue(q, 'k') FROM unnest(ARRAY['maill', 'maill', 'paused', 'restarted', 'restarted', 'worked']) q", "SELECT weir.pause('paused')",
		"SELECT weir.enqueue_many(array_agg('gone'::text), array_agg('k'::text)) FROM generate_series(1, 1500)", "SELECT weir.cancel_where('gone')",
		"SELECT weir.enqueue('typo', 'k', run_at => now() + interval '1 hour')",
		"SELECT weir._start('w', ARRAY['restarted'], interval '1 minute')", "SELECT weir._claim(max(id), ARRAY['restarted'], ARRAY[1]) FROM weir.worker", "SELECT weir.stop(max(id)) FROM weir.worker",
		"SELECT weir._start('alive', ARRAY['worked'], interval '5 minutes')",
		"UPDATE weir.job SET enqueued_at = enqueued_at - interval '13 minutes'",
		"SELECT weir.enqueue('new', 'k')")
	r := examine(t, url, time.Second)
	f, ok := r.Find(doctor.LaneBacklog)
	if !ok || f.Severity != doctor.Warning || f.Summary != "The queue maill has 2 jobs waiting, and no worker works it." || len(r.Findings) != 1 {
		t.Fatalf("not only the two jobs of maill are named:\n%s", describe(r))
	}
	expectFact(t, f, "maill: 2 jobs waiting, the first for 13 min; no worker; last claim never")
}

// TestAllQueuesWithABacklogAreNamed: of many queues with a backlog three are findings, and the last names the others.
func TestAllQueuesWithABacklogAreNamed(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, "SELECT weir.enqueue('q' || n, 'k') FROM generate_series(1, 5) n, generate_series(1, 1000 + n)") // fewest in q1
	r := examine(t, url, time.Second)
	if len(r.Findings) != 3 {
		t.Fatalf("want three findings:\n%s", describe(r))
	}
	expectFact(t, r.Findings[2], "2 queues with a backlog besides these: q2, q1")
}

// TestAQueueWhoseJobsCannotBeListedHidesNoOther: if listing the jobs of one queue fails, the doctor says which one and what to do, and checks the others.
func TestAQueueWhoseJobsCannotBeListedHidesNoOther(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn,
		"SELECT weir.enqueue_many(array_fill('slow'::text, ARRAY[2000]), array_fill('k'::text, ARRAY[2000]), array_fill('{}'::jsonb, ARRAY[2000]))",
		"SELECT weir.enqueue_many(array_fill('bulk'::text, ARRAY[1500]), array_fill('k'::text, ARRAY[1500]), array_fill('{}'::jsonb, ARRAY[1500]))",
		"CREATE SCHEMA real",
		"ALTER FUNCTION weir.jobs_page SET SCHEMA real",
		`CREATE FUNCTION weir.jobs_page(states text[] DEFAULT NULL, queue text DEFAULT NULL, kinds text[] DEFAULT NULL, meta jsonb DEFAULT NULL, after text DEFAULT NULL, max_rows integer DEFAULT 100,
		   key text DEFAULT NULL, OUT jobs jsonb, OUT next text) LANGUAGE plpgsql AS $$
		 BEGIN
		   IF queue = 'slow' THEN
		     RAISE query_canceled USING MESSAGE = 'canceling statement due to statement timeout';
		   END IF;
		   SELECT p.* INTO jobs, next FROM real.jobs_page($1, $2, $3, $4, $5, $6, $7) p;
		 END $$`)
	r := examine(t, url, time.Second)
	f, ok := r.Find(doctor.LaneBacklog)
	if !ok || f.Summary != "The queue bulk has 1,500 jobs waiting, and no worker works it." {
		t.Errorf("the other queue is not named:\n%s", describe(r))
	}
	unseen := strings.Join(r.Unseen, "\n")
	for _, want := range []string{"jobs of the queue slow, which no worker works: ", "statement timeout", "weir jobs list --queue slow"} {
		if !strings.Contains(unseen, want) {
			t.Errorf("what was not seen is %q, want %q in it", unseen, want)
		}
	}
}

// TestWhatIsCancelledKeepsNoCheckOfQueuesFromItsEnd: however many waiting jobs a filter has cancelled, a bounded part of them is read, and the queues behind are checked.
func TestWhatIsCancelledKeepsNoCheckOfQueuesFromItsEnd(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		execute(t, conn, "SELECT weir.enqueue_many(array_fill('gone'::text, ARRAY[10000]), array_fill('k'::text, ARRAY[10000]), array_fill('{}'::jsonb, ARRAY[10000]))")
	}
	execute(t, conn, "SELECT weir.cancel_where('gone')",
		"SELECT weir.enqueue_many(array_fill('bulk'::text, ARRAY[1000]), array_fill('k'::text, ARRAY[1000]), array_fill('{}'::jsonb, ARRAY[1000]))")
	r := examine(t, url, time.Second)
	f, ok := r.Find(doctor.LaneBacklog)
	if !ok || f.Summary != "The queue bulk has 1,000 jobs waiting, and no worker works it." {
		t.Errorf("the queue behind the cancelled jobs is not named:\n%s", describe(r))
	}
	if unseen := strings.Join(r.Unseen, "\n"); strings.Contains(unseen, "timeout") || strings.Contains(unseen, "the check of") {
		t.Errorf("what was not seen is %q", unseen)
	}
}

// TestNoWorkerIsNotAllWorkersAlive: without any worker, the doctor does not say that all are alive.
func TestNoWorkerIsNotAllWorkersAlive(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, "SELECT weir.enqueue('q', 'k')")
	if well := fmt.Sprint(examine(t, url, time.Second).Well); strings.Contains(well, "all alive") || !strings.Contains(well, "No worker of Weir runs") || !strings.Contains(well, "1 queue: 1 job waits, ") {
		t.Error(well)
	}
}

// TestReaderOfASegmentIsNamed: a transaction that has only read also holds a segment, and the doctor names it and how long it has been open.
func TestReaderOfASegmentIsNamed(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn, reader := connect(t, url), connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, "SELECT weir.enqueue('mail', 'welcome', '{}')", "SELECT weir.set('completed_retention', '1 second')")
	until(t, conn, "SELECT clock_timestamp() - max(at) > interval '1.1 seconds' FROM weir.segment")
	execute(t, reader, "SET application_name = 'dump'", "BEGIN ISOLATION LEVEL REPEATABLE READ", "LOCK TABLE weir.job, weir.batch, weir.result IN ACCESS SHARE MODE")
	execute(t, conn, "SELECT weir._rotate()", "UPDATE weir.segment SET at = at - interval '2 minutes'")
	until(t, conn, fmt.Sprintf("SELECT clock_timestamp() - xact_start > interval '1.1 seconds' FROM pg_stat_activity WHERE pid = %d", reader.PgConn().PID()))
	r := examine(t, url, time.Second)
	f, ok := r.Find(doctor.SegmentStuck)
	if !ok || f.Severity != doctor.Warning {
		t.Errorf("the held segment is not named:\n%s", describe(r))
	}
	expectFact(t, f, fmt.Sprintf("pid %d (dump, idle in transaction) has read it", reader.PgConn().PID()))
}

func expectDownstream(t *testing.T, r doctor.Report, code doctor.Code) doctor.Finding {
	t.Helper()
	f, ok := r.Find(code)
	if !ok {
		t.Fatalf("%s is not named:\n%s", code, describe(r))
	}
	if f.Severity == doctor.Critical {
		t.Errorf("%s is critical: %s", code, f.Summary)
	}
	return f
}

// TestAClockThatStepsIsNoWorkersSilence: silence is measured by the register that rescuing uses, so a clock step makes no worker silent.
func TestAClockThatStepsIsNoWorkersSilence(t *testing.T) {
	t.Parallel()
	const step = `UPDATE weir.last_word SET at = at + interval '%[1]s'; UPDATE weir.worker SET at = at + interval '%[1]s';
		SELECT setval('weir.watched_at', pg_sequence_last_value('weir.watched_at') + (extract(epoch FROM interval '%[1]s') * 1000)::bigint)`
	t.Run("of the living", func(t *testing.T) {
		t.Parallel()
		url := alone(t)
		conn := connect(t, url)
		if err := schema.Up(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		execute(t, conn, "SELECT weir._start('alive', ARRAY['mail'], interval '1 minute')", "SELECT weir._rescue()", fmt.Sprintf(step, "-1 hour"))
		runSessions(t, url, 1, repeat("SELECT weir._rescue()", "SELECT pg_sleep(0.5)"))
		if f, ok := examine(t, url, time.Second).Find(doctor.WorkerDead); ok {
			t.Errorf("after a step of the clock: %s", f.Summary)
		}
	})
	t.Run("of the dead", func(t *testing.T) {
		t.Parallel()
		url := alone(t)
		conn := connect(t, url)
		if err := schema.Up(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		execute(t, conn, "SELECT weir._start('killed', ARRAY['mail'], interval '1 second')", "SELECT weir._rescue()", fmt.Sprintf(step, "1 hour"))
		expect(t, examine(t, url, time.Second), doctor.WorkerDead, doctor.Critical)
	})
}

// TestAPreparedTransactionThatKeepsAWorkerIsNamed: the doctor names a prepared transaction that keeps a worker from being fenced.
func TestAPreparedTransactionThatKeepsAWorkerIsNamed(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, "SELECT weir._start('prepared', ARRAY['mail'], interval '1 second')",
		"BEGIN", "SELECT weir._record((SELECT id FROM weir.worker), '{}', '{}', '{}', '{}'), pg_current_xact_id()", "PREPARE TRANSACTION 'left over'")
	runSessions(t, url, 1, repeat("SELECT weir._rescue()", "SELECT pg_sleep(0.5)"))
	until(t, conn, "SELECT state = 'silent' FROM weir.workers()")
	f := expect(t, examine(t, url, time.Second), doctor.WorkerDead, doctor.Warning)
	expectFact(t, f, "(prepared): last heartbeat at", "'left over'", "ROLLBACK PREPARED")
	execute(t, conn, "ROLLBACK PREPARED 'left over'")
	until(t, conn, "SELECT state = 'ended' FROM weir.workers()")
}

func TestWeirAtWorkIsWell(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, "SELECT weir._start('w', ARRAY['q'], interval '1 minute')")
	runSessions(t, url, 2, repeat("SELECT weir.enqueue('q', 'k', '{}')"))
	runSessions(t, url, 1, repeat("SELECT * FROM weir._claim((SELECT id FROM weir.worker), ARRAY['q'], ARRAY[1000])", "SELECT pg_sleep(0.02)")) // a worker makes one claim at a time
	runSessions(t, url, 1, repeat("SELECT weir._rotate()", "SELECT weir._promote()", "SELECT pg_sleep(0.2)"))
	r := examine(t, url, 2*time.Second)
	if len(r.Findings) > 0 {
		t.Errorf("findings on a healthy queue:\n%s", describe(r))
	}
}

// TestSlowClaimsAreNamed: slow calls of Weir are reported, whatever their cause, with the settings that may explain them.
func TestSlowClaimsAreNamed(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn,
		"CREATE ROLE app", "ALTER ROLE app SET jit_above_cost = 0",
		"ALTER FUNCTION weir._claim RENAME TO claim_in_time",
		"CREATE FUNCTION weir._claim(worker integer, queues text[], limits integer[]) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(0.5 + random())'", // not in step with the samples
		"CREATE FUNCTION weir._record(worker integer) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(0.5 + random())'")
	runSessions(t, url, 3, repeat("SELECT * FROM weir._claim(1, ARRAY['q'], ARRAY[1000])"))
	runSessions(t, url, 3, repeat("SELECT weir._record($1)")) // as many, so that few samples, too, show both
	f := expect(t, examine(t, url, 5*time.Second), doctor.WeirSlow, doctor.Warning)
	expectFact(t, f, "seen running for 250 ms or longer: ", "weir._claim ", "weir._record ")
	expectFact(t, f, "PgSleep")
	expectFact(t, f, "role app has jit_above_cost = 0")
	expectFact(t, f, "statements of 2 functions may be compiled on each call, for want of SET jit = off: weir._claim(") // not those that become part of their callers' statements
}

// TestAFreshInstallationIsQuickWithJIT: on a server with JIT, as distributions set it up, nothing is said about slow calls of Weir.
func TestAFreshInstallationIsQuickWithJIT(t *testing.T) {
	t.Parallel()
	url := pgtest.JIT(t, map[string]string{"jit": "on"}).URL("postgres")
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, "SELECT weir.enqueue('q', 'k') FROM generate_series(1, 100)")
	for try := 1; ; try++ { // on a busy machine, anything may take long once
		r := examine(t, url, time.Second)
		if !slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return f.Code == doctor.WeirSlow }) {
			return
		} else if try == 3 {
			t.Fatalf("Weir is said to be slow:\n%s", describe(r))
		}
	}
}

// TestKindThatNoWorkerKnowsIsNamed: jobs that workers release for want of a handler are information at first, and a warning once they have waited for long.
func TestKindThatNoWorkerKnowsIsNamed(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[known]) error { return nil })
	worker, err := weir.NewClient(pgtest.Pool(t, url)).NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"mail": 1}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	execute(t, conn, "SELECT weir.enqueue('mail', 'misspelt')")
	until(t, conn, "SELECT EXISTS (SELECT FROM weir.jobs('scheduled') WHERE error LIKE '%no handler%')")
	cancel()
	if err := pgtest.Receive(t, ended, "the worker has stopped"); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, "UPDATE weir.later SET run_at = run_at + interval '1 hour'")
	f := expect(t, examine(t, url, time.Second), doctor.KindUnknown, doctor.Info)
	expectFact(t, f, "kind misspelt in queue mail: 1 job released")
	execute(t, conn, "UPDATE weir.later SET enqueued_at = enqueued_at - interval '11 minutes'")
	expect(t, examine(t, url, time.Second), doctor.KindUnknown, doctor.Warning)

	// Workers in other languages release with another error, and a job that has waited is available.
	execute(t, conn, "SELECT weir.enqueue('sms', 'unheard')")
	execute(t, conn, "SELECT weir.start('other', ARRAY['sms'])")
	execute(t, conn, "SELECT * FROM weir.take((SELECT max(id) FROM weir.worker), kinds => ARRAY['known'])")
	until(t, conn, "SELECT promoted >= 0 AND EXISTS (SELECT FROM weir.jobs('available', 'sms') WHERE error LIKE '%no handler%') FROM weir._promote()")
	expectFact(t, expect(t, examine(t, url, time.Second), doctor.KindUnknown, doctor.Warning), "kind unheard in queue sms: 1 job released")
}

type known struct{}

func (known) Kind() string { return "known" }
