package weirtest

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/testdb"
)

// urlFrom lists the environment variables for the server's URL; the first that is set counts.
var urlFrom = []string{"WEIR_TEST_DATABASE_URL", "DATABASE_URL"}

// Databases creates a database for each test, on a server with PostgreSQL 14 or later. The role must be allowed to create databases, and to
// create Weir's roles if they do not exist. Databases connects to the database that URL names, but changes nothing in it.
//
// Weir's schema and the additions of Setup are installed once, into a template that is copied for each test. When a test ends, its database
// is dropped. If a test process is killed, the next one drops its databases. Any number of processes may use one server at the same time.
//
// The zero value is ready to use. Keep one in a package variable for all tests, and do not copy it.
type Databases struct {
	// URL is that of any database on the server, with the password, as a URL or as keywords and values ("host=… user=…"). Default: the
	// environment variable WEIR_TEST_DATABASE_URL, or else DATABASE_URL. The connection must be direct, not through PgBouncer.
	URL string
	// Setup adds to the template what your tests need in addition to Weir's schema, such as your own tables. It is called at most once in a
	// process, and not at all if there is a template with this Version. It must close all connections that it opens. Default: nothing is
	// added.
	Setup func(ctx context.Context, conn *pgx.Conn) error
	// Version identifies the result of Setup, for example the number of your last migration. Change it whenever Setup changes. With a
	// Version, the template stays on the server for other processes and later runs of the same module. Default: each process creates its
	// own template.
	Version string

	setup     testdb.Setup
	setupOnce sync.Once
}

// plain adds nothing to Weir's schema.
var plain Databases

// Database returns the URL of a new database with Weir's schema, on the server that the environment specifies: see [Databases]. When the
// test ends, the database is dropped, even if something is still connected to it.
func Database(t testing.TB) string {
	t.Helper()
	return plain.New(t)
}

// Pool returns a pool of connections to a new database with Weir's schema, on the server that the environment specifies: see [Databases].
// When the test ends, the pool is closed and the database dropped.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return plain.Pool(t)
}

// New returns the URL of a new database, or its keywords and values if Databases.URL has that form. The database is dropped when the test
// ends.
func (d *Databases) New(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	server, err := d.server(ctx)
	if err != nil {
		t.Fatalf("weirtest: %v", err)
	}
	d.setupOnce.Do(func() {
		d.setup = testdb.Setup{Run: d.Setup}
		if d.Version != "" {
			d.setup.Version = program() + " " + d.Version
		}
	})
	var setup *testdb.Setup
	if d.Setup != nil {
		setup = &d.setup
	}
	name, err := server.Copy(ctx, t.Name(), setup)
	if err != nil {
		t.Fatalf("weirtest: on the server %s: %v", server, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		if err := server.Drop(ctx, name); err != nil {
			t.Errorf("weirtest: %v", err)
		}
	})
	at, err := server.URL(name)
	if err != nil {
		t.Fatalf("weirtest: %v", err)
	}
	return at
}

// Pool returns a pool of connections to a new database. When the test ends, the pool is closed and the database dropped.
func (d *Databases) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	at := d.New(t)
	pool, err := pgxpool.New(t.Context(), at)
	if err != nil {
		t.Fatalf("weirtest: connect to a test's database: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { // ends when all connections have been released, at the latest with the process
			pool.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(closeWithin):
			t.Errorf("weirtest: %d connections of the test's pool were not released within %s: end every transaction, and close all rows",
				pool.Stat().AcquiredConns(), closeWithin)
		}
	})
	return pool
}

// closeWithin is how long the end of a test waits for connections of its pool that are still in use.
const closeWithin = 10 * time.Second

// servers are the servers that this process has opened, by URL. They are global because tests have no other way to share them.
var servers = struct {
	sync.Mutex
	open map[string]*opened
}{open: map[string]*opened{}}

// opened is a server, or the error of opening it, so that the tests that follow don't all wait for the same error.
type opened struct {
	server *testdb.Server
	err    error
}

func (d *Databases) server(ctx context.Context) (*testdb.Server, error) {
	at, from := d.URL, "Databases.URL"
	for _, name := range urlFrom {
		if at == "" {
			at, from = os.Getenv(name), name
		}
	}
	if at == "" {
		return nil, fmt.Errorf("no PostgreSQL server: set %s to the URL of a server and a role that may create databases, such as postgres://postgres:secret@127.0.0.1:5432/postgres", urlFrom[0])
	}
	servers.Lock()
	defer servers.Unlock()
	o := servers.open[at]
	if o == nil {
		o = &opened{}
		if o.server, o.err = testdb.Open(ctx, at); o.err != nil {
			o.err = fmt.Errorf("open the server that %s names: %w", from, o.err)
		}
		servers.open[at] = o
	}
	return o.server, o.err
}

// program identifies the module under test, so that two projects with the same Version don't share a template.
func program() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Path != "" {
		return info.Main.Path
	}
	return os.Args[0]
}
