package pgtest

import (
	"errors"
	"testing"
	"time"
)

// patience is a long time on any machine, however busy.
const patience = time.Minute

// A look costs a query or two. So the longer something takes, the less often it is looked for: at first every 5 ms, then after each twentieth of
// the time waited so far, and at last every 50 ms. Without that, what waits would take most of the processor's time from what is waited for.
const (
	shortest = 5 * time.Millisecond
	longest  = 50 * time.Millisecond
)

// Until waits for an effect of other goroutines, processes or the server, and fails the test if it does not occur within a minute.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	notYet := errors.New(what)
	Eventually(t, func() error {
		if holds() {
			return nil
		}
		return notYet
	})
}

// Eventually is Until for a function that returns why the effect has not occurred yet.
func Eventually(t testing.TB, why func() error) {
	t.Helper()
	for begin := time.Now(); ; {
		err := why()
		if err == nil {
			return
		}
		waited := time.Since(begin)
		if waited > patience {
			t.Fatalf("waited %v in vain: %v", patience, err)
		}
		<-time.After(min(max(waited/20, shortest), longest))
	}
}
