package hub

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// crew flushes many subscribers. A goroutine for each would cost half as much again as writing a short message does: it has to be made, to
// grow its stack, and to be scheduled. So a few hands take subscribers from a queue. One whose flush takes long, for the client does not read,
// is left alone with it, and another takes its place: nobody waits behind a slow client for longer than two looks.
type crew struct {
	mu      sync.Mutex
	queue   []*Subscriber // waiting, from head on
	head    int
	hands   []*hand
	watched bool
}

// hand is one of the crew's goroutines.
type hand struct {
	looks int  // since it began its present flush
	alone bool // it is none of the crew any more, and ends with its flush
}

const (
	handsEach = 4                // per processor
	lookEvery = time.Millisecond // whether a flush takes long
)

// flush has subscribers flushed who have been woken: see Subscriber.wake. It does not wait for it.
func (c *crew) flush(woken []*Subscriber) {
	most := handsEach * runtime.GOMAXPROCS(0)
	if len(woken) <= most {
		for _, s := range woken {
			go s.flush()
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.head > len(c.queue)/2 { // what has been taken is not kept, also where the queue never runs empty
		n := copy(c.queue, c.queue[c.head:])
		clear(c.queue[n:])
		c.queue, c.head = c.queue[:n], 0
	}
	c.queue = append(c.queue, woken...)
	c.hire(most)
	if !c.watched {
		c.watched = true
		go c.watch(most)
	}
}

// hire starts as many hands as there is work for. The caller holds mu.
func (c *crew) hire(most int) {
	for len(c.hands) < min(most, len(c.queue)-c.head) {
		h := &hand{}
		c.hands = append(c.hands, h)
		go c.work(h)
	}
}

// work is a hand's goroutine. It ends when there is nothing to do.
func (c *crew) work(h *hand) {
	for s := c.take(h); s != nil; s = c.take(h) {
		s.flush()
	}
}

func (c *crew) take(h *hand) *Subscriber {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.alone {
		return nil
	}
	if c.head == len(c.queue) {
		c.hands = slices.DeleteFunc(c.hands, func(other *hand) bool { return other == h })
		return nil
	}
	s := c.queue[c.head]
	c.queue[c.head] = nil
	if c.head++; c.head == len(c.queue) {
		c.queue, c.head = c.queue[:0], 0
	}
	h.looks = 0
	return s
}

// watch looks after the hands while there are any.
func (c *crew) watch(most int) {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for range t.C {
		if !c.look(most) {
			return
		}
	}
}

func (c *crew) look(most int) (goOn bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hands = slices.DeleteFunc(c.hands, func(h *hand) bool {
		h.looks++
		h.alone = h.looks > 1
		return h.alone
	})
	c.hire(most)
	c.watched = len(c.hands) > 0
	return c.watched
}
