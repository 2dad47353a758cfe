package weir

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// GroupOptions specify how HandleGroup forms groups.
type GroupOptions[A Args] struct {
	KindOptions
	// Size is the largest number of jobs in a group, 1 to 10,000.
	Size int
	// Wait is how long the first job of a group waits for more; 0: one second. A group starts earlier if it is full, or if no more jobs can come,
	// because waiting jobs fill the queue's concurrency.
	Wait time.Duration
	// Key, if set, says which jobs belong together: all jobs of a group have the same key. It may return the job's own Key.
	Key func(job *Job[A]) string
}

// GroupJob is a job of a group.
type GroupJob[A any] struct {
	*Job[A]
	member *member
}

// End says how this job ends, whatever the handler returns for the others: with nil it is completed, and an error does what it does as the result
// of a handler of one job ([Fail], [Snooze] and so on included). It takes effect when the group's handler returns; of several calls the last
// counts. A job that was completed with CompleteTx needs no End.
func (j *GroupJob[A]) End(err error) { j.member.ended, j.member.err = true, err }

// Context returns the context of this job's attempt, which ends when the job is cancelled or its timeout has passed.
func (j *GroupJob[A]) Context() context.Context { return j.member.ctx }

// HandleGroup registers a handler for the kind of A that runs several jobs in one call, which is cheaper where their effects can be written or
// sent together. A group holds up to o.Size jobs of one queue and, if o.Key is set, of one key; it starts when it is full or o.Wait has passed.
// It panics if the kind already has a handler, or if the options are invalid.
//
// Each job keeps an attempt of its own: with middleware, hooks, and a timeout and context that begin when the job begins to wait for its group.
// The error that run returns, or its panic, is the result of all jobs that have not ended on their own, with [GroupJob.End] or CompleteTx. The
// context of run has the values of the first job's context, and ends once the contexts of all jobs have ended.
//
// Jobs that wait or run take up the queue's concurrency, as other jobs do. It should therefore be Size, times the number of groups that are to
// run at once; smaller, it is what limits the size of a group. Jobs of other kinds in the queue wait for up to o.Wait if jobs that wait for
// their groups take up all of it but one; use a queue of its own for the kind if that is too long. A job that is cancelled while it waits leaves its
// group. When the worker stops, the jobs that wait are released, without using up an attempt.
func HandleGroup[A Args](h *Handlers, o GroupOptions[A], run func(ctx context.Context, jobs []*GroupJob[A]) error) {
	if o.Size < 1 || o.Size > 10_000 {
		panic(fmt.Sprintf("weir: GroupOptions.Size must be 1 to 10000, got %d", o.Size))
	}
	if o.Wait < 0 {
		panic(fmt.Sprintf("weir: GroupOptions.Wait must not be negative, got %s", o.Wait))
	}
	if o.Wait == 0 {
		o.Wait = time.Second
	}
	var kind groupKind
	kind.size, kind.wait = o.Size, o.Wait
	kind.run = func(ctx context.Context, members []*member) error {
		jobs := make([]*GroupJob[A], len(members))
		for i, m := range members {
			jobs[i] = &GroupJob[A]{m.job.(*Job[A]), m}
		}
		return run(ctx, jobs)
	}
	HandleWith(h, o.KindOptions, func(ctx context.Context, job *Job[A]) error {
		if job.attempt == nil {
			return fmt.Errorf("weir: job %d: %w", job.ID, ErrNotClaimed)
		}
		key := ""
		if o.Key != nil {
			key = o.Key(job)
		}
		m := &member{ctx: ctx, job: job, attempt: job.attempt}
		return job.attempt.groups.join(&kind, job.Queue, key, m)
	})
}

// groupKind is what HandleGroup knows of a kind.
type groupKind struct {
	size int
	wait time.Duration
	run  func(ctx context.Context, members []*member) error
}

// member is a job of a group.
type member struct {
	ctx     context.Context // of the attempt
	job     any             // a *Job[A]
	attempt *attempt
	ended   bool // it has ended on its own
	err     error
}

// groupKey says which jobs belong together.
type groupKey struct {
	of         *groups
	kind       *groupKind
	queue, key string
}

// group is a number of jobs that wait to be run together, or are. The gathering's lock guards all but done, until it has started.
type group struct {
	key     groupKey
	members []*member
	late    *time.Timer // starts it
	started bool
	done    chan struct{} // closed when each member has its result
}

