package weirtest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirtest"
)

// leaveEnv makes a test binary create databases on the server with this URL and exit without dropping them, as a killed test run does.
const leaveEnv = "WEIR_TEST_LEAVE"

// made lists the databases on a server that tests have created.
func made(t *testing.T, url string) []string {
	t.Helper()
	rows, err := pgtest.Pool(t, url).Query(t.Context(), `SELECT datname::text FROM pg_database WHERE datname LIKE 'weir\_test\_%' ORDER BY oid`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestEachTestHasADatabaseOfItsOwn: each test gets a copy of a template that is set up once, and drops it at its end.
func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil).URL("postgres")
	var setups atomic.Int32
	databases := &weirtest.Databases{URL: server, Version: "1", Setup: func(ctx context.Context, conn *pgx.Conn) error {
		setups.Add(1)
		_, err := conn.Exec(ctx, `CREATE TABLE account (id bigint PRIMARY KEY)`)
		return err
	}}
	t.Run("all", func(t *testing.T) {
		for range 5 {
			t.Run("one", func(t *testing.T) {
				t.Parallel()
				pool := databases.Pool(t)
				if _, err := pool.Exec(t.Context(), `INSERT INTO account VALUES (1)`); err != nil {
					t.Error(err)
				}
				client := weir.NewClient(pool)
				if _, err := client.Enqueue(t.Context(), sendMail{To: "ada"}, nil); err != nil {
					t.Error(err)
				}
				if ended := weirtest.Drain(t.Context(), t, client, handle(func(context.Context, *weir.Job[sendMail]) error { return nil }), nil); len(ended) != 1 {
					t.Errorf("ended %+v", ended)
				}
			})
		}
	})
	if n := setups.Load(); n != 1 {
		t.Errorf("the template was set up %d times, want 1", n)
	}
	names := made(t, server)
	if len(names) != 1 || !strings.HasPrefix(names[0], "weir_test_template_") {
		t.Fatalf("the databases left are %v, want the template only", names)
	}

	// Another version has another template, and a template whose setup fails is dropped.
	databases = &weirtest.Databases{URL: server, Version: "2", Setup: func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `CREATE TABLE account (id money_of_fools)`)
		return err
	}}
	wantFailure(t, func(t testing.TB) { databases.Pool(t) }, "set up the template database", "money_of_fools")
	if again := made(t, server); !slices.Equal(again, names) {
		t.Errorf("the databases left are %v, want %v", again, names)
	}
}

// TestTheServerComesFromTheEnvironment: the server is the one in WEIR_TEST_DATABASE_URL, or else in DATABASE_URL.
func TestTheServerComesFromTheEnvironment(t *testing.T) {
	if at := os.Getenv(leaveEnv); at != "" {
		weirtest.Database(t)
		private := &weirtest.Databases{Setup: func(context.Context, *pgx.Conn) error { return nil }}
		private.New(t)
		_ = os.Stdout.Close()
		os.Exit(0) // no cleanup runs
	}
	for _, name := range []string{"WEIR_TEST_DATABASE_URL", "DATABASE_URL"} {
		t.Setenv(name, "")
	}
	wantFailure(t, func(t testing.TB) { weirtest.Database(t) }, "set WEIR_TEST_DATABASE_URL to the URL of a server")
	t.Setenv("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none")
	wantFailure(t, func(t testing.TB) { weirtest.Database(t) }, "open the server that DATABASE_URL names", "127.0.0.1:1")
	t.Setenv("WEIR_TEST_DATABASE_URL", pgtest.Empty(t))
	weirtest.Pool(t)
}

// TestAServerIsNamedByKeywordsToo: the server's URL may have the form of keywords and values, and the database that it names stays unchanged.
func TestAServerIsNamedByKeywordsToo(t *testing.T) {
	t.Parallel()
	at := pgtest.Empty(t)
	config, err := pgx.ParseConfig(at)
	if err != nil {
		t.Fatal(err)
	}
	dsn := "host=" + config.Host + " port=" + strings.Split(strings.Split(at, config.Host+":")[1], "/")[0] + " user=" + config.User + " password=" + config.Password + " dbname=" + config.Database
	databases := &weirtest.Databases{URL: dsn}
	var name string
	if err := databases.Pool(t).QueryRow(t.Context(), `SELECT current_database()`).Scan(&name); err != nil || name == config.Database {
		t.Errorf("the database is %s (%v)", name, err)
	}
}

