// Package workertest checks a worker in any language that uses plain SQL: it runs the program against a real server, directly and through a
// real PgBouncer in transaction mode.
//
// The program works queue q of a database. It has two handlers: hello returns "hello, " and args.name, and throws if there is no name; rest
// takes args.seconds, and ends when it is cancelled. WEIR_LEASE and WEIR_GRACE are its lease and the time that it has to stop, in seconds.
package workertest

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/pgtest"
)

const patience = time.Minute

// Command returns the command that works queue q of a database.
type Command func(url string) *exec.Cmd

// Run checks a worker.
func Run(t *testing.T, command Command) {
	for name, through := range map[string]func(testing.TB, string) string{
		"directly":          func(_ testing.TB, url string) string { return url },
		"through PgBouncer": pgtest.Bouncer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for name, check := range map[string]func(*stage){
				"does what workers do":                  doesWhatWorkersDo,
				"survives the end of its sessions":      survivesTheEndOfItsSessions,
				"loses no job when it is killed":        losesNoJobWhenItIsKilled,
				"leaves nothing behind when it stops":   leavesNothingBehindWhenItStops,
				"ends every job once, whatever happens": endsEveryJobOnce,
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					url := pgtest.Database(t)
					check(&stage{T: t, command: command, pool: judge(t, url), line: pgtest.NewLine(t, through(t, url))})
				})
			}
		})
	}
}

// judge returns connections that endSessions does not end.
func judge(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = "judge"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// stage is what a check of a worker needs: a database, and the worker's way to it.
type stage struct {
	*testing.T
	command Command
	pool    *pgxpool.Pool
	line    *pgtest.Line
}

// process is a running worker.
type process struct {
	*exec.Cmd
	output *output
	ended  chan error
}

// output collects the output of a process.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (s *stage) start() *process {
	s.Helper()
	p := &process{Cmd: s.command(s.line.URL), output: &output{}, ended: make(chan error, 1)}
	p.Env = append(os.Environ(), "WEIR_LEASE=5", "WEIR_GRACE=2")
	p.Stdout, p.Stderr = p.output, p.output
	if err := p.Start(); err != nil {
		s.Fatal(err)
	}
	go func() { p.ended <- p.Wait(); close(p.ended) }() // ends with the process, which the cleanup kills
	s.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
		if s.Failed() {
			s.Logf("the output of worker %d:\n%s", p.Process.Pid, p.output)
		}
	})
	return p
}

// stop tells a worker to stop, and waits until it has stopped.
func (s *stage) stop(p *process) {
	s.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		s.Fatal(err)
	}
	select {
	case err := <-p.ended:
		if err != nil {
			s.Errorf("the worker stopped with an error: %v", err)
		}
	case <-time.After(patience):
		s.Fatal("the worker has not stopped within a minute of SIGTERM")
	}
	if left := value[int](s, `SELECT count(*) FROM weir.worker w WHERE NOT EXISTS (SELECT FROM weir.worker f WHERE f.id = w.id AND f.fenced)`); left > 0 {
		s.Errorf("%d workers have not been fenced after they stopped", left)
	}
}

func value[V any](s *stage, sql string, args ...any) (v V) {
	s.Helper()
	if err := s.pool.QueryRow(s.Context(), sql, args...).Scan(&v); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (s *stage) enqueue(kind, args string, attempts int) int64 {
	s.Helper()
	return value[int64](s, `SELECT weir.enqueue('q', $1, $2::text::jsonb, max_attempts => $3)`, kind, args, attempts)
}

// job is the state of a job.
type job struct {
	State         string
	Attempt       int
	Worker        *int32
	Error, Output string
}

// await returns the job once wanted returns true for it.
func (s *stage) await(id int64, wanted func(job) bool) job {
	s.Helper()
	var j job
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(20 * time.Millisecond) { // there is no event to wait for
		rows, err := s.pool.Query(s.Context(), `SELECT state, attempt, worker, coalesce(error, '') AS error, coalesce(output, '') AS output FROM weir.job_info($1)`, id)
		if err != nil {
			s.Fatal(err)
		}
		if j, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[job]); err != nil {
			s.Fatal(err)
		}
		if wanted(j) {
			return j
		}
	}
	s.Fatalf("job %d is still %+v", id, j)
	return j
}

