package pgwire

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// TestGuessingIsBounded: per address and per user, a limited number of passwords can be tried at once, and then a few a second. A client that knows the
// password pays nothing, is never refused because of others, and is not even delayed where it has logged in before.
func TestGuessingIsBounded(t *testing.T) {
	t.Parallel()
	var throttle throttle
	now := time.Unix(1_000_000, 0)
	here, there, elsewhere := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	try := func(at netip.Addr, user string, right bool) (time.Duration, bool) {
		wait, ok := throttle.attempt(&throttle, guesser{at, user}, right, now)
		if ok && right {
			throttle.loggedIn(guesser{at, user})
		}
		return wait, ok
	}
	expect := func(what string, at netip.Addr, user string, right bool, wait time.Duration, ok bool) {
		t.Helper()
		if w, k := try(at, user, right); k != ok || k && w != wait {
			t.Errorf("%s: waits %v, %v; want %v, %v", what, w, k, wait, ok)
		}
	}
	for range 10 * guessesAtOnce { // all are checked at the same time: none has logged in yet
		if wait, ok := throttle.attempt(&throttle, guesser{there, "app"}, true, now); wait != 0 || !ok {
			t.Fatalf("one of many who know the password waits %v, %v", wait, ok)
		}
	}
	for range 10 * guessesAtOnce {
		expect("one who knows the password", there, "app", true, 0, true)
	}
	for i := range guessesAtOnce {
		expect("a guess", here, fmt.Sprint("user", i), false, 0, true)
	}
	turns := int(maxTurn / guessEvery)
	for i := range turns {
		expect("a guess that waits its turn", here, fmt.Sprint("other", i), false, time.Duration(i+1)*guessEvery, true)
	}
	expect("a guess too many", here, "more", false, 0, false)
	expect("one from elsewhere", elsewhere, "user1", true, 0, true)
	now = now.Add(2 * guessEvery)
	expect("a guess some time later", here, "more", false, maxTurn-guessEvery, true)

	// Guesses for one user from everywhere are delayed; the user itself is delayed by a few seconds at most, at an address where it has not logged in.
	held := 0
	for i := range 1000 {
		wait, ok := try(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), "app", false)
		if !ok || wait > maxDelay {
			t.Fatalf("guess %d from an address of its own waits %v, %v", i, wait, ok)
		}
		if wait > 0 {
			held++
		}
	}
	if want := 1000 - guessesAtOnce; held != want {
		t.Errorf("%d guesses were held up, want %d", held, want)
	}
	expect("the user at a new address", elsewhere, "app", true, maxDelay, true)
	expect("the user where it logged in before", there, "app", true, 0, true)
	expect("the user where it logged in a moment ago", elsewhere, "app", true, 0, true)

	// Neighbours behind the same address.
	for range guessesAtOnce + turns {
		try(there, "guessed", false)
	}
	expect("a guess by the neighbours", there, "guessed", false, 0, false)
	expect("the user beside them", there, "app", true, 0, true)

	for i := range 3 * maxRemembered {
		try(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), fmt.Sprint(i), i%2 == 0)
	}
	if g, p := throttle.guesses, throttle.proven; len(g.all) > maxRemembered || len(p.all) > maxRemembered || g.order.Len() != len(g.all) || p.order.Len() != len(p.all) {
		t.Errorf("%d and %d buckets are remembered, at most %d may be", len(g.all), len(p.all), maxRemembered)
	}
}

// TestGuessesAtSeveralDatabasesAddUp: what an address guesses at one database of a door counts at the others; users of the same name have nothing
// to do with each other.
func TestGuessesAtSeveralDatabasesAddUp(t *testing.T) {
	t.Parallel()
	var door, one, two throttle
	now := time.Unix(1_000_000, 0)
	here := guesser{netip.MustParseAddr("192.0.2.1"), "app"}
	two.loggedIn(here)
	for range guessesAtOnce + int(maxTurn/guessEvery) {
		if _, ok := one.attempt(&door, here, false, now); !ok {
			t.Fatal("a guess is refused too early")
		}
	}
	if _, ok := one.attempt(&door, here, false, now); ok {
		t.Error("guesses at one database are not bounded")
	}
	if wait, ok := two.attempt(&door, here, true, now); !ok || wait != 0 {
		t.Errorf("the user of the other database waits %v, %v where it has logged in before", wait, ok)
	}
	if _, ok := two.attempt(&door, guesser{here.address, "other"}, false, now); ok {
		t.Error("the address goes on guessing at the other database")
	}
	if wait, ok := two.attempt(&door, guesser{netip.MustParseAddr("192.0.2.2"), "app"}, false, now); !ok || wait != 0 {
		t.Errorf("the other database's user of the same name waits %v, %v", wait, ok)
	}
}
