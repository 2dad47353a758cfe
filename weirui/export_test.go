package weirui

import "testing"

// Endpoint is what tests know of an endpoint.
type Endpoint struct {
	Method, Path string
	Role         Role
}

// Derived counts the keys that a Password access has derived from passwords.
func Derived(a Access) int64 { return a.(*password).derived.Load() }

// GuessesAtOnce is how many passwords may be wrong at once, and GuessEvery how often one may be after that.
const (
	GuessesAtOnce = guessesAtOnce
	GuessEvery    = guessEvery
)

// Endpoints lists all pages and actions.
func Endpoints(testing.TB) (all []Endpoint) {
	for _, e := range (&UI{}).endpoints() {
		all = append(all, Endpoint{e.method, e.path, e.role})
	}
	return all
}
