package jobs

import (
	"context"
	"sync"

	"github.com/weir-pg/weir/internal/store"
)

// Requests of one job each that come at the same time are enqueued in common transactions: what one costs the server is mostly its commit.
const (
	togetherAtOnce = 2       // transactions; the other connections are for other requests
	maxTogether    = 500     // jobs of one
	maxKeyed       = 100     // jobs with keys of one, each of which has a lock
	maxTogetherLen = 1 << 20 // bytes of them, unless it is one
)

// together enqueues single jobs. A job waits only while as many transactions are under way as may be, and so not if there are few.
type together struct {
	store *store.Store
	keyed bool // each request has an Idempotency-Key

	mu      sync.Mutex
	waiting []*single // as many as there are requests, at most
	running int       // transactions under way
}

// single is a job that waits to be enqueued.
type single struct {
	key  string // of the request; "": none
	job  string
	done chan ending // receives one
}

// ending is what has become of it.
type ending struct {
	answer store.Answer // without an id: nothing was done, because the request's key is, or was, used
	err    error
}

// enqueue enqueues a job as store.EnqueueOne does, or store.EnqueueRequests.
func (t *together) enqueue(ctx context.Context, key, job string) (store.Answer, error) {
	s := &single{key, job, make(chan ending, 1)}
	t.mu.Lock()
	t.waiting = append(t.waiting, s)
	starts := t.running < togetherAtOnce
	if starts {
		t.running++
	}
	t.mu.Unlock()
	if starts {
		go t.run() // ends when nothing waits
	}
	select {
	case e := <-s.done:
		return e.answer, e.err
	case <-ctx.Done():
		return store.Answer{}, ctx.Err()
	}
}

// run enqueues what waits until nothing does.
func (t *together) run() {
	for {
		t.mu.Lock()
		n, size, most := 0, 0, maxTogether
		if t.keyed {
			most = maxKeyed
		}
		for ; n < min(len(t.waiting), most); n++ {
			if size += len(t.waiting[n].job); n > 0 && size > maxTogetherLen {
				break
			}
		}
		some := t.waiting[:n:n]
		t.waiting = t.waiting[n:]
		if n == 0 {
			t.waiting = nil
			t.running--
		}
		t.mu.Unlock()
		if n == 0 {
			return
		}
		t.send(some)
	}
}

// send enqueues some in one transaction. If the server refuses a value, it halves them until that one is alone, so that none fails because of another.
func (t *together) send(some []*single) {
	ctx, cancel := context.WithTimeout(context.Background(), patience) // whoever of them gives up
	defer cancel()
	if len(some) == 1 && !t.keyed {
		answer, err := t.store.EnqueueOne(ctx, some[0].job)
		some[0].done <- ending{answer, err}
		return
	}
	keys, jobs := make([]string, len(some)), make([]string, len(some))
	for i, s := range some {
		keys[i], jobs[i] = s.key, s.job
	}
	var ids []int64
	var err error
	if t.keyed {
		ids, err = t.store.EnqueueRequests(ctx, keys, jobs)
	} else {
		ids, err = t.store.EnqueueEach(ctx, jobs)
	}
	if len(some) > 1 && (store.IsBadInput(err) || store.IsFlowEnded(err)) {
		t.send(some[:len(some)/2])
		t.send(some[len(some)/2:])
		return
	}
	for i, s := range some {
		e := ending{err: err}
		if err == nil {
			e.answer.ID = ids[i]
		}
		s.done <- e
	}
}
