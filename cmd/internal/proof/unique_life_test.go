package proof

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestWhoIsKilledHoldsNoKey: neither a worker that is killed while it runs a unique job, be it in the last attempt, nor a client that is killed while
// it enqueues one, leaves its key held.
func TestWhoIsKilledHoldsNoKey(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	kill := func(victim *pgx.Conn) {
		t.Helper()
		pid := victim.PgConn().PID()
		exec(t, conn, `SELECT pg_terminate_backend($1)`, pid)
		until(t, "the session has ended", func() bool {
			return value[int](t, conn, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid) == 0
		})
	}
	for _, c := range []struct{ rule, ends string }{{`unique_key => 'a'`, "completed"}, {`unique_key => 'b', max_attempts => 1`, "failed"}, {`unique_key => 'c', until => 'started'`, "completed"}} {
		id := logUniquely(t, conn, c.rule)
		victim := connect(t, url)
		dead := value[int32](t, victim, `SELECT weir._start('dead', '{q}', '1 second')`)
		wantRuns(t, victim, dead, id)
		kill(victim)
		until(t, "its attempt is rescued", func() bool {
			exec(t, conn, `SELECT weir.heartbeat($1)`, worker)
			exec(t, conn, `SELECT count(*) FROM weir._rescue()`)
			return value[string](t, conn, `SELECT state FROM weir.job_info($1)`, id) != "running"
		})
		mustComplete(t, conn, worker, runnable(t, conn, worker))
		if state := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, id); state != c.ends {
			t.Errorf("job %d (%s) is %s, want %s", id, c.rule, state, c.ends)
		}
		logUniquely(t, conn, c.rule)
		mustComplete(t, conn, worker, runnable(t, conn, worker))
	}
	for _, rule := range []string{`unique_key => 'd'`, `unique_key => 'd', wait => true`} {
		victim := connect(t, url)
		logUniquely(t, begin(t, victim), rule)
		kill(victim)
		id := logUniquely(t, conn, rule)
		mustComplete(t, conn, worker, wantRuns(t, conn, worker, id))
	}
}

