package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The rules of the random test. Every key has one, and is used with it alone.
var uniqueRules = []struct {
	name, args string
	waiting    string // in READ COMMITTED, half of the calls pass this
	window     time.Duration
}{
	{name: "finished"},
	{name: "finished", waiting: ", wait => true"},
	{name: "started", args: ", until => 'started'"},
	{name: "started", args: ", until => 'started'", waiting: ", wait => true"},
	{name: "within", args: ", within => '200 ms'", window: 200 * time.Millisecond},
	{name: "replace", args: ", replace => true"},
}

// uniqueLoad is a random load of unique jobs, and what its clients saw. All times are of clock, which counts the calls and answers of all clients.
type uniqueLoad struct {
	t       *testing.T
	url     string
	seed    uint64
	queues  []string
	clock   atomic.Int64
	stop    chan struct{} // closed when no more jobs are to be enqueued
	drained chan struct{} // closed when there is no more work
	did     sync.Map      // what happened -> *atomic.Int64

	mu    sync.Mutex
	asked []uniqueJob // what calls in READ COMMITTED were told of: since is the call
	jobs  map[int64]*uniqueJob
	runs  map[string][]*uniqueRun // of a key
}

// uniqueJob is a job that was logged.
type uniqueJob struct {
	id      int64
	key     string
	rule    int
	at      time.Time // enqueued_at
	fate    fate
	since   int64 // the call that logged it, or logged it again: a run that was answered before this began before it
	final   int64 // the answer that it has ended; 0: its worker has not ended it
	touched bool  // it was cancelled or retried by hand
}

// uniqueRun is an attempt: certainly running between the answer of its claim and the call that ended it.
type uniqueRun struct {
	attempt
	from, to int64
}

func (l *uniqueLoad) count(what string) {
	n, _ := l.did.LoadOrStore(what, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

// enqueue runs one transaction with a few calls.
func (l *uniqueLoad) enqueue(ctx context.Context, conn *pgx.Conn, r *rand.Rand) error {
	level := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}[r.IntN(4)]
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	linger := func() {
		d := time.Duration(r.IntN(6)) * time.Millisecond
		if r.IntN(25) == 0 {
			d = time.Duration(100+r.IntN(400)) * time.Millisecond
		}
		time.Sleep(d)
	}
	if r.IntN(2) == 0 { // an older snapshot
		if _, err := tx.Exec(ctx, `SELECT`); err != nil {
			return err
		}
		linger()
	}
	var logged []*uniqueJob
	call := func() ([]*uniqueJob, error) {
		n := r.IntN(2 * len(uniqueRules))
		rule := uniqueRules[n%len(uniqueRules)]
		args := rule.args
		if level == pgx.ReadCommitted && r.IntN(2) == 0 {
			args += rule.waiting
		}
		if r.IntN(6) == 0 {
			args += fmt.Sprintf(", run_at => now() + interval '%d ms'", r.IntN(80))
		}
		job := &uniqueJob{key: fmt.Sprint("key ", n), rule: n % len(uniqueRules)}
		var duplicate bool
		asked := l.clock.Add(1)
		err := tx.QueryRow(ctx, `SELECT u.id, u.duplicate, now() FROM weir.enqueue_unique($1, 'k', jsonb_build_object('k', $2::text), unique_key => $2, priority => $3, max_attempts => $4`+args+`) u`,
			l.queues[n%len(l.queues)], job.key, 1+r.IntN(4), 1+r.IntN(6)).Scan(&job.id, &duplicate, &job.at)
		if err != nil {
			return nil, err
		}
		if duplicate {
			l.count("answered as duplicates")
			if rule.name == "started" && level == pgx.ReadCommitted {
				job.since = asked
				l.mu.Lock()
				l.asked = append(l.asked, *job)
				l.mu.Unlock()
			}
			if rule.name != "replace" {
				return nil, nil
			}
		}
		l.mu.Lock()
		l.jobs[job.id] = job
		l.mu.Unlock()
		return []*uniqueJob{job}, nil
	}
	failed := func(err error) error {
		for _, j := range logged {
			l.setFate(j, rolledBack)
		}
		if code := sqlstate(err); code == "40001" || code == "40P01" {
			l.count("ended by " + code)
			return nil
		}
		return err
	}
	for range 1 + r.IntN(3) {
		within := r.IntN(3) == 0
		if within {
			if _, err := tx.Exec(ctx, `SAVEPOINT s`); err != nil {
				return err
			}
		}
		some, err := call()
		if err != nil {
			return failed(err)
		}
		linger()
		if within && r.IntN(2) == 0 {
			if _, err := tx.Exec(ctx, `ROLLBACK TO SAVEPOINT s`); err != nil {
				return err
			}
			for _, j := range some {
				l.setFate(j, rolledBack)
			}
			some = nil
		}
		logged = append(logged, some...)
	}
	if r.IntN(6) == 0 {
		for _, j := range logged {
			l.setFate(j, rolledBack)
		}
		return tx.Rollback(ctx)
	}
	now := l.clock.Add(1)
	l.mu.Lock()
	for _, j := range logged {
		j.since = now
	}
	l.mu.Unlock()
	if err := tx.Commit(ctx); err != nil {
		return failed(err)
	}
	for _, j := range logged {
		l.setFate(j, committed)
	}
	return nil
}

func (l *uniqueLoad) setFate(j *uniqueJob, f fate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	j.fate = f
}

// uniqueWorker claims, and ends what it has claimed sooner or later.
type uniqueWorker struct {
	*uniqueLoad
	conn *pgx.Conn
	r    *rand.Rand
	id   int32
	held []*uniqueRun
}

// step claims and ends some; it returns how many it has claimed or ended.
func (w *uniqueWorker) step(ctx context.Context, patient bool) (int, error) {
	if w.id == 0 {
		if err := w.conn.QueryRow(ctx, `SELECT weir._start('w', $1, '5 minutes')`, w.queues).Scan(&w.id); err != nil {
			return 0, err
		}
	}
	got, err := claim(ctx, w.conn, w.id, w.queues, []int32{int32(1 + w.r.IntN(8)), int32(1 + w.r.IntN(8))})
	if err != nil {
		return 0, err
	}
	now := w.clock.Add(1)
	w.mu.Lock()
	for _, a := range got {
		run := &uniqueRun{attempt: a, from: now}
		w.runs[a.Key] = append(w.runs[a.Key], run)
		if a.Dropped == nil {
			w.held = append(w.held, run)
			continue
		}
		run.from = 0 // cancelled by hand: it does not run
		w.mu.Unlock()
		if _, err := finish(ctx, w.conn, w.id, a, "cancelled", time.Time{}); err != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			return 0, err
		}
		w.mu.Lock()
	}
	w.mu.Unlock()
	if patient && w.r.IntN(60) == 0 && len(w.held) > 0 {
		return len(got), w.die(ctx)
	}
	if patient {
		time.Sleep(time.Duration(w.r.IntN(5)) * time.Millisecond)
	}
	w.r.Shuffle(len(w.held), func(i, j int) { w.held[i], w.held[j] = w.held[j], w.held[i] })
	n := len(w.held)
	if patient && w.r.IntN(8) > 0 {
		n = w.r.IntN(n + 1)
	}
	ending := w.held[:n]
	w.held = slices.Clone(w.held[n:])
	for some := range slices.Chunk(ending, 3) {
		if err := w.end(ctx, some, patient); err != nil {
			return 0, err
		}
	}
	return len(got) + n, nil
}

