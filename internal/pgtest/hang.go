package pgtest

import (
	"flag"
	"fmt"
	"runtime/debug"
	"testing"
	"time"
)

// mustEnd ends the process, with the stacks of all goroutines, if the test has not ended within half of the time that go test gives all tests of the
// package. Otherwise one test that hangs would cost all of that time. Tests that were chosen by -run have all of it.
func mustEnd(t testing.TB) {
	if chosen := flag.Lookup("test.run"); chosen != nil && chosen.Value.String() != "" {
		return
	}
	if timeout := flag.Lookup("test.timeout"); timeout != nil {
		if d, err := time.ParseDuration(timeout.Value.String()); err == nil && d > 0 {
			mustEndWithin(t, d/2)
		}
	}
}

func mustEndWithin(t testing.TB, limit time.Duration) {
	timer := time.AfterFunc(limit, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("%s has not ended within %s: it hangs", t.Name(), limit))
	})
	t.Cleanup(func() { timer.Stop() }) // it is called after what the test registers from now on
}
