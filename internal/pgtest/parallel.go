package pgtest

import (
	"flag"
	"runtime"
	"strconv"
	"testing"
)

// overlap allows twice as many parallel tests as there are processors, unless -parallel is set: tests spend most of their time waiting for
// leases, segments and servers.
func overlap() {
	if !flag.Parsed() {
		flag.Parse()
	}
	told := false
	flag.Visit(func(f *flag.Flag) { told = told || f.Name == "test.parallel" })
	if !told {
		_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))) // the flag exists, and takes numbers
	}
}

// Alone states why a test is not parallel: no other test of its package runs at the same time. This is for tests that count what the whole
// process or server does, and for tests that could fail on a busy machine. A test that is also parallel panics.
func Alone(t testing.TB, why string) {
	t.Helper()
	t.Setenv("WEIR_TEST_ALONE", why) // panics in a parallel test
}