// end records the same outcome for some attempts.
func (w *uniqueWorker) end(ctx context.Context, some []*uniqueRun, random bool) error {
	outcome := "completed"
	if random {
		outcome = []string{"completed", "completed", "completed", "completed", "retried", "retried", "snoozed", "released", "failed", "cancelled"}[w.r.IntN(10)]
	}
	var runAt *time.Time
	if (outcome == "retried" || outcome == "snoozed") && w.r.IntN(2) == 0 {
		at := time.Now().Add(time.Duration(w.r.IntN(60)) * time.Millisecond)
		runAt = &at
	}
	now := w.clock.Add(1)
	var all []attempt
	w.mu.Lock()
	for _, run := range some {
		run.to = now
		all = append(all, run.attempt)
		if j := w.jobs[run.ID]; outcome == "released" {
			run.from = 0 // it has not been started
			j.since = now
		} else if outcome == "retried" || outcome == "snoozed" {
			j.since = now
		}
	}
	w.mu.Unlock()
	refused, err := record(ctx, w.conn, w.id, all, outcome, runAt)
	if err == nil && len(refused) > 0 {
		err = refusalError(refused[0])
	}
	if err != nil {
		return err
	}
	w.count(outcome)
	now = w.clock.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, run := range some {
		if outcome == "completed" || outcome == "failed" || outcome == "cancelled" || outcome == "retried" && run.Attempt >= run.Max {
			w.jobs[run.ID].final = now
		}
	}
	return nil
}

// die ends the worker with what it holds, which a rescuer logs again.
func (w *uniqueWorker) die(ctx context.Context) error {
	now := w.clock.Add(1)
	w.mu.Lock()
	for _, run := range w.held {
		run.to = now
		if j := w.jobs[run.ID]; run.Attempt >= run.Max {
			j.final = now + 1<<40 // it fails, some time later
		} else {
			j.since = now
		}
	}
	w.mu.Unlock()
	w.held = nil
	w.count("killed")
	id := w.id
	w.id = 0
	_, err := w.conn.Exec(ctx, `SELECT weir._fence($1)`, id)
	return err
}

// touch cancels or retries a random job by hand.
func (l *uniqueLoad) touch(ctx context.Context, conn *pgx.Conn, r *rand.Rand) error {
	time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
	l.mu.Lock()
	var known []*uniqueJob
	retry := r.IntN(3) == 0
	for _, j := range l.jobs {
		if j.fate == committed && (!retry || j.final > 0) {
			known = append(known, j)
		}
	}
	slices.SortFunc(known, func(a, b *uniqueJob) int { return int(b.id - a.id) })
	if len(known) == 0 {
		l.mu.Unlock()
		return nil
	}
	j := known[r.IntN(min(len(known), 30))]
	j.touched = true
	if retry {
		j.final = 0
	}
	l.mu.Unlock()
	what := "cancel"
	if retry {
		what = "retry"
	}
	l.count(what + " by hand")
	_, err := conn.Exec(ctx, `SELECT weir.`+what+`($1)`, j.id)
	return err
}
