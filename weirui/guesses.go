package weirui

import (
	"fmt"
	"sync"
	"time"
)

// allowance is how many passwords may be wrong: so many at once, and one in each time after that.
type allowance struct {
	atOnce int
	every  time.Duration
}

var (
	ofUser    = allowance{10, 3 * time.Second} // of a user, from an address
	ofAddress = allowance{60, time.Second}     // of all users together, from an address
)

const guessersKept = 10_000

// guesses counts wrong passwords. The zero value is ready for use.
type guesses struct {
	mu    sync.Mutex
	free  map[guesser]time.Time // when all of them are worked off
	known map[guesser]bool      // users at addresses from which they have logged in
}

// guesser is an address, or a user at one.
type guesser struct{ origin, name string }

// tooManyGuesses is the error of a login that is refused unseen.
type tooManyGuesses struct{ after time.Duration }

func (e *tooManyGuesses) Error() string {
	return fmt.Sprintf("too many wrong passwords: try again in %s", e.after.Round(time.Second))
}

// take charges a guess; an error: there were too many.
func (g *guesses) take(who guesser, a allowance, now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	free, err := g.next(who, a, now)
	if err == nil {
		g.set(who, free, now)
	}
	return err
}

// mayGuess returns the error of take, and charges nothing.
func (g *guesses) mayGuess(who guesser, a allowance, now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := g.next(who, a, now)
	return err
}

// next is when all guesses are worked off with one more.
func (g *guesses) next(who guesser, a allowance, now time.Time) (free time.Time, err error) {
	free = now.Add(-time.Duration(a.atOnce) * a.every)
	if f := g.free[who]; f.After(free) {
		free = f
	}
	if free = free.Add(a.every); free.After(now) {
		err = &tooManyGuesses{free.Sub(now)}
	}
	return free, err
}

func (g *guesses) set(who guesser, free, now time.Time) {
	if g.free == nil {
		g.free = map[guesser]time.Time{}
	}
	if _, ok := g.free[who]; !ok && len(g.free) >= guessersKept {
		for other, f := range g.free {
			if now.Sub(f) >= max(time.Duration(ofUser.atOnce)*ofUser.every, time.Duration(ofAddress.atOnce)*ofAddress.every) {
				delete(g.free, other)
			}
		}
		if len(g.free) >= guessersKept {
			clear(g.free) // how many are checked at a time is bounded in any case
		}
	}
	g.free[who] = free
}

// giveBack undoes a charge.
func (g *guesses) giveBack(who guesser, a allowance) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f, ok := g.free[who]; ok {
		g.free[who] = f.Add(-a.every)
	}
}

// proven reports whether a user has logged in from an address.
func (g *guesses) proven(who guesser) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known[who]
}

// prove remembers that a user has logged in from an address.
func (g *guesses) prove(who guesser) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known == nil {
		g.known = map[guesser]bool{}
	}
	if len(g.known) >= guessersKept {
		clear(g.known)
	}
	g.known[who] = true
}
