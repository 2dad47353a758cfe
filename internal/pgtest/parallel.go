package pgtest

import (
	"flag"
	"os"
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

// Alone states why a test is not parallel, and skips it unless WEIR_TEST_ALONE is set: this is for tests that count what the whole process
// or server does, and for tests that could fail on a busy machine. The stage "alone" of .ci/run runs them, one package after the other; it
// finds them by this call, which must be a statement of the test function itself. A test that is also parallel panics.
func Alone(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("WEIR_TEST_ALONE") == "" {
		t.Skipf("it runs alone, because %s: WEIR_TEST_ALONE=1 go test -run '^%s$' in this directory", why, t.Name())
	}
	t.Setenv("WEIR_TEST_ALONE", "1") // panics in a parallel test
}
