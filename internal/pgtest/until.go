package pgtest

import (
	"errors"
	"testing"
	"time"
)

// patience is a long time on any machine, however busy.
const patience = time.Minute

// stalled is the most that counts of one step of a wait: if the process or the machine stood still for a minute, nobody has waited for a minute.
const stalled = time.Second

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
	for waited := time.Duration(0); ; {
		begin := time.Now()
		err := why()
		if err == nil {
			return
		}
		if waited > patience {
			t.Fatalf("waited %v in vain: %v", patience, err)
		}
		<-time.After(min(max(waited/20, shortest), longest))
		waited += min(time.Since(begin), stalled)
	}
}

// Receive takes one value from a channel, or learns that it was closed, and fails the test if neither occurs within a minute: a test that waits for
// ever keeps all others of its package waiting until the time limit of go test, which names no culprit.
func Receive[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	for range patience / stalled {
		select {
		case v := <-c:
			return v
		case <-time.After(stalled):
		}
	}
	t.Fatalf("waited %v in vain: %s", patience, what)
	panic("unreachable")
}
