package wake

import (
	"container/list"
	"context"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// waiter waits for one of some queues. Whoever takes it out of the lists, with Jobs.mu held, answers it: so it is answered once at most,
// and nobody waits in order to do so.
type waiter struct {
	queues []string
	places []*list.Element // in the list of each
	at     uint64          // since when

	woken chan struct{} // closed by the answer, which is:
	count string        // the queue by which it was counted; "": it was told to look itself
	ready []string
	token string
}

func (w *waiter) answer(count string, ready []string, token string) {
	w.count, w.ready, w.token = count, ready, token
	close(w.woken)
}

// Wait returns when jobs were committed for one of the queues since the token was given out, with those of the queues that are known to
// have some, and the token to wait with next. Without a token, or with that of another hub, it returns at once. When ctx ends first
// it returns no queue and the same token.
func (j *Jobs) Wait(ctx context.Context, queues []string, since string) (ready []string, token string, err error) {
	j.mu.Lock()
	j.waited = time.Now()
	j.mu.Unlock()
	if err := j.untilLooking(ctx); err != nil {
		return nil, since, err
	}
	return j.await(ctx, j.join(queues, since), since)
}

func (j *Jobs) untilLooking(ctx context.Context) error {
	j.need()
	j.mu.Lock()
	looking := j.looking
	j.mu.Unlock()
	select {
	case <-looking:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join enters a waiter into the lists of its queues, unless there is news for it already.
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
		j.wakeFor(w.count, 1) // a wake-up is not lost with who leaves
	default:
		j.take(w)
	}
	return nil, since, ctx.Err()
}

// wake tells as many waiters of each queue as it has jobs, the longest waiting first.
func (j *Jobs) wake(f store.Fresh) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.count++
	if len(j.seen) > mostSeen {
		clear(j.seen)
		j.floor = j.count
	}
	for _, queue := range f.Queues { // all of them first: a waiter is told of all at once, and its next wait begins after them
		j.seen[queue] = j.count
	}
	for i, queue := range f.Queues {
		j.wakeFor(queue, int(f.Counts[i]))
	}
}

// wakeFor wakes so many of those who wait for the queue, if there are as many. The caller holds mu.
func (j *Jobs) wakeFor(queue string, most int) {
	for ; most > 0 && j.waiting[queue] != nil; most-- {
		w := j.take(j.waiting[queue].Front().Value.(*waiter))
		w.answer(queue, j.news(w), j.token())
	}
}

// news returns the waiter's queues that have had jobs since it began to wait. The caller holds mu.
func (j *Jobs) news(w *waiter) (ready []string) {
	for _, q := range w.queues {
		if j.seen[q] > w.at {
			ready = append(ready, q)
		}
	}
	return ready
}

// take takes a waiter out of the lists that it is in. The caller holds mu.
func (j *Jobs) take(w *waiter) *waiter {
	for i, q := range w.queues {
		all := j.waiting[q]
		if all.Remove(w.places[i]); all.Len() == 0 {
			delete(j.waiting, q)
		}
	}
	return w
}
