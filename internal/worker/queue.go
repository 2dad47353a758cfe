package worker

import (
	"context"
	"math"
	"runtime"
	"sync/atomic"
	"time"
)

// Jobs that take less than prefetchBelow are claimed ahead of a free runner, one for each: with less
// to do than a round trip takes, runners would mostly wait. Longer ones are better left to a worker
// that is free.
const prefetchBelow = 5 * time.Millisecond

// queue is one queue as this session works it.
type queue struct {
	name        string
	concurrency int
	ready       chan *Task    // claimed, not started
	pushed      chan struct{} // tells grow that something was; never closed
	runners     int           // started so far; grow's
	taken       atomic.Int64  // tasks that runners have taken
	inFlight    atomic.Int64
	average     atomic.Uint64 // of a job's duration, in ns, as float bits
}

func newQueue(name string, concurrency int) *queue {
	q := &queue{name: name, concurrency: concurrency, ready: make(chan *Task, 2*concurrency), pushed: make(chan struct{}, 1)}
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

// grow starts runners as the jobs need them, up to the queue's concurrency: a few can keep up with jobs
// that only compute, and a thousand stacks that take turns cost more than such jobs do. So it starts
// few, and doubles them for each millisecond in which tasks wait and the runners hardly took any. It
// returns when ctx ends; start must not block.
func (q *queue) grow(ctx context.Context, start func()) {
	more := func(n int) {
		for range min(n, q.concurrency-q.runners) {
			q.runners++
			start()
		}
	}
	more(2 * runtime.GOMAXPROCS(0))
	for {
		select {
		case <-q.pushed:
		case <-ctx.Done():
			return
		}
		for before := q.taken.Load(); len(q.ready) > 0 && q.runners < q.concurrency; {
			if !sleep(ctx, time.Millisecond) {
				return
			}
			now := q.taken.Load()
			if now-before < int64(q.runners) {
				more(q.runners)
			}
			before = now
		}
	}
}