// gathering holds the groups that wait for more jobs, of workers that share the concurrency of their queues, or of one.
type gathering struct {
	queues map[string]int // concurrency by queue

	mu      sync.Mutex
	waiting map[groupKey]*group
	held    map[string]int // by queue: the number of jobs that wait
}

func newGathering(queues map[string]int) *gathering {
	return &gathering{queues: queues, waiting: map[groupKey]*group{}, held: map[string]int{}}
}

// groups are those of one worker. The gathering's lock guards them.
type groups struct {
	*gathering
	runs    int // how often begin was called
	stopped bool
}

var errGroupStopped = errors.New("the worker stopped before the job's group had started")

// join adds a job to a group, and returns the job's result once the group has run.
func (gs *groups) join(kind *groupKind, queue, key string, m *member) error {
	gs.mu.Lock()
	if gs.stopped {
		gs.mu.Unlock()
		return &ending{store.Released, errGroupStopped, 0}
	}
	at := groupKey{gs, kind, queue, key}
	g := gs.waiting[at]
	if g == nil {
		g = &group{key: at, done: make(chan struct{})}
		g.late = time.AfterFunc(kind.wait, func() {
			gs.mu.Lock()
			defer gs.mu.Unlock()
			gs.start(g)
		})
		gs.waiting[at] = g
	}
	g.members = append(g.members, m)
	gs.held[queue]++
	if len(g.members) >= kind.size {
		gs.start(g)
	} else if m.attempt.worker == noWorker || gs.held[queue] >= gs.queues[queue] {
		gs.start(gs.largest(queue)) // no more jobs can come
	}
	gs.mu.Unlock()

	select {
	case <-g.done:
	case <-m.ctx.Done():
		if gs.leave(g, m) {
			return fmt.Errorf("it waited for its group: %w", m.ctx.Err())
		}
		<-g.done
	}
	return m.err
}

// largest returns the largest waiting group of a queue. The caller holds mu.
func (gs *gathering) largest(queue string) (found *group) {
	for key, g := range gs.waiting {
		if key.queue == queue && (found == nil || len(g.members) > len(found.members)) {
			found = g
		}
	}
	return found
}

// leave removes a job from its group; false: the group has started.
func (gs *gathering) leave(g *group, m *member) bool {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g.started {
		return false
	}
	for i, other := range g.members {
		if other == m {
			g.members = append(g.members[:i], g.members[i+1:]...)
		}
	}
	gs.held[g.key.queue]--
	if len(g.members) == 0 {
		gs.remove(g)
	}
	return true
}

// remove takes a group off the waiting ones. The caller holds mu.
func (gs *gathering) remove(g *group) {
	g.started = true
	g.late.Stop()
	delete(gs.waiting, g.key)
	gs.held[g.key.queue] -= len(g.members)
}

// start runs a group, in a goroutine that ends with the handler. The caller holds mu.
func (gs *gathering) start(g *group) {
	if g.started {
		return
	}
	gs.remove(g)
	go g.work()
}

// begin lets jobs wait, and returns the function that ends this: it releases those that wait, and those that come until the next begin.
func (gs *groups) begin() (stop func()) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.stopped = false
	gs.runs++
	run := gs.runs
	return func() {
		gs.mu.Lock()
		defer gs.mu.Unlock()
		if gs.runs != run { // it comes late: the worker runs again
			return
		}
		gs.stopped = true
		for key, g := range gs.waiting {
			if key.of != gs {
				continue
			}
			gs.remove(g)
			for _, m := range g.members {
				m.err = &ending{store.Released, errGroupStopped, 0}
			}
			close(g.done)
		}
	}
}

// work runs the group's handler and gives each job its result, even if the handler ends the goroutine.
func (g *group) work() {
	err := errExited
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(g.members[0].ctx))
	left := atomic.Int64{}
	left.Store(int64(len(g.members)))
	var forget []func() bool
	for _, m := range g.members {
		forget = append(forget, context.AfterFunc(m.ctx, func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(m.ctx))
			}
		}))
	}
	defer func() {
		for _, f := range forget {
			f()
		}
		cancel(nil)
		for _, m := range g.members {
			if !m.ended {
				if m.err = err; m.attempt.inTx {
					m.err = nil // the worker checks whether it was committed
				}
			}
		}
		close(g.done)
	}()
	err = g.call(ctx)
}

// call runs the group's handler, and turns a panic into an error.
func (g *group) call(ctx context.Context) (err error) {
	defer caught(&err)
	return g.key.kind.run(ctx, g.members)
}
