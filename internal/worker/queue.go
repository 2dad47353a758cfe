package worker

import (
	"context"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
)

// Jobs that take less than prefetchBelow are claimed ahead of a free runner, one for each: with less
// to do than a round trip takes, runners would mostly wait. Longer ones are better left to a worker
// that is free.
const prefetchBelow = 5 * time.Millisecond

// queue is one queue as this session works it.
//
// A runner is a goroutine that takes one task after the other, and ends when none waits. There are as few as will do: a thousand
// goroutines that take turns at jobs that only compute cost more than such jobs do, in stacks that grow anew for each.
type queue struct {
	name        string
	concurrency int
	start       func()        // starts one runner; does not block
	pushed      chan struct{} // tells grow that tasks were; never closed
	inFlight    atomic.Int64
	average     atomic.Uint64 // of a job's duration, in ns, as float bits

	mu      sync.Mutex
	ready   []*Task // claimed; from head on not started
	head    int
	runners int
	taken   int64 // tasks that runners have taken
}

func newQueue(name string, concurrency int) *queue {
	q := &queue{name: name, concurrency: concurrency, pushed: make(chan struct{}, 1)}
	q.average.Store(math.Float64bits(float64(time.Second)))
	return q
}

// short tells whether jobs are so short that they are claimed ahead.
func (q *queue) short() bool {
	return math.Float64frombits(q.average.Load()) < float64(prefetchBelow)
}

func (q *queue) capacity() int {
	if q.short() {
		return 2 * q.concurrency
	}
	return q.concurrency
}

// free is how many more jobs may be claimed.
func (q *queue) free() int { return max(q.capacity()-int(q.inFlight.Load()), 0) }

// worthwhile tells whether to claim now, or to wait for more room: short jobs free it in a moment.
func (q *queue) worthwhile() bool {
	if q.short() {
		return q.free() >= q.concurrency
	}
	return q.free() > 0
}

// finished takes a job of some duration off. The average of the last few; races lose a sample.
func (q *queue) finished(took time.Duration) {
	old := math.Float64frombits(q.average.Load())
	q.average.Store(math.Float64bits(old + (float64(took)-old)/8))
	q.inFlight.Add(-1)
}

// push has runners take tasks, in their order. As many run at least as would have all that wait done in a millisecond, if those took as
// long as the last few did; grow sees to it if they take longer.
func (q *queue) push(tasks []*Task) {
	q.inFlight.Add(int64(len(tasks)))
	q.mu.Lock()
	q.ready = append(slices.Delete(q.ready, 0, q.head), tasks...)
	q.head = 0
	average := math.Float64frombits(q.average.Load())
	q.more(least() + int(min(average/float64(time.Millisecond)*float64(len(q.ready)), float64(q.concurrency))) - q.runners)
	q.mu.Unlock()
	select {
	case q.pushed <- struct{}{}:
	default:
	}
}

// least is how many runners it takes to keep the processors busy.
func least() int { return 2 * runtime.GOMAXPROCS(0) }

// more starts so many runners, up to the queue's concurrency and to the tasks that wait. The caller holds mu.
func (q *queue) more(n int) {
	for range min(n, q.concurrency-q.runners, len(q.ready)-q.head) {
		q.runners++
		q.start()
	}
}

// take gives a runner its next task; nil: none waits, and the runner ends.
func (q *queue) take() *Task {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.ready) {
		q.runners--
		return nil
	}
	t := q.ready[q.head]
	q.ready[q.head] = nil
	q.head++
	q.taken++
	return t
}

// takeAll takes what no runner has taken.
func (q *queue) takeAll() []*Task {
	q.mu.Lock()
	defer q.mu.Unlock()
	rest := q.ready[q.head:]
	q.ready, q.head = nil, 0
	return rest
}

// grow doubles the runners for each millisecond in which tasks wait and the runners hardly took any, up to the queue's concurrency. It
// returns when ctx ends.
func (q *queue) grow(ctx context.Context) {
	for {
		select {
		case <-q.pushed:
		case <-ctx.Done():
			return
		}
		for before, waits := int64(-1), true; waits; {
			if before, waits = q.growOnce(before); waits && !sleep.For(ctx, time.Millisecond) {
				return
			}
		}
	}
}

// growOnce compares with how many tasks had been taken a moment before, if that is not negative. It returns how many have been by now, and
// whether any wait that more runners could take.
func (q *queue) growOnce(before int64) (taken int64, waits bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if before >= 0 && q.taken-before < int64(q.runners) {
		q.more(q.runners)
	}
	return q.taken, q.head < len(q.ready) && q.runners < q.concurrency
}
