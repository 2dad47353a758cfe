package pgtest

import (
	"flag"
	"fmt"
	"runtime/debug"
	"testing"
	"time"
)

// mustEnd ends the process, with the stacks of all goroutines, if the test has not ended within half of the time that go test gives all tests of the
// package. Otherwise one test that hangs would cost all of that time.
func mustEnd(t testing.TB) {
	limit := hangsAfter(flag.Lookup("test.timeout"))
	if limit <= 0 {
		return
	}
	timer := time.AfterFunc(limit, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("%s has not ended within %s, half of -timeout: it hangs", t.Name(), limit))
	})
	t.Cleanup(func() { timer.Stop() }) // it is called after what the test registers from now on
}

// hangsAfter returns half of the value of go test's flag; 0: there is no limit.
func hangsAfter(timeout *flag.Flag) time.Duration {
	if timeout == nil {
		return 0
	}
	d, err := time.ParseDuration(timeout.Value.String())
	if err != nil {
		return 0
	}
	return d / 2
}
