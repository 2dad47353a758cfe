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

// Jobs shorter than prefetchBelow are claimed ahead, one for each runner: such jobs take less time than a round trip, so runners would
// mostly wait for the next claim. Longer jobs are better left to a worker that is free.
const prefetchBelow = 5 * time.Millisecond

// queue is one queue as this session works it.
//
// A runner is a goroutine that takes one task after the other, and ends when none waits. The queue starts as few of them as it needs: if a
// thousand goroutines take turns at short jobs that only compute, the growth of their stacks costs more than the jobs.
type queue struct {
	name        string
	concurrency int
	slots       func() int    // how many jobs may run now, at most concurrency; nil: concurrency
	room        Room          // slots that it shares with others; nil: it does not
	start       func()        // starts one runner; does not block
	pushed      chan struct{} // signals grow that tasks were pushed; never closed
	inFlight    atomic.Int64
	all         *atomic.Int64 // counts those of all queues, too; nil: nobody asks
	average     atomic.Uint64 // duration of a job, in ns, as float bits
	part        int           // how many of its jobs a claim may get, because all queues share what there is; 0: as many as it has room for; the fetcher's
	filled      bool          // the last claim from it got as many jobs as it asked for, so there may be more; the fetcher's
	lookAt      time.Time     // limits withheld its jobs: when to claim some again, unless this worker makes room before; the fetcher's
	awaits      bool          // until lookAt, it leaves the queue to others who are before it, even if it makes room; the fetcher's

	mu      sync.Mutex
	ready   []*Task // claimed tasks; those from head on have not started
	head    int
	runners int
	taken   int64 // number of tasks that runners have taken
	was     int64 // what taken was when stuck last looked, if tasks waited then; -1: none did
}

func newQueue(name string, concurrency int) *queue {
	q := &queue{name: name, concurrency: concurrency, pushed: make(chan struct{}, 1), was: -1}
	q.average.Store(math.Float64bits(float64(time.Second)))
	return q
}

// short reports whether jobs are so short that they are claimed ahead.
func (q *queue) short() bool {
	return math.Float64frombits(q.average.Load()) < float64(prefetchBelow)
}

func (q *queue) capacity() int {
	switch {
	case q.slots != nil: // none is claimed ahead of a slot
		return min(q.slots(), q.concurrency)
	case q.short():
		return 2 * q.concurrency
	}
	return q.concurrency
}

// flies adds n to the jobs in flight.
func (q *queue) flies(n int) {
	q.inFlight.Add(int64(n))
	if q.all != nil {
		q.all.Add(int64(n))
	}
}

// free returns how many more jobs may be claimed.
func (q *queue) free() int { return max(q.capacity()-int(q.inFlight.Load()), 0) }

// worthwhile reports whether to claim now, rather than wait for more room, which short jobs soon make. It asks for the slots once: if it compared two answers, between which others have
// left some, it could find those that are free to be few, while none of its own jobs is there to end, and nobody would tell it of room any more.
func (q *queue) worthwhile() bool {
	capacity := q.capacity()
	free := capacity - int(q.inFlight.Load())
	switch {
	case !q.short():
		return free > 0
	case q.slots != nil:
		return free > 0 && 2*free >= capacity
	}
	return free >= q.concurrency
}

// hasSlot reports whether a job that is claimed now has a slot, or may be claimed ahead.
func (q *queue) hasSlot() bool {
	if q.slots == nil {
		return q.worthwhile()
	}
	return q.free() > 0
}

// awaitsTurn reports whether this worker leaves the queue to others who are before it.
func (q *queue) awaitsTurn(now time.Time) bool { return q.awaits && now.Before(q.lookAt) }

// finished removes a job, and adds its duration to the average of the last few. A race only loses one sample.
func (q *queue) finished(took time.Duration) {
	old := math.Float64frombits(q.average.Load())
	q.average.Store(math.Float64bits(old + (float64(took)-old)/8))
	q.flies(-1)
	if q.room != nil {
		q.room.Ended()
	}
}

// reserve returns how many jobs to claim.
func (q *queue) reserve() int {
	if q.room == nil {
		return q.free()
	}
	return q.room.Reserve(q.concurrency - int(q.inFlight.Load()))
}

// settle ends a claim that reserved some places, and got some jobs, which were pushed.
func (q *queue) settle(reserved, jobs int) {
	if q.room != nil && reserved > 0 {
		q.room.Settle(jobs)
	}
}

// push queues tasks for runners, in order. It starts enough runners to finish all waiting tasks within a millisecond, if they take as long
// as the last few did; if they take longer, grow adds more.
func (q *queue) push(tasks []*Task) {
	q.flies(len(tasks))
	q.mu.Lock()
	q.ready = append(slices.Delete(q.ready, 0, q.head), tasks...)
	q.head = 0
	average := math.Float64frombits(q.average.Load())
	if q.slots != nil {
		q.more(len(q.ready)) // each is for somebody who waits for it
	}
	q.more(least() + int(min(average/float64(time.Millisecond)*float64(len(q.ready)), float64(q.concurrency))) - q.runners)
	q.mu.Unlock()
	select {
	case q.pushed <- struct{}{}:
	default:
	}
}

// least is the number of runners that keeps the processors busy.
func least() int { return 2 * runtime.GOMAXPROCS(0) }

// more starts n runners, limited by the queue's concurrency and by the number of waiting tasks. The caller holds mu.
func (q *queue) more(n int) {
	for range min(n, q.concurrency-q.runners, len(q.ready)-q.head) {
		q.runners++
		q.start()
	}
}

// take returns a runner's next task; nil: none waits, and the runner ends.
func (q *queue) take() *Task {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.ready) || q.room != nil && !q.room.Enter() {
		q.runners--
		return nil
	}
	t := q.ready[q.head]
	q.ready[q.head] = nil
	q.head++
	q.taken++
	return t
}

// resume starts runners for tasks that could not enter before.
func (q *queue) resume() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.room != nil {
		q.more(len(q.ready) - q.head)
	}
}

// takeAll removes and returns the tasks that no runner has taken.
func (q *queue) takeAll() []*Task {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.clear()
}

// clear is takeAll for callers that hold mu.
func (q *queue) clear() []*Task {
	rest := q.ready[q.head:]
	q.ready, q.head = nil, 0
	return rest
}

// stuck removes and returns the tasks that wait, if some have waited since it looked last, and no runner has taken one: they were claimed ahead, because jobs were short, and those that run
// now are not. So none is claimed ahead until jobs are short again.
func (q *queue) stuck() []*Task {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.head == len(q.ready):
		q.was = -1
		return nil
	case q.taken != q.was:
		q.was = q.taken
		return nil
	}
	q.was = -1
	q.average.Store(math.Float64bits(float64(time.Second)))
	return q.clear()
}

// grow doubles the runners after each millisecond in which tasks waited and the runners took hardly any, up to the queue's concurrency. It
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

// growOnce adds runners if too few tasks were taken since before, the number of tasks taken a moment ago, unless that is negative. It
// returns the current number, and whether tasks wait that more runners could take.
func (q *queue) growOnce(before int64) (taken int64, waits bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if before >= 0 && q.taken-before < int64(q.runners) {
		q.more(q.runners)
	}
	return q.taken, q.head < len(q.ready) && q.runners < q.concurrency
}
