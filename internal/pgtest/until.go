package pgtest

import (
	"errors"
	"testing"
	"time"
)

// patience is a long time on any machine, however busy.
const patience = time.Minute

// A poll costs a query or two. The longer the wait, the less frequent the polls: at first every 5 ms, then after each twentieth of the time waited
// so far, and finally every 50 ms. Otherwise the polls would take most of the processor's time.
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
