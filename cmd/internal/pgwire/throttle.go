package pgwire

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

// throttle bounds how fast passwords can be guessed. An attempt is charged before its password is checked, and given back if that was right: so
// a wrong one can't be told from one that waits, and who knows the password pays nothing.
//
// Charged is the address that it comes from, past which an attempt waits its turn and in the end is refused; and the user, past which it waits
// for some seconds only, for nobody is to be locked out by what others do elsewhere. An address from which a user has logged in before is charged
// for that user apart from both: neighbours behind the same address, and guesses from everywhere else, do not hold the user up there.
type throttle struct {
	mu      sync.Mutex
	guesses recent // of addresses, and of users
	proven  recent // of users at addresses where they have logged in
}

const (
	guessesAtOnce  = 100                    // from an address or for a user, and then
	guessEvery     = 200 * time.Millisecond // one
	mostTurn       = 10 * time.Second       // that an address waits for its turn: more is refused
	mostDelay      = 5 * time.Second        // that a user may be held up by others
	mostRemembered = 10_000                 // addresses and users; those longest unheard of are forgotten
)

// attempt is a password that is to be checked.
type attempt struct {
	throttle *throttle
	who      guesser
	charged  []*bucket
}

type guesser struct {
	address netip.Addr
	user    string
}

// attempt charges for one, and returns how long it has to wait; false: it is refused.
func (t *throttle) attempt(address netip.Addr, user string, now time.Time) (a attempt, wait time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a = attempt{throttle: t, who: guesser{address, user}}
	strict := t.proven.get(a.who, false)
	if strict != nil {
		wait, ok = strict.take(now, mostTurn)
		a.charged = []*bucket{strict}
		return a, wait, ok
	}
	strict = t.guesses.get(guesser{address: address}, true)
	if wait, ok = strict.take(now, mostTurn); !ok {
		return a, wait, false
	}
	a.charged = []*bucket{strict}
	lenient := t.guesses.get(guesser{user: user}, true)
	delay, ok := lenient.take(now, mostDelay)
	if ok {
		a.charged = append(a.charged, lenient)
	}
	return a, max(wait, min(delay, mostDelay)), true
}

// right gives back what the attempt was charged, for its password was right.
func (a attempt) right() {
	t := a.throttle
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range a.charged {
		b.free = b.free.Add(-guessEvery)
	}
	t.proven.get(a.who, true)
}

// bucket counts guesses by the time at which all of them would be paid off.
type bucket struct {
	who  guesser
	free time.Time
}

// take charges a guess and returns for how long it has to wait, unless that is more than most.
func (b *bucket) take(now time.Time, most time.Duration) (wait time.Duration, ok bool) {
	free := now.Add(-guessesAtOnce * guessEvery)
	if b.free.After(free) {
		free = b.free
	}
	free = free.Add(guessEvery)
	if wait = free.Sub(now); wait > most {
		return wait, false
	}
	b.free = free
	return max(wait, 0), true
}

// recent is buckets, those used last in front.
type recent struct {
	all   map[guesser]*list.Element
	order list.List
}

// get returns somebody's bucket; nil where there is none and none is to be made.
func (r *recent) get(who guesser, create bool) *bucket {
	if e := r.all[who]; e != nil {
		r.order.MoveToFront(e)
		return e.Value.(*bucket)
	}
	if !create {
		return nil
	}
	if r.order.Len() >= mostRemembered {
		delete(r.all, r.order.Remove(r.order.Back()).(*bucket).who)
	}
	if r.all == nil {
		r.all = map[guesser]*list.Element{}
	}
	b := &bucket{who: who}
	r.all[who] = r.order.PushFront(b)
	return b
}

const stillThere = 200 * time.Millisecond // so often who waits is looked after

// turn waits until the client's password may be checked.
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
