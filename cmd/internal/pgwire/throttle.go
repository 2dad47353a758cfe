package pgwire

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

// throttle limits how fast passwords can be guessed. A wrong password is charged; a right one is not, but waits as a wrong one would, so that the two
// can't be told apart before the wait is over. Clients that know the password never hold each other up, however many log in at once.
//
// A guess is charged to its address, beyond whose limit it waits and finally is refused; and to its user, beyond whose limit it waits
// for a few seconds only, because attempts from elsewhere must not lock a user out. An address from which a user has logged in before is charged
// for that user separately: neighbours behind the same address, and guesses from elsewhere, do not delay the user there.
//
// Addresses are the door's, for all its databases together; users are their database's.
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

type guesser struct {
	address netip.Addr
	user    string
}

// attempt charges an attempt, unless its password is right, and returns how long it has to wait; false: it is refused. The door may be t itself.
func (t *throttle) attempt(door *throttle, who guesser, right bool, now time.Time) (wait time.Duration, ok bool) {
	if wait, ok, known := t.attemptProven(who, right, now); known {
		return wait, ok
	}
	if wait, ok = door.guess(guesser{address: who.address}, maxTurn, right, now); !ok {
		return wait, false
	}
	delay, _ := t.guess(guesser{user: who.user}, maxDelay, right, now)
	return max(wait, min(delay, maxDelay)), true
}

func (t *throttle) attemptProven(who guesser, right bool, now time.Time) (wait time.Duration, ok, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	proven := t.proven.get(who, false)
	if proven == nil {
		return 0, false, false
	}
	wait, ok = proven.take(now, maxTurn, right)
	return wait, ok, true
}

func (t *throttle) guess(who guesser, limit time.Duration, right bool, now time.Time) (wait time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.guesses.get(who, true).take(now, limit, right)
}

// loggedIn remembers from where a user has logged in.
func (t *throttle) loggedIn(who guesser) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.proven.get(who, true)
}

// bucket counts guesses, as the time at which all of them have been worked off.
type bucket struct {
	who  guesser
	free time.Time
}

// take returns how long a guess has to wait, and charges it, unless it is right, or would wait longer than the limit.
func (b *bucket) take(now time.Time, limit time.Duration, right bool) (wait time.Duration, ok bool) {
	free := now.Add(-guessesAtOnce * guessEvery)
	if b.free.After(free) {
		free = b.free
	}
	free = free.Add(guessEvery)
	if wait = free.Sub(now); wait > limit {
		return wait, false
	}
	if !right {
		b.free = free
	}
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

// turn waits until the client may know whether its password is right.
func (c *conn) turn(right bool) error {
	who := guesser{origin(c.raw.RemoteAddr()), c.user}
	wait, ok := c.server.throttle.attempt(&c.door.throttle, who, right, time.Now())
	if !ok {
		return errorf(badAuthorization, "too many failed logins from this address").
			hint("Try again in a minute, with the right password.")
	}
	for until := time.Now().Add(wait); wait > 0; wait = time.Until(until) {
		time.Sleep(min(wait, stillThere))
		if c.shed.Load() || c.stopping() {
			return errEnding
		}
	}
	if right {
		c.server.throttle.loggedIn(who)
	}
	return nil
}
