package pgtest

import (
	"flag"
	"runtime"
	"strconv"
	"testing"
)

// overlap lets twice as many parallel tests run at once as there are processors, unless -parallel says how many: most of the time of a test
// is spent waiting for leases, segments and servers.
func overlap() {
	if !flag.Parsed() {
		flag.Parse()
	}
	told := false
	flag.Visit(func(f *flag.Flag) { told = told || f.Name == "test.parallel" })
	if !told {
		_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))) // the flag is there, and takes numbers
	}
}

// Alone says why a test is not parallel: no other test of its package runs meanwhile. Such are tests that count what the whole process or
// server does, and those that a busy machine could make fail. A test that is parallel as well panics.
func Alone(t testing.TB, why string) {
	t.Helper()
	t.Setenv("WEIR_TEST_ALONE", why) // which is what parallel tests may not do
}
