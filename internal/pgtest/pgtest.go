// Package pgtest gives each test its own PostgreSQL database.
//
// All tests of a package share one server, which the first test starts and Main stops:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		pool := pgtest.Pool(t, pgtest.Database(t))
//		...
//	}
//
// Environment variables select another server for all tests:
//
//	WEIR_POSTGRES=/usr/lib/postgresql/15    an installed one, built by the distribution, with its defaults
//	WEIR_TEST_PG_MAJOR=14                   another version than 18, fetched if it is not installed
//	WEIR_TEST_DATABASE_URL=postgres://…     a running server, in which databases are created and dropped
//	TMPDIR=/var/tmp                         directory of the servers' data; default: in memory, if there is plenty
//
// Tests run in parallel, two per processor, because they spend most of their time waiting. A test that can't calls Alone with
// the reason, and runs only where WEIR_TEST_ALONE is set.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/testdb"
	"github.com/weir-pg/weir/schema"
)

// bound is longer than any single step of this package takes on a busy machine.
const bound = 2 * time.Minute

// shared is the server of this test binary. It is global because tests have no other way to share it.
var shared host

// Main runs a package's tests, stops the server, and exits. Call it from TestMain.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run runs a package's tests, stops the server, and returns the exit code. It is for a TestMain that does more.
//
// If a package doesn't call it, or the tests panic, the server ends with the process on Linux, and the next test run of any package removes
// its directory.
func Run(m *testing.M) int {
	overlap()
	code := m.Run()
	for _, end := range append(ends.all, shared.close) {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// ends lists the functions to call when the tests have run.
var ends struct {
	sync.Mutex
	all []func() error
}

// AtEnd registers a function to call when all tests of the package have run.
func AtEnd(f func() error) {
	ends.Lock()
	defer ends.Unlock()
	ends.all = append(ends.all, f)
}

// Database returns the URL of a new database with Weir's schema. It is dropped at the end of the test.
func Database(t testing.TB) string {
	t.Helper()
	return create(t, true)
}

// Empty returns the URL of a new, empty database. It is dropped at the end of the test.
func Empty(t testing.TB) string {
	t.Helper()
	return create(t, false)
}

// Pool returns a pool of connections to a database. It is closed at the end of the test, by which time all connections must have been
// released.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { // ends when the last connection is released
			defer close(closed)
			pool.Close()
		}()
		Receive(t, closed, "the test has released all connections of its pool")
	})
	return pool
}

// Server returns a server for this test alone, which it may kill, restart or configure. The parameters are added to those of the shared
// server. It is stopped and removed at the end of the test; if the test failed, the end of the server's log is shown.
func Server(t testing.TB, parameters map[string]string) *embedded.Server {
	t.Helper()
	return serve(t, "", parameters)
}

// Installed is Server with Weir's schema in the database postgres.
func Installed(t testing.TB, parameters map[string]string) *embedded.Server {
	t.Helper()
	s := Server(t, parameters)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(schema.Up(ctx, conn), conn.Close(ctx)); err != nil {
		t.Fatal(err)
	}
	return s
}

// serve starts a server for one test.
func serve(t testing.TB, binaries string, parameters map[string]string) *embedded.Server {
	t.Helper()
	mustEnd(t)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	s, dir, err := launch(ctx, binaries, parameters)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the server's log:\n%s", tail(filepath.Join(dir, "postgres.log"), 4096))
		}
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		if err := errors.Join(s.Stop(ctx), embedded.Remove(ctx, dir)); err != nil {
			t.Error(err)
		}
	})
	return s
}

// launch starts a server in a new temporary directory. The binaries are those of the environment, unless they are given.
func launch(ctx context.Context, binaries string, parameters map[string]string) (*embedded.Server, string, error) {
	major := 0
	if v := os.Getenv("WEIR_TEST_PG_MAJOR"); v != "" && binaries == "" {
		var err error
		if major, err = strconv.Atoi(v); err != nil {
			return nil, "", fmt.Errorf("WEIR_TEST_PG_MAJOR=%s must be a major version of PostgreSQL, such as 14", v)
		}
	}
	dir, err := os.MkdirTemp(Home(), "weir-pgtest-*")
	if err != nil {
		return nil, "", err
	}
	// Root's server runs as another user, which must be able to enter, so t.TempDir is not usable.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, "", err
	}
	settings := map[string]string{
		"max_connections":           "200",
		"max_prepared_transactions": "100",
		"max_wal_size":              "256MB", // it may be in memory
	}
	for name, value := range parameters {
		settings[name] = value
	}
	s, err := embedded.Start(ctx, embedded.Config{Dir: dir, Binaries: binaries, Major: major, Fast: true, Parameters: settings, Fetch: Fetch})
	if err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(dir))
	}
	return s, dir, nil
}

// sweep removes the directories of servers whose test processes were killed. It only saves disk space, so errors don't matter.
func sweep(ctx context.Context) {
	dirs, _ := filepath.Glob(filepath.Join(Home(), "weir-pgtest-*"))
	for _, dir := range dirs {
		// A new directory may be about to be locked.
		if info, err := os.Lstat(dir); err == nil && info.IsDir() && time.Since(info.ModTime()) > 10*time.Minute {
			_ = embedded.Remove(ctx, dir)
		}
	}
}

func tail(path string, bytes int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-bytes):])
}

// host is the server on which databases are created. With the zero value, the first use starts it, or connects to the one that the
// environment names.
type host struct {
	start     sync.Once
	err       error
	server    *embedded.Server // nil if WEIR_TEST_DATABASE_URL names one
	dir       string
	databases *testdb.Server
}

func (h *host) open(ctx context.Context) error {
	h.start.Do(func() {
		at := os.Getenv("WEIR_TEST_DATABASE_URL")
		if at == "" {
			sweep(ctx)
			if h.server, h.dir, h.err = launch(ctx, "", nil); h.err != nil {
				return
			}
			at = h.server.URL("postgres")
		}
		h.databases, h.err = testdb.Open(ctx, at)
	})
	return h.err
}

func (h *host) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	var err error
	if h.databases != nil {
		err = h.databases.Close(ctx)
	}
	if h.server == nil {
		return err
	}
	return errors.Join(err, h.server.Stop(ctx), embedded.Remove(ctx, h.dir))
}

func create(t testing.TB, migrated bool) string {
	t.Helper()
	mustEnd(t)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	at, drop, err := database(ctx, t.Name(), migrated)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drop(); err != nil {
			t.Error(err)
		}
	})
	return at
}

// database creates a database, which the caller drops with drop.
func database(ctx context.Context, label string, migrated bool) (at string, drop func() error, err error) {
	if err := shared.open(ctx); err != nil {
		return "", nil, fmt.Errorf("start the tests' server: %w", err)
	}
	var name string
	if migrated {
		name, err = shared.databases.Copy(ctx, label, nil)
	} else {
		name, err = shared.databases.Create(ctx, label)
	}
	if err == nil {
		at, err = shared.databases.URL(name)
	}
	return at, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		return shared.databases.Drop(ctx, name)
	}, err
}

// Shared returns the URL of a new database with Weir's schema for code that is not a test, such as examples. It is dropped when all tests
// of the package have run. It panics if there is no server.
func Shared(label string) string {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	at, drop, err := database(ctx, label, true)
	if err != nil {
		panic(err)
	}
	AtEnd(drop)
	return at
}
