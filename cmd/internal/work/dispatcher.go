package work

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// Config configures a Dispatcher. All fields are required except Hubs and Lease.
type Config struct {
	Pool   *pgxpool.Pool // whose configuration the worker's connections have
	Calls  *store.Store  // for calls about attempts of other hubs, what to tell again, and names of queues; nil: in tests without a database
	Name   string        // of this hub, for people
	Secret string        // the same at all hubs of the database
	Hubs   Hubs          // how hubs tell each other; nil: they don't
	Lease  time.Duration // of an attempt, and of the worker in the database; 0: 30 s
	Log    *slog.Logger
}

const (
	defaultLease = 30 * time.Second
	maxSessions  = 200_000
	maxQueues    = 1000      // that are worked at once
	maxSlots     = 20_000    // attempts of one queue at once
	maxBytes     = 256 << 20 // of the jobs of all attempts; a claim may exceed it if its jobs are longer than those before
	firstAverage = 1 << 20   // bytes of a job, as long as nothing is known of them
	keepQueue    = time.Hour
)

// Dispatcher hands out jobs. Create it with New, and call Run.
type Dispatcher struct {
	Config
	tokens signer
	clock  func() time.Time
	jitter func(time.Duration) time.Duration
	draw   func(n int) int // a random number from 0 to n-1
	again  chan struct{}   // signals that another queue was asked for; never closed
	places chan struct{}   // holds one element for each generation

	mu       sync.Mutex
	sessions map[string]*Session
	queues   map[string]*queue
	attempts map[key]*attempt
	lost     map[key]bool   // what had such a key was lost: its session may not know that yet
	ours     map[int32]bool // workers that this hub has, or had
	now      *generation    // nil: none was needed yet
	failed   error          // why there is no worker; nil: there is, or soon will be
	bytes    int64          // of all attempts' jobs
	average  float64        // bytes of a job, of late
	wanting  int            // queues with credit
	begun    []*Session     // new ones, the names of whose queues were not looked up yet
	counts   counts
	quiet    bool          // it is stopping
	idle     chan struct{} // closed when it is stopping and no attempt is left
	peers    peers
}

// LimitError is a limit that was reached.
type LimitError struct{ text string }

func (e *LimitError) Error() string { return e.text }

// BadError is what is wrong with a request, and what to do.
type BadError struct{ Text, Hint string }

func (e *BadError) Error() string { return e.Text }

// New returns a dispatcher.
func New(c Config) *Dispatcher {
	if c.Lease == 0 {
		c.Lease = defaultLease
	}
	d := &Dispatcher{
		Config: c, average: firstAverage, tokens: newSigner(c.Secret, "weir work tokens"), clock: time.Now, jitter: sleep.Jitter, draw: rand.IntN, again: make(chan struct{}, 1), places: make(chan struct{}, maxGenerations),
		sessions: map[string]*Session{}, queues: map[string]*queue{}, attempts: map[key]*attempt{}, lost: map[key]bool{}, ours: map[int32]bool{}, idle: make(chan struct{}),
	}
	d.peers.init(d)
	return d
}

func newID() string { return crand.Text() }

// Run works until ctx ends, and waits until its workers in the database have ended. Call Stop before.
func (d *Dispatcher) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { d.sweeps(ctx) })
	all.Go(func() { d.peers.run(ctx) })
	all.Go(func() { d.looksNamesUp(ctx) })
	d.generations(ctx)
	all.Wait()
}

// Stop tells all sessions that there will be no more jobs, and waits until what they have is recorded. When ctx ends first, the rest is released, for others.
func (d *Dispatcher) Stop(ctx context.Context) {
	d.stop()
	select {
	case <-d.idle:
	case <-ctx.Done():
		d.releaseAll()
	}
}

// stop tells all sessions that there will be no more jobs, and releases those that wait for one.
func (d *Dispatcher) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quiet = true
	for _, q := range d.queues {
		for q.here > 0 {
			a := q.oldest(nil)
			q.drop(a)
			a.finish(worker.Result{Outcome: store.Released})
		}
	}
	for _, s := range d.sessions {
		s.signal()
	}
	d.checkIdle()
}

// releaseAll releases what sessions have, for others.
func (d *Dispatcher) releaseAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range inOrder(maps.Values(d.attempts)) {
		d.interrupt(a, Lost)
		if a.finish(worker.Result{Outcome: store.Released}) {
			d.freed(a)
		}
		for _, same := range a.again {
			same.finish(worker.Result{Outcome: store.Released})
		}
	}
}

// inOrder sorts attempts, so that nothing depends on the order of a map.
func inOrder(all iter.Seq[*attempt]) []*attempt {
	return slices.SortedFunc(all, func(a, b *attempt) int { return a.compare(b.key) })
}

// checkIdle notices that the last attempt has ended; the caller holds mu.
func (d *Dispatcher) checkIdle() {
	if !d.quiet || len(d.attempts) > 0 {
		return
	}
	select {
	case <-d.idle:
	default:
		close(d.idle)
	}
}

