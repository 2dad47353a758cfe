package hub

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// flushers is a small pool of goroutines that flush many subscribers. A goroutine for each subscriber would cost half as much again as
// writing a short message: it has to be created, scheduled, and its stack has to grow. A flusher that takes long, because its client does
// not read, leaves the pool and is replaced: no subscriber waits behind a slow client for longer than two checks.
type flushers struct {
	mu      sync.Mutex
	queue   []*Subscriber // waiting, from head on
	head    int
	pool    []*flusher
	watched bool // a goroutine checks for slow flushers
}

// flusher is one goroutine of the pool.
type flusher struct {
	checks int  // since its present flush began
	left   bool // it no longer belongs to the pool, and ends after its flush
}

const (
	flushersEach = 4                // per processor
	checkEvery   = time.Millisecond // whether a flush takes long
)

// flush flushes subscribers whose wake returned true. It does not wait for them.
func (f *flushers) flush(woken []*Subscriber) {
	limit := flushersEach * runtime.GOMAXPROCS(0)
	if len(woken) <= limit {
		for _, s := range woken {
			go s.flush()
		}
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.head > len(f.queue)/2 { // frees the used part even if the queue never becomes empty
		n := copy(f.queue, f.queue[f.head:])
		clear(f.queue[n:])
		f.queue, f.head = f.queue[:n], 0
	}
	f.queue = append(f.queue, woken...)
	f.start(limit)
	if !f.watched {
		f.watched = true
		go f.watch(limit)
	}
}

// start adds flushers until there is one for each waiting subscriber, up to limit. The caller holds mu.
func (f *flushers) start(limit int) {
	for len(f.pool) < min(limit, len(f.queue)-f.head) {
		one := &flusher{}
		f.pool = append(f.pool, one)
		go f.run(one)
	}
}

// run is a flusher's goroutine. It ends when no subscriber is waiting.
func (f *flushers) run(one *flusher) {
	for s := f.next(one); s != nil; s = f.next(one) {
		s.flush()
	}
}

// next returns the subscriber that the flusher flushes next; nil ends the flusher.
func (f *flushers) next(one *flusher) *Subscriber {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one.left {
		return nil
	}
	if f.head == len(f.queue) {
		f.pool = slices.DeleteFunc(f.pool, func(other *flusher) bool { return other == one })
		return nil
	}
	s := f.queue[f.head]
	f.queue[f.head] = nil
	if f.head++; f.head == len(f.queue) {
		f.queue, f.head = f.queue[:0], 0
	}
	one.checks = 0
	return s
}

// watch checks the pool until it is empty.
func (f *flushers) watch(limit int) {
	t := time.NewTicker(checkEvery)
	defer t.Stop()
	for range t.C {
		if !f.replaceSlow(limit) {
			return
		}
	}
}

// replaceSlow removes flushers from the pool that have spent two checks in one flush, and starts others. It reports whether any are left.
func (f *flushers) replaceSlow(limit int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pool = slices.DeleteFunc(f.pool, func(one *flusher) bool {
		one.checks++
		one.left = one.checks > 1
		return one.left
	})
	f.start(limit)
	f.watched = len(f.pool) > 0
	return f.watched
}
