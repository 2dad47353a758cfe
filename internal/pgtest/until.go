package pgtest

import (
	"errors"
	"testing"
	"time"
)

// patience is long on any machine, however busy.
const patience = time.Minute

// Until waits for what other goroutines, processes or the server bring about, and fails the test if it does not come in a minute.
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

// Eventually is Until for what says why it is not so yet.
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
