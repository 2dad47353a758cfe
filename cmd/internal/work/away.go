package work

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// A worker may come to another hub with attempts that it still runs. They take its slots here, and are renewed through the hub that has given them out (peers.go), for as long as the
// database says that they run.

// lookFor is how long a session waits, when it opens, for what the database says of the attempts that it has from other hubs.
const lookFor = 5 * time.Second

// lookAtSome: of the attempts that a call of take names, one in so many is looked at, each time that their hubs are told that they are alive, so about once in a lease: a look costs the
// database more than that.
const lookAtSome = 6

// looks is what the database says of jobs, by their ids; nil: it has not answered.
type looks map[int64]store.Glance

// runs reports whether an attempt may still run.
func (l looks) runs(k key) bool {
	g, found := l[k.id]
	return l == nil || found && g.State == "running" && g.Worker == k.worker
}

// look asks the database about attempts of other hubs.
func (d *Dispatcher) look(ctx context.Context, keys []key) looks {
	if len(keys) == 0 || d.Calls == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	ids := make([]int64, len(keys))
	for i, k := range keys {
		ids[i] = k.id
	}
	found, err := d.Calls.Glances(ctx, ids, false)
	if err != nil {
		return nil
	}
	l := make(looks, len(found))
	for _, g := range found {
		l[g.ID] = g
	}
	return l
}

// elsewhere returns the attempts among tokens that other hubs have given out.
func (d *Dispatcher) elsewhere(tokens []string) (keys []key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, token := range tokens {
		if k, err := d.tokens.parse(token); err == nil && d.attempts[k] == nil && !d.ours[k.worker] {
			keys = append(keys, k)
		}
	}
	return keys
}

// interruptions returns what is to be interrupted of attempts: those that do not run any more, and those whose jobs were cancelled.
func (d *Dispatcher) interruptions(keys []key, l looks) (told []Interrupted) {
	for _, k := range keys {
		switch {
		case !l.runs(k):
			told = append(told, Interrupted{d.tokens.token(k), Lost})
		case l[k.id].Cancelled:
			told = append(told, Interrupted{d.tokens.token(k), Cancelled})
		}
	}
	return told
}

// lostAmong returns which of the attempts do not run any more.
func (d *Dispatcher) lostAmong(keys []key, l looks) []Interrupted {
	return slices.DeleteFunc(d.interruptions(keys, l), func(i Interrupted) bool { return i.Reason != Lost })
}

// hasAway keeps the attempts of other hubs that the session of a standing call has; the caller holds mu.
func (c *Call) hasAway(keys []key, l looks) {
	c.away = make(map[key]string, len(keys))
	for _, k := range keys {
		if l.runs(k) {
			c.away[k] = l[k.id].Queue
		}
	}
}

// Renew tells other hubs that the attempts are alive that they have given to the worker of a standing call. It returns those that are to be interrupted.
func (c *Call) Renew(ctx context.Context) []Interrupted {
	d := c.Session.d
	keys := c.elsewhere()
	if len(keys) == 0 {
		return nil
	}
	d.remind(keys)
	l := d.look(ctx, keys)
	if l == nil {
		return nil // the next time is soon enough
	}
	return c.renewed(keys, l)
}

// elsewhere returns the attempts of other hubs that the worker has, in their order.
func (c *Call) elsewhere() []key {
	d := c.Session.d
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.SortedFunc(maps.Keys(c.away), key.compare)
}

// renewed gives back the slots of those that do not run any more, by what the database says, and returns what is to be interrupted.
func (c *Call) renewed(keys []key, l looks) []Interrupted {
	d := c.Session.d
	d.mu.Lock()
	first := false
	for _, k := range keys {
		before, has := c.away[k]
		now := l[k.id].Queue
		switch {
		case !has:
		case !l.runs(k):
			first = c.cameBack(k) || first
		case before == "": // it has taken a slot of each queue
			c.away[k] = now
			first = c.freeSlots(func(queue string) bool { return queue != now }) || first
		}
	}
	if first {
		d.more()
	}
	d.mu.Unlock()
	return d.interruptions(keys, l)
}

// Ended gives back the slots of attempts of other hubs that have ended.
func (c *Call) Ended(results []Result) {
	d := c.Session.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if c = c.Session.call; c == nil { // the worker may have opened another one since it said so, which has their slots
		return
	}
	first := false
	for _, r := range results {
		if len(c.away) == 0 {
			break
		}
		if k, err := d.tokens.parse(r.Token); err == nil && (r.Recorded || r.Refusal == string(store.HasEnded) || r.Refusal == string(store.NotHeld)) {
			first = c.cameBack(k) || first
		}
	}
	if first {
		d.more()
	}
}

// cameBack gives back the slot of an attempt of another hub. It reports whether a queue had no credit before. The caller holds mu.
func (c *Call) cameBack(k key) (first bool) {
	queue, has := c.away[k]
	if !has {
		return false
	}
	delete(c.away, k)
	return c.freeSlots(func(name string) bool { return queue == name || queue == "" })
}

// freeSlots adds a slot to the credit of some of the session's queues; the caller holds mu.
func (c *Call) freeSlots(some func(queue string) bool) (first bool) {
	s := c.Session
	if s.call != c {
		return false
	}
	for name := range s.wants {
		if some(name) {
			first = s.d.give(s, s.d.queueOf(name), 1) || first
		}
	}
	return first
}
