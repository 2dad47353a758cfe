package pgtest

import (
	"errors"
	"testing"
	"time"
)

// patience is a long time on any machine, however busy.
const patience = time.Minute

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
	for end := time.Now().Add(patience); ; <-time.After(5 * time.Millisecond) {
		err := why()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain: %v", patience, err)
		}
	}
}