func is(state string) func(job) bool { return func(j job) bool { return j.State == state } }

func (s *stage) exec(sql string, args ...any) {
	s.Helper()
	if _, err := s.pool.Exec(s.Context(), sql, args...); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
}

func doesWhatWorkersDo(s *stage) {
	greeted, bad, again := s.enqueue("hello", `{"name": "Ada"}`, 1), s.enqueue("hello", `{}`, 1), s.enqueue("hello", `{}`, 2)
	unknown, long := s.enqueue("hallo", `{}`, 1), s.enqueue("rest", `{"seconds": 600}`, 1)
	p := s.start()
	if j := s.await(greeted, is("completed")); j.Output != "hello, Ada" {
		s.Errorf("completed: %+v", j)
	}
	if j := s.await(bad, is("failed")); !strings.Contains(j.Error, "hello") {
		s.Errorf("the error of a failed job does not contain the place of the failure: %+v", j)
	}
	if j := s.await(again, is("failed")); j.Attempt != 2 {
		s.Errorf("retried: %+v", j)
	}
	if j := s.await(unknown, is("scheduled")); j.Attempt != 1 || !strings.Contains(j.Error, "no handler") {
		s.Errorf("a job without a handler: %+v", j)
	}
	s.await(long, is("running"))
	s.exec(`SELECT weir.cancel($1)`, long)
	s.await(long, is("cancelled"))
	s.stop(p)
}