// ask makes sure that the queues are worked; the caller holds mu.
func (d *Dispatcher) ask(names []string) error {
	more := 0
	for _, name := range names {
		if d.queues[name] == nil {
			more++
		}
	}
	if len(d.queues)+more > maxQueues {
		d.forgetQueues(d.clock())
	}
	if len(d.queues)+more > maxQueues {
		return &LimitError{fmt.Sprintf("this hub works %d queues, its limit", maxQueues)}
	}
	if d.failed != nil {
		return d.failed
	}
	for _, name := range names {
		d.queueOf(name).asked = d.clock()
		if d.now == nil || !d.now.works(name) {
			select {
			case d.again <- struct{}{}:
			default:
			}
			if len(d.places) == maxGenerations {
				return &LimitError{fmt.Sprintf("this hub can't work queue %q yet: %d generations of its worker have jobs that have not ended", name, maxGenerations)}
			}
		}
	}
	return nil
}

// affords returns how many more jobs of a queue may be claimed, by the memory that they take: a claim is for all queues that want jobs, so they share it. The caller holds mu.
func (d *Dispatcher) affords() int {
	n := int(float64(maxBytes-d.bytes) / max(d.average, 1))
	if n < 1 && len(d.attempts) > 0 {
		return 0
	}
	return max(n/max(d.wanting, 1), 1) // one that is longer than the limit must not wait for ever
}

// more tells the worker that there are free slots again; the caller holds mu.
func (d *Dispatcher) more() {
	if d.now != nil {
		d.now.more()
	}
}

// End ends a session: what it holds is released, which it waits for until ctx ends. It returns false if there is none of this id.
func (d *Dispatcher) End(ctx context.Context, id string) bool {
	d.mu.Lock()
	s := d.sessions[id]
	if s == nil {
		d.mu.Unlock()
		return false
	}
	w := newWaiting(len(s.held))
	place := 0
	for _, a := range s.held {
		i := place
		a.told = append(a.told, func(settlement) { w.settle(i, "", "") })
		place++
	}
	s.leave()
	d.mu.Unlock()
	w.wait(ctx)
	return true
}

// interrupt tells an attempt's session to interrupt it; the caller holds mu.
func (d *Dispatcher) interrupt(a *attempt, reason string) {
	if a.reason = reason; a.session != nil {
		a.session.tellOf = append(a.session.tellOf, Interrupted{a.token, reason})
		a.session.signal()
	}
}

// errSilent is the error of an attempt whose session was not heard of.
type errSilent struct {
	name  string
	lease time.Duration
}

func (e errSilent) Error() string {
	return fmt.Sprintf("the worker %q was not heard of for %s", e.name, e.lease)
}

const sweepEvery = 250 * time.Millisecond

// sweeps ends what has lasted too long, until ctx ends.
func (d *Dispatcher) sweeps(ctx context.Context) {
	every := time.NewTicker(sweepEvery)
	defer every.Stop()
	last := d.clock()
	for n := 0; ; n++ {
		select {
		case <-every.C:
			last = d.tick(n, last)
		case <-ctx.Done():
			return
		}
	}
}

// tick is called for the nth time, every sweepEvery; last is when it was called before.
func (d *Dispatcher) tick(n int, last time.Time) (now time.Time) {
	now = d.clock()
	if gap := now.Sub(last); gap > 4*sweepEvery {
		d.slept(gap)
	}
	d.sweep(n%4 == 0)
	return now
}

// slept is called when this hub did not run for some time, in which it could hear of nobody: that time counts for no lease.
func (d *Dispatcher) slept(gap time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.attempts {
		a.since = a.since.Add(gap)
	}
	for _, s := range d.sessions {
		s.seen = s.seen.Add(gap)
	}
}

// sweep releases jobs that nobody was free for, and, if all, ends attempts and sessions of which nothing was heard for the lease.
func (d *Dispatcher) sweep(all bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock()
	for _, q := range d.queues {
		for q.here > 0 {
			a := q.oldest(nil)
			if now.Sub(a.since) <= waitHere && q.here <= maxHere {
				break
			}
			q.drop(a)
			if q.wanted(a.task.Kind) {
				q.tooLong()
				a.finish(d.nobodyFree(a))
			} else {
				a.finish(d.unwanted(a))
			}
		}
	}
	if !all {
		return
	}
	d.checkRole()
	var silent []*attempt
	for _, a := range d.attempts {
		s := a.session
		if s == nil || a.over {
			continue
		}
		seen := a.since
		if s.call != nil && s.call.Standing && !a.unnamed && s.seen.After(seen) {
			seen = s.seen
		}
		if now.Sub(seen) > d.Lease {
			silent = append(silent, a)
		}
	}
	for _, a := range inOrder(slices.Values(silent)) {
		d.counts.silent++
		d.interrupt(a, Lost)
		after := store.ByQueue
		a.finish(worker.Result{Outcome: store.Retried, Err: errSilent{a.session.name, d.Lease}, After: &after})
		d.freed(a)
	}
	for _, s := range d.sessions {
		if now.Sub(s.seen) > d.Lease && len(s.held) == 0 && (s.call == nil || s.call.Standing) { // it may be heard of at other hubs while it has attempts
			s.leave()
		}
	}
}

// errNoWorker means that the hub has no worker in the database.
var errNoWorker = errors.New("the hub's worker does not run")

// isGone reports whether an error means that a worker has ended.
func isGone(err error) bool { return store.IsFenced(err) || store.IsMoved(err) }
