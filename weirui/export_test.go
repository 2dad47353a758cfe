package weirui

import (
	"testing"
	"time"
)

// Endpoint is what tests know of an endpoint.
type Endpoint struct {
	Method, Path string
	Role         Role
	Asks         bool
}

// Iterations are those of verifiers.
func Iterations() int { return iterations }

// Derived counts the keys that a Password access has derived from passwords.
func Derived(a Access) int64 { return a.(*password).derived.Load() }

// Origin is where guesses from an address are counted.
func Origin(address string) string { return origin(address) }

// Occupy takes all slots for checking passwords, and returns a function that frees them, and how many may wait.
func Occupy(a Access) (free func(), wait int) {
	p := a.(*password)
	for range cap(p.slots) {
		p.slots <- struct{}{}
	}
	return func() {
		for range cap(p.slots) {
			<-p.slots
		}
	}, waitAtMost
}

// GuessesAtOnce is how many passwords of a user may be wrong at once, from an address, and GuessEvery how often one may be after that; AddressGuesses and AddressEvery are those of
// all users together.
var (
	GuessesAtOnce, GuessEvery    = ofUser.atOnce, ofUser.every
	AddressGuesses, AddressEvery = ofAddress.atOnce, ofAddress.every
)

// Endpoints lists all pages, actions and streams.
func Endpoints(testing.TB) (all []Endpoint) {
	for _, e := range (&UI{}).endpoints() {
		all = append(all, Endpoint{e.method, e.path, e.role, e.ask != nil})
	}
	return all
}

// Redact is what is shown of a text.
func Redact(text string) string {
	u := &UI{secret: map[string]bool{}}
	for _, n := range DefaultRedact {
		u.secret[plainName(n)] = true
	}
	return string(u.redact([]byte(text)))
}

// SetPatience sets how long a page looks for jobs that are rare.
func (u *UI) SetPatience(d time.Duration) { u.patience = d }