// TestACallThatWaitsSeesWhatTheOtherCommits: of two calls with wait, the second waits for the first one's transaction. If that commits, the second is
// told of its job; if it rolls back, the second logs one. A call without wait does not wait for either.
func TestACallThatWaitsSeesWhatTheOtherCommits(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	for _, commits := range []bool{true, false} {
		rule := fmt.Sprintf(`unique_key => '%t'`, commits)
		first := begin(t, connect(t, url))
		id := logUniquely(t, first, rule+`, wait => true`)
		type answer struct {
			id        int64
			duplicate bool
			err       error
		}
		answers := make(chan answer, 1)
		go func() {
			var a answer
			a.err = other.QueryRow(t.Context(), `SELECT id, duplicate FROM weir.enqueue_unique('q', 'k', wait => true, `+rule+`)`).Scan(&a.id, &a.duplicate)
			answers <- a
		}()
		until(t, "the second call waits", func() bool {
			return value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND locktype = 'advisory' AND NOT granted)`, other.PgConn().PID())
		})
		third := begin(t, connect(t, url))
		logUniquely(t, third, rule)
		if err := third.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		end := first.Rollback
		if commits {
			end = first.Commit
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a := pgtest.Receive(t, answers, "the second call returns"); a.err != nil || a.duplicate != commits || (a.id == id) != commits {
			t.Errorf("after job %d, which commits: %t, the second call is answered %+v", id, commits, a)
		}
	}
}

// keysInEveryState logs a unique job with each of the keys waiting, running, retried and scheduled, and returns what is running.
func keysInEveryState(t *testing.T, conn *pgx.Conn, worker int32) []attempt {
	t.Helper()
	retried := logUniquely(t, conn, `unique_key => 'retried'`)
	if _, err := finish(t.Context(), conn, worker, wantRuns(t, conn, worker, retried)[0], "retried", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	running := wantRuns(t, conn, worker, logUniquely(t, conn, `unique_key => 'running'`))
	logUniquely(t, conn, `unique_key => 'waiting'`)
	logUniquely(t, conn, `unique_key => 'scheduled', run_at => now() + interval '1 hour'`)
	return running
}

// wantHeld checks that jobs with these keys are duplicates, or that they are not.
func wantHeld(t *testing.T, conn *pgx.Conn, held bool) {
	t.Helper()
	for _, key := range []string{"retried", "running", "waiting", "scheduled"} {
		tx := begin(t, conn)
		if _, duplicate := uniquely(t, tx, `unique_key => $1`, key); duplicate != held {
			t.Errorf("the key %q is held: %t, want %t", key, duplicate, held)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReclaimKeepsUniqueJobsUnique: unfinished jobs are found by their keys after the segments in which they were logged are reclaimed, and no key is
// held once they have ended.
func TestReclaimKeepsUniqueJobsUnique(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker, filler := startWorker(t, conn, "q"), startWorker(t, conn, "filler")
	running := keysInEveryState(t, conn, worker)
	for range 5 {
		exec(t, conn, `SELECT weir.heartbeat($1), weir.heartbeat($2)`, worker, filler)
		turn(t, conn, filler)
		wantHeld(t, conn, true)
	}
	mustComplete(t, conn, worker, running)
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	mustComplete(t, conn, worker, runnable(t, conn, worker))
	wantHeld(t, conn, false)
}

// TestRebaseKeepsUniqueJobsUnique: so are they after the log was moved to another cluster.
func TestRebaseKeepsUniqueJobsUnique(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	keysInEveryState(t, conn, startWorker(t, conn, "q"))
	moveElsewhere(t, conn)
	exec(t, conn, `SELECT weir.rebase()`)
	wantHeld(t, conn, true)
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	got := runnable(t, conn, worker)
	if len(got) != 4 {
		t.Errorf("jobs %v run after the rebase, want all 4", idsOf(got))
	}
	mustComplete(t, conn, worker, got)
	wantHeld(t, conn, false)
}

// TestWithinATimeOneJobRuns: of jobs that did not see each other, one that was enqueued within the time of another that has run is dropped, although that
// one has ended; one that was enqueued after it runs.
func TestWithinATimeOneJobRuns(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	for _, c := range []struct {
		within  string
		dropped bool
	}{{"1 hour", true}, {"1 microsecond", false}} {
		rule := fmt.Sprintf(`unique_key => '%[1]s', within => '%[1]s'`, c.within)
		late := begin(t, connect(t, url))
		exec(t, late, `SELECT pg_current_xact_id()`)
		id := logUniquely(t, late, rule)
		first := logUniquely(t, conn, rule)
		mustComplete(t, conn, worker, wantRuns(t, conn, worker, first))
		commit(t, late)
		if c.dropped {
			wantRuns(t, conn, worker)
			wantDropped(t, conn, id, fmt.Sprintf("duplicate of job %d", first))
		} else {
			mustComplete(t, conn, worker, wantRuns(t, conn, worker, id))
		}
	}
}

// TestAFailedJobIsRetriedAfterItsTime: a unique job has failed for good, and its time is over. A retry runs, although another of its key was enqueued since
// and runs too; within its time it would be dropped for that one.
func TestAFailedJobIsRetriedAfterItsTime(t *testing.T) {
	t.Parallel()
	const rule = `key => 'a', within => '1 hour'`
	for _, over := range []bool{true, false} {
		t.Run(fmt.Sprint("over ", over), func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			failed := logUniquely(t, conn, rule+`, max_attempts => 1`)
			if _, err := finish(t.Context(), conn, worker, wantRuns(t, conn, worker, failed)[0], "failed", time.Time{}); err != nil {
				t.Fatal(err)
			}
			if id, duplicate := uniquely(t, conn, rule); !duplicate || id != failed {
				t.Fatalf("within the hour, a call answers %d, %v", id, duplicate)
			}
			for _, table := range []string{"job", "failure"} { // as if it had been enqueued 59 minutes ago, or two hours
				exec(t, conn, `UPDATE weir.`+table+` SET enqueued_at = enqueued_at - $1::interval, unique_until = unique_until - $1::interval`, map[bool]string{true: "2 hours", false: "59 minutes"}[over])
			}
			if !over {
				exec(t, conn, `SELECT weir.retry($1)`, failed)
				mustComplete(t, conn, worker, wantRuns(t, conn, worker, failed)) // it stands for itself
				return
			}
			next := logUniquely(t, conn, rule)
			running := wantRuns(t, conn, worker, next)
			exec(t, conn, `SELECT weir.retry($1)`, failed)
			mustComplete(t, conn, worker, wantRuns(t, conn, worker, failed))
			mustComplete(t, conn, worker, running)
			if id, duplicate := uniquely(t, conn, rule); !duplicate || id != next && id != failed {
				t.Errorf("a call within an hour of the second job answers %d, %v", id, duplicate)
			}
		})
	}
}

// TestARetryByHandIsJudged: a job that is retried by hand runs, unless another of its key is unfinished when its turn comes.
func TestARetryByHandIsJudged(t *testing.T) {
	t.Parallel()
	for _, rule := range []string{`unique_key => 'a'`, `unique_key => 'a', within => '1 hour'`, `unique_key => 'a', until => 'started'`} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			job := logUniquely(t, conn, rule)
			mustComplete(t, conn, worker, wantRuns(t, conn, worker, job))
			exec(t, conn, `SELECT weir.retry($1)`, job)
			mustComplete(t, conn, worker, wantRuns(t, conn, worker, job))
			if rule != `unique_key => 'a'` {
				return
			}
			other := logUniquely(t, conn, rule)
			running := wantRuns(t, conn, worker, other)
			exec(t, conn, `SELECT weir.retry($1)`, job)
			wantRuns(t, conn, worker)
			wantDropped(t, conn, job, fmt.Sprintf("duplicate of job %d", other))
			mustComplete(t, conn, worker, running)
			logUniquely(t, conn, rule)
		})
	}
}

// TestACancelledJobThatIsRetriedSharesItsKeyWithTheNextOne: a unique job is cancelled, another takes its key, and then the first is retried. Never do both
// run at a time. If the other waits, it ends as a duplicate; if it runs, the retried job does, and also if it was only not cancelled any more and the
// other has run since it was enqueued.
func TestACancelledJobThatIsRetriedSharesItsKeyWithTheNextOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reached bool   // after it was cancelled, a claim has reached and ended the job
		other   string // the state of the other job when the first is retried
		runs    string // which of them a claim returns then
	}{
		{false, "available", "first"}, {false, "running", ""}, {false, "completed", ""},
		{true, "available", "first"}, {true, "running", ""}, {true, "completed", "first"},
	} {
		t.Run(fmt.Sprintf("reached %t, other %s", c.reached, c.other), func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			first := logUniquely(t, conn, `unique_key => 'a'`)
			exec(t, conn, `SELECT weir.cancel($1)`, first)
			if c.reached {
				wantRuns(t, conn, worker)
			}
			priority := 2
			if c.other != "available" {
				priority = 1 // so that it is claimed before the first is reached
			}
			other := logUniquely(t, conn, fmt.Sprintf(`unique_key => 'a', priority => %d`, priority))
			var running []attempt
			if c.other != "available" {
				running = mustClaim(t, conn, worker, "q", 1)
			}
			if c.other == "completed" {
				mustComplete(t, conn, worker, running)
				running = nil
			}
			if state := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, other); state != c.other {
				t.Fatalf("the other job is %s, want %s", state, c.other)
			}
			exec(t, conn, `SELECT weir.retry($1)`, first)
			want := map[string][]int64{"first": {first}, "": nil}[c.runs]
			running = append(running, wantRuns(t, conn, worker, want...)...)
			if c.runs != "first" {
				wantDropped(t, conn, first, fmt.Sprintf("duplicate of job %d", other))
			} else if c.other == "available" {
				wantDropped(t, conn, other, fmt.Sprintf("duplicate of job %d", first))
			}
			mustComplete(t, conn, worker, running)
			logUniquely(t, conn, `unique_key => 'a'`)
		})
	}
}
