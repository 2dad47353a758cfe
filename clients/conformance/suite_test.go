package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// script is a session of the suite with one driver or more.
type script struct {
	promise string
	needs   []string // features
	via     string   // only this way; "": either
	pooled  bool     // it is also run through PgBouncer
	server  bool     // it has a PostgreSQL server of its own
	run     func(*stage)
}

// mayLack are the features that a client may lack, by the way that jobs take. All other features it must have.
var mayLack = map[string][]string{
	"sql":  {"retry_after", "log", "publish"},
	"http": {"retry_after", "log", "publish", "transactions", "complete", "lease", "retry"},
}

var features = []string{"transactions", "complete", "lease", "flows", "subscribe", "retry", "retry_after", "log", "publish"}

// client is a client that the suite is run for.
type client struct {
	name    string
	command []string // that starts its driver
	dir     string   // in which it is started
	via     string   // sql or http
}

func (c client) driver(env ...string) *exec.Cmd {
	cmd := exec.Command(c.command[0], c.command[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// thorough reports whether there is time for everything: for each way to the server.
func thorough() bool { return *command != "" || os.Getenv("WEIR_TEST_DRIVERS") != "" }

// run runs all scripts for a client.
func run(t *testing.T, c client) {
	scripts := slices.Concat(enqueueing, transactions, working, ending, interrupting, reporting, operating, failing, subscribing)
	names := map[string]bool{}
	for _, s := range scripts {
		if names[s.promise] {
			t.Fatalf("two scripts promise that %s", s.promise)
		}
		names[s.promise] = true
		if s.via != "" && s.via != c.via {
			continue
		}
		t.Run(s.promise, func(t *testing.T) {
			t.Parallel()
			s.run(newStage(t, c, s, false))
		})
		if s.pooled && c.via == "sql" && thorough() {
			t.Run(s.promise+", through PgBouncer", func(t *testing.T) {
				t.Parallel()
				s.run(newStage(t, c, s, true))
			})
		}
	}
}

// lacks returns why a script is not run for a driver, if it needs a feature that the driver may lack and lacks.
func (s script) lacks(t *testing.T, via string, hello event) string {
	t.Helper()
	for _, f := range hello.Features {
		if !slices.Contains(features, f) {
			t.Errorf("hello names the feature %q, which does not exist: there are %s", f, strings.Join(features, ", "))
		}
	}
	for _, f := range s.needs {
		switch {
		case slices.Contains(hello.Features, f), f == "lease" && via == "http": // the hub has it
		case slices.Contains(mayLack[via], f):
			return fmt.Sprintf("the client has no %s over %s", f, via)
		default:
			t.Fatalf("the driver's hello does not name the feature %s, which every client has over %s", f, via)
		}
	}
	return ""
}

// goDriver builds the driver of the Go library once, and returns its path.
var goDriver = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "weir-conformance-*")
	if err != nil {
		return "", err
	}
	pgtest.AtEnd(func() error { return os.RemoveAll(dir) })
	path := filepath.Join(dir, "godriver")
	if out, err := exec.Command("go", "build", "-o", path, "./godriver").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the driver of the Go library: %w: %s", err, out)
	}
	return path, nil
})

// goClient is the Go library.
func goClient(t *testing.T, via string) client {
	t.Helper()
	path, err := goDriver()
	if err != nil {
		t.Fatal(err)
	}
	return client{"go", []string{path}, "", via}
}