// TestARoleThatMayNotCreateDatabasesIsToldWhatToDo: the error contains the statement that an administrator has to run.
func TestARoleThatMayNotCreateDatabasesIsToldWhatToDo(t *testing.T) {
	t.Parallel()
	s := pgtest.Server(t, nil)
	if _, err := pgtest.Pool(t, s.URL("postgres")).Exec(t.Context(), `CREATE ROLE app LOGIN PASSWORD 'secret'`); err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Replace(s.URL("postgres"), config.User+":"+config.Password+"@", "app:secret@", 1)
	wantFailure(t, func(t testing.TB) { (&weirtest.Databases{URL: at}).Pool(t) }, `the role app may not create databases`, `ALTER ROLE "app" CREATEDB`)
	// A role that may create databases, but does not own the existing template, makes its own: it could not use another role's schema.
	if _, err := pgtest.Pool(t, s.URL("postgres")).Exec(t.Context(), `ALTER ROLE app CREATEDB CREATEROLE`); err != nil {
		t.Fatal(err)
	}
	(&weirtest.Databases{URL: s.URL("postgres")}).Pool(t)
	(&weirtest.Databases{URL: at}).Pool(t)
}

// TestProcessesShareATemplate: one process creates the template, and processes that start at the same time wait for it.
func TestProcessesShareATemplate(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil).URL("postgres")
	const processes = 4
	ended := make(chan error, processes)
	for range processes {
		go func() { // each ends with its process
			ended <- leave(t, server)
		}()
	}
	for range processes {
		if err := pgtest.Receive(t, ended, "a process has ended"); err != nil {
			t.Error(err)
		}
	}
	shared := 0
	names := made(t, server)
	for _, name := range names {
		if strings.HasPrefix(name, "weir_test_template_") {
			shared++
		}
	}
	// Each process has also left a test's database, its own template and a copy of that, unless another process has already dropped them.
	if shared != 1 || len(names) > 1+3*processes {
		t.Errorf("the databases are %v, want one shared template", names)
	}
}

// leave runs a process that leaves three databases on a server: a test's, its own template, and a copy of that.
func leave(t *testing.T, server string) error {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheServerComesFromTheEnvironment$")
	cmd.Env = append(os.Environ(), leaveEnv+"="+server, "WEIR_TEST_DATABASE_URL="+server)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// TestWhatAKilledTestRunLeavesIsSweptUp: the next run drops the databases of a killed run, and no others.
func TestWhatAKilledTestRunLeavesIsSweptUp(t *testing.T) {
	t.Parallel()
	s := pgtest.Server(t, nil)
	server := s.URL("postgres")
	(&weirtest.Databases{URL: server}).Pool(t) // this process is alive
	alive := made(t, server)
	if err := leave(t, server); err != nil {
		t.Fatal(err)
	}
	// The server notices the end of a process only after a while.
	gone := func() {
		pgtest.Until(t, "the sessions of a process end", func() bool {
			var n int
			if err := pgtest.Pool(t, server).QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n == 1
		})
	}
	gone()
	left := made(t, server)
	if len(left) != len(alive)+3 { // a test's, its own template, and a copy of that
		t.Fatalf("the databases are %v, want three more than %v", left, alive)
	}
	for _, name := range []string{"weir_test_of_mine", "weir_test_a1_r00000000_other_server_abcdef", "weir_test_a5_r0_x"} {
		if _, err := pgtest.Pool(t, server).Exec(t.Context(), `CREATE DATABASE `+name); err != nil {
			t.Fatal(err)
		}
		alive = append(alive, name)
	}
	if err := leave(t, server); err != nil { // drops those three, and leaves three others
		t.Fatal(err)
	}
	gone()
	again := made(t, server)
	if len(again) != len(alive)+3 {
		t.Errorf("the databases are %v, want %v and three new ones", again, alive)
	}
	for _, name := range alive {
		if !slices.Contains(again, name) {
			t.Errorf("%s was dropped", name)
		}
	}
	for _, name := range left {
		if slices.Contains(again, name) != slices.Contains(alive, name) {
			t.Errorf("%s was not dropped", name)
		}
	}
}