// endSessions ends all sessions except the judge's.
func (s *stage) endSessions() {
	s.Helper()
	s.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> 'judge'`)
}

// ended waits until the number of jobs have ended, and checks that the database has recorded each end once.
func (s *stage) ended(jobs int, meanwhile func()) {
	s.Helper()
	var left int
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		left = jobs - value[int](s, `SELECT count(DISTINCT i.id) FROM weir.result r, unnest(r.ids) i(id) WHERE r.outcome IN ('completed', 'failed', 'cancelled')`)
		if left <= 0 {
			break
		}
		meanwhile()
		if time.Since(begin) > patience {
			s.Fatalf("%d jobs have not ended: %s", left, value[string](s, `SELECT coalesce(string_agg(format('%s %s %s %s', id, state, attempt, worker), '; '), '') FROM (SELECT * FROM weir.jobs('running', max_rows => 5) UNION ALL SELECT * FROM weir.jobs('scheduled', max_rows => 5) UNION ALL SELECT * FROM weir.jobs('available', max_rows => 5)) j`))
		}
	}
	if twice := value[int](s, `SELECT count(*) FROM (SELECT FROM weir.result r, unnest(r.ids) i(id) WHERE r.outcome IN ('completed', 'failed', 'cancelled')
		GROUP BY i.id HAVING count(*) <> 1) k`); twice > 0 {
		s.Errorf("%d jobs have ended more than once", twice)
	}
}

// survivesTheEndOfItsSessions: the end of its sessions, and the loss of answers, cost no job and no attempt.
func survivesTheEndOfItsSessions(s *stage) {
	p := s.start()
	const rounds, each = 8, 40
	for round := range rounds {
		s.exec(`SELECT weir.enqueue('q', 'rest', '{"seconds": 0.05}', max_attempts => 1) FROM generate_series(1, $1)`, each)
		some := value[int](s, `SELECT count(*) FROM weir.batch`)
		for begin := time.Now(); value[int](s, `SELECT count(*) FROM weir.batch`) == some && time.Since(begin) < patience; time.Sleep(time.Millisecond) {
		}
		if round%2 == 0 {
			s.endSessions()
		} else {
			s.line.Cut()
		}
	}
	s.ended(rounds*each, func() {})
	if n := value[int](s, `SELECT count(*) FROM weir.result WHERE outcome <> 'released' AND outcome <> 'completed'`); n > 0 {
		s.Errorf("%d results are neither completed nor released", n)
	}
	s.stop(p)
}

// losesNoJobWhenItIsKilled: another worker runs the job of a killed one again.

func losesNoJobWhenItIsKilled(s *stage) {
	slow := s.enqueue("rest", `{"seconds": 3}`, 2)
	first := s.start()
	j := s.await(slow, is("running"))
	if err := first.Process.Kill(); err != nil {
		s.Fatal(err)
	}
	second := s.start()
	if done := s.await(slow, is("completed")); done.Attempt != 2 || *done.Worker == *j.Worker {
		s.Errorf("after a kill, want attempt 2 by another worker: %+v", done)
	}
	s.stop(second)
}

// leavesNothingBehindWhenItStops: a worker that stops completes jobs that end in time, and releases the others without using up an attempt.
func leavesNothingBehindWhenItStops(s *stage) {
	short, long := s.enqueue("rest", `{"seconds": 1}`, 1), s.enqueue("rest", `{"seconds": 600}`, 1)
	p := s.start()
	s.await(short, is("running"))
	s.await(long, is("running"))
	s.stop(p)
	s.await(short, is("completed"))
	if j := s.await(long, is("available")); j.Attempt != 1 {
		s.Errorf("the job that did not end in time: %+v", j)
	}
}

// endsEveryJobOnce: every job ends exactly once, even if two workers are killed, stopped, started again, and lose their sessions and
// answers, while jobs fail and are cancelled; some have keys, with a limit.
func endsEveryJobOnce(s *stage) {
	const jobs = 2000
	s.exec(`SELECT weir.enqueue('q', 'none', '{}'), weir.set('q', 'backoff', '100 ms'), weir.set('q', 'backoff_limit', '200 ms')`)
	s.exec(`SELECT weir.enqueue('q', CASE WHEN i % 10 = 0 THEN 'rest' ELSE 'hello' END, CASE WHEN i % 10 = 0 THEN '{"seconds": 0.1}' WHEN i % 10 < 3 THEN '{}' ELSE '{"name": "Ada"}' END::jsonb,
		max_attempts => 2 + i % 4, key => CASE WHEN i % 2 = 0 THEN 'key ' || i % 14 END) FROM generate_series(1, $1) i`, jobs)
	s.exec(`SELECT weir.set_limit('q', running => 5, per_key => true)`)
	seed := uint64(time.Now().UnixNano())
	s.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	workers := []*process{s.start(), s.start()}
	supervise := func() {
		for i, p := range workers {
			select {
			case <-p.ended:
				workers[i] = s.start()
			default:
			}
		}
	}
	ended := func() int {
		return value[int](s, `SELECT count(DISTINCT i.id) FROM weir.result r, unnest(r.ids) i(id) WHERE r.outcome IN ('completed', 'failed', 'cancelled')`)
	}
	for begin := time.Now(); ended() < jobs && time.Since(begin) < 15*time.Second; time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond) { // at random times
		i := random.IntN(len(workers))
		switch random.IntN(6) {
		case 0:
			_ = workers[i].Process.Kill()
		case 1:
			_ = workers[i].Process.Signal(syscall.SIGTERM)
		case 2:
			s.endSessions()
		case 3, 4:
			s.line.Cut()
		case 5:
			s.exec(`SELECT weir.cancel(id) FROM weir.jobs('running', max_rows => 2)`)
		}
		supervise()
	}
	s.ended(jobs, supervise)
	s.Logf("%s", value[string](s, `SELECT string_agg(format('%s %s', n, outcome), ', ') FROM (SELECT outcome, sum(cardinality(ids)) AS n FROM weir.result GROUP BY outcome ORDER BY outcome) k`))
}
