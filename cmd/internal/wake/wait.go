package wake

import (
	"container/list"
	"context"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// waiter waits for any of its queues. The goroutine that takes it out of the lists, holding Jobs.mu, also answers it: so it is answered at most
// once, and answering never blocks.
type waiter struct {
	queues []string
	places []*list.Element // its element in the list of each queue
	at     uint64          // the count that it waits from

	woken chan struct{} // closed by the answer, which is:
	count string        // the queue whose jobs it was woken for; "": none, it has to poll for itself
	ready []string
	token string
}

func (w *waiter) answer(count string, ready []string, token string) {
	w.count, w.ready, w.token = count, ready, token
	close(w.woken)
}

// Wait waits until jobs are committed to one of the queues after since was issued, and returns the queues that are known to have jobs and the
// token for the next call. Without a token, or with another hub's, it returns immediately. If ctx ends first, it returns no queues and the
// same token.
func (j *Jobs) Wait(ctx context.Context, queues []string, since string) (ready []string, token string, err error) {
	j.mu.Lock()
	j.waited = time.Now()
	j.mu.Unlock()
	if err := j.untilPolling(ctx); err != nil {
		return nil, since, err
	}
	return j.await(ctx, j.join(queues, since), since)
}

// untilPolling makes Run poll, and waits until it does.
func (j *Jobs) untilPolling(ctx context.Context) error {
	j.need()
	j.mu.Lock()
	polling := j.polling
	j.mu.Unlock()
	select {
	case <-polling:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join adds a waiter to the lists of its queues, unless there is news for it already.
func (j *Jobs) join(queues []string, since string) *waiter {
	queues = slices.Compact(slices.Sorted(slices.Values(queues)))
	w := &waiter{queues: queues, woken: make(chan struct{})}
	j.mu.Lock()
	defer j.mu.Unlock()
	at, ok := j.parse(since)
	if !ok {
		w.answer("", queues, j.token())
		return w
	}
	w.at = at
	if ready := j.news(w); len(ready) > 0 {
		w.answer("", ready, j.token())
		return w
	}
	for _, q := range queues {
		if j.waiting[q] == nil {
			j.waiting[q] = list.New()
		}
		w.places = append(w.places, j.waiting[q].PushBack(w))
	}
	return w
}

// await waits for the waiter's answer, or for ctx to end.
func (j *Jobs) await(ctx context.Context, w *waiter, since string) (ready []string, token string, err error) {
	select {
	case <-w.woken:
	case <-ctx.Done():
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waited = time.Now()
	if ctx.Err() == nil {
		return w.ready, w.token, nil
	}
	select {
	case <-w.woken:
		j.wakeFor(w.count, 1) // pass the wake-up on to the next waiter
	default:
		j.take(w)
	}
	return nil, since, ctx.Err()
}

// wake wakes as many waiters of each queue as the queue has new jobs; those that have waited longest come first.
func (j *Jobs) wake(f store.Fresh) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.count++
	if len(j.seen) > maxSeen {
		clear(j.seen)
		j.floor = j.count
	}
	for _, queue := range f.Queues { // all queues first: an answer includes all of a waiter's queues, and its next wait starts after them
		j.seen[queue] = j.count
	}
	for i, queue := range f.Queues {
		j.wakeFor(queue, int(f.Counts[i]))
	}
}

// wakeFor wakes up to limit waiters of the queue. The caller holds mu.
func (j *Jobs) wakeFor(queue string, limit int) {
	for ; limit > 0 && j.waiting[queue] != nil; limit-- {
		w := j.take(j.waiting[queue].Front().Value.(*waiter))
		w.answer(queue, j.news(w), j.token())
	}
}

// news returns the waiter's queues that have received jobs since its token. The caller holds mu.
func (j *Jobs) news(w *waiter) (ready []string) {
	for _, q := range w.queues {
		if j.seen[q] > w.at {
			ready = append(ready, q)
		}
	}
	return ready
}

// take removes a waiter from the lists of its queues. The caller holds mu.
func (j *Jobs) take(w *waiter) *waiter {
	for i, q := range w.queues {
		all := j.waiting[q]
		if all.Remove(w.places[i]); all.Len() == 0 {
			delete(j.waiting, q)
		}
	}
	return w
}
