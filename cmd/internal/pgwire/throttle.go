package pgwire

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

// throttle limits how fast passwords can be guessed. An attempt is charged before its password is checked, and refunded if that is right, so
// a wrong password can't be distinguished from a delayed one, and clients that know the password pay nothing.
//
// An attempt is charged to its address, beyond whose limit it waits and finally is refused; and to its user, beyond whose limit it waits
// for a few seconds only, because attempts from elsewhere must not lock a user out. An address from which a user has logged in before is charged
// for that user separately: neighbours behind the same address, and guesses from elsewhere, do not delay the user there.
type throttle struct {
	mu      sync.Mutex
	guesses recent // of addresses, and of users
	proven  recent // of users at addresses from which they have logged in
}

const (
	guessesAtOnce = 100                    // from an address or for a user; after that,
	guessEvery    = 200 * time.Millisecond // one
	maxTurn       = 10 * time.Second       // longest wait because of an address; beyond it, attempts are refused
	maxDelay      = 5 * time.Second        // longest wait because of a user
	maxRemembered = 10_000                 // addresses and users; the least recently used are forgotten
)

// attempt is one password check.
type attempt struct {
	throttle *throttle
	who      guesser
	charged  []*bucket
}

type guesser struct {
	address netip.Addr
	user    string
}

// attempt charges an attempt and returns how long it has to wait; false: it is refused.
func (t *throttle) attempt(address netip.Addr, user string, now time.Time) (a attempt, wait time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a = attempt{throttle: t, who: guesser{address, user}}
	strict := t.proven.get(a.who, false)
	if strict != nil {
		wait, ok = strict.take(now, maxTurn)
		a.charged = []*bucket{strict}
		return a, wait, ok
	}
	strict = t.guesses.get(guesser{address: address}, true)
	if wait, ok = strict.take(now, maxTurn); !ok {
		return a, wait, false
	}
	a.charged = []*bucket{strict}
	lenient := t.guesses.get(guesser{user: user}, true)
	delay, ok := lenient.take(now, maxDelay)
	if ok {
		a.charged = append(a.charged, lenient)
	}
	return a, max(wait, min(delay, maxDelay)), true
}

// right refunds the attempt, because its password was right.
func (a attempt) right() {
	t := a.throttle
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range a.charged {
		b.free = b.free.Add(-guessEvery)
	}
	t.proven.get(a.who, true)
}

// bucket counts guesses, as the time at which all of them have been worked off.
type bucket struct {
	who  guesser
	free time.Time
}

// take charges a guess and returns how long it has to wait, unless that exceeds the limit.
func (b *bucket) take(now time.Time, limit time.Duration) (wait time.Duration, ok bool) {
	free := now.Add(-guessesAtOnce * guessEvery)
	if b.free.After(free) {
		free = b.free
	}
	free = free.Add(guessEvery)
	if wait = free.Sub(now); wait > limit {
		return wait, false
	}
	b.free = free
	return max(wait, 0), true
}

// recent holds buckets, the most recently used first.
type recent struct {
	all   map[guesser]*list.Element
	order list.List
}

// get returns a bucket. If it is missing, it is created on request; otherwise get returns nil.
func (r *recent) get(who guesser, create bool) *bucket {
	if e := r.all[who]; e != nil {
		r.order.MoveToFront(e)
		return e.Value.(*bucket)
	}
	if !create {
		return nil
	}
	if r.order.Len() >= maxRemembered {
		delete(r.all, r.order.Remove(r.order.Back()).(*bucket).who)
	}
	if r.all == nil {
		r.all = map[guesser]*list.Element{}
	}
	b := &bucket{who: who}
	r.all[who] = r.order.PushFront(b)
	return b
}

const stillThere = 200 * time.Millisecond // interval at which a waiting client's connection is checked

// turn waits until the client's password can be checked.
func (c *conn) turn() (attempt, error) {
	a, wait, ok := c.server.throttle.attempt(origin(c.raw.RemoteAddr()), c.user, time.Now())
	if !ok {
		return a, errorf(badAuthorization, "too many failed logins from this address").
			hint("Try again in a minute, with the right password.")
	}
	for until := time.Now().Add(wait); wait > 0; wait = time.Until(until) {
		time.Sleep(min(wait, stillThere))
		if c.shed.Load() || c.server.stopping.Load() {
			return a, errEnding
		}
	}
	return a, nil
}
