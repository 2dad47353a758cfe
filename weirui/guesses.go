package weirui

import (
	"fmt"
	"sync"
	"time"
)

const (
	guessesAtOnce = 10              // from an address; after that,
	guessEvery    = 3 * time.Second // one
	guessersKept  = 10_000
)

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

// take charges a guess; false: there were too many, and the next may be made after a while.
func (g *guesses) take(who guesser, now time.Time) (after time.Duration, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	free := now.Add(-guessesAtOnce * guessEvery)
	if f := g.free[who]; f.After(free) {
		free = f
	}
	if free = free.Add(guessEvery); free.After(now) {
		return free.Sub(now), false
	}
	if g.free == nil {
		g.free = map[guesser]time.Time{}
	}
	if len(g.free) >= guessersKept {
		for other, f := range g.free {
			if now.Sub(f) >= guessesAtOnce*guessEvery {
				delete(g.free, other)
			}
		}
		if len(g.free) >= guessersKept {
			clear(g.free) // how many are checked at a time is bounded in any case
		}
	}
	g.free[who] = free
	return 0, true
}

// giveBack undoes a charge.
func (g *guesses) giveBack(who guesser) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f, ok := g.free[who]; ok {
		g.free[who] = f.Add(-guessEvery)
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
