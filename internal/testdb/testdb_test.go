package testdb_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/testdb"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func open(t *testing.T, at string) *testdb.Server {
	t.Helper()
	s, err := testdb.Open(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func databases(t *testing.T, at string) []string {
	t.Helper()
	rows, err := pgtest.Pool(t, at).Query(t.Context(), `SELECT datname::text FROM pg_database WHERE datname LIKE 'weir\_test\_%' ORDER BY oid`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestTemplatesOfOldVersionsDoNotPileUp: only the newest few templates are kept, for a developer who switches between versions.
func TestTemplatesOfOldVersionsDoNotPileUp(t *testing.T) {
	t.Parallel()
	at := pgtest.Server(t, nil).URL("postgres")
	copied := func(version int) {
		t.Helper()
		s := open(t, at)
		name, err := s.Copy(t.Context(), "test", &testdb.Setup{Version: fmt.Sprint(version), Run: func(context.Context, *pgx.Conn) error { return nil }})
		if err == nil {
			err = s.Drop(t.Context(), name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for version := range 5 {
		copied(version)
	}
	all := databases(t, at)
	if len(all) != 5 {
		t.Fatalf("there are %v, want five templates", all)
	}
	first := open(t, at) // sweeps
	if left := databases(t, at); !slices.Equal(left, all[1:]) {
		t.Errorf("the databases are %v, want %v", left, all[1:])
	}
	// If another process dropped a template as outdated, a process that needs it creates it again.
	setup := &testdb.Setup{Version: "1", Run: func(context.Context, *pgx.Conn) error { return nil }}
	for range 2 {
		name, err := first.Copy(t.Context(), "test", setup)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Drop(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if err := first.Drop(t.Context(), all[1]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDatabasesOfOthersAreNotSwept: sweeping keeps a database that only has a name like a test's, one that was renamed, and another role's.
func TestDatabasesOfOthersAreNotSwept(t *testing.T) {
	t.Parallel()
	at := pgtest.Server(t, nil).URL("postgres")
	pool := pgtest.Pool(t, at)
	run := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	first, err := testdb.Open(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	var left []string // by a run that is over
	for range 3 {
		name, err := first.Create(t.Context(), "left")
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, name)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	prefix, _, _ := strings.Cut(left[0], "left")
	kept := []string{prefix + "orders", prefix + "left_abcdef", left[1] + "_kept", left[2]}
	run(`CREATE DATABASE ` + kept[0])
	run(`CREATE DATABASE ` + kept[1])
	run(`ALTER DATABASE ` + left[1] + ` RENAME TO ` + kept[2])
	run(`CREATE ROLE colleague`)
	run(`ALTER DATABASE ` + left[2] + ` OWNER TO colleague`)
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		kept = append(kept, "weir_test_template_"+name)
		run(`CREATE DATABASE weir_test_template_` + name)
	}
	pgtest.Until(t, "the session of the first run ends", func() bool {
		var n int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'`).Scan(&n)
		return err == nil && n == 0
	})
	open(t, at) // sweeps
	if all := databases(t, at); !slices.Equal(slices.Sorted(slices.Values(all)), slices.Sorted(slices.Values(kept))) {
		t.Errorf("there are %v, want %v: without %s, which was left, and with everything else", all, kept, left[0])
	}
}

// TestTimeoutsOfARoleAreForApplications: copying a database has no time limit, and the lock of a run is kept in an idle session.
func TestTimeoutsOfARoleAreForApplications(t *testing.T) {
	t.Parallel()
	s := pgtest.Server(t, nil)
	for _, sql := range []string{
		`CREATE ROLE app LOGIN PASSWORD 'secret' CREATEDB CREATEROLE`,
		`ALTER ROLE app SET statement_timeout = '100ms'`, `ALTER ROLE app SET lock_timeout = '100ms'`, `ALTER ROLE app SET idle_session_timeout = '100ms'`,
	} {
		if _, err := pgtest.Pool(t, s.URL("postgres")).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	at := s.URL("postgres")
	_, host, _ := strings.Cut(at, "@")
	server := open(t, "postgres://app:secret@"+host)
	name, err := server.Copy(t.Context(), "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	// Another run does not drop this run's databases, although its session has been idle for longer than its role allows.
	pgtest.Until(t, "the session has been idle for a while", func() bool {
		var idle bool
		err := pgtest.Pool(t, at).QueryRow(t.Context(), `SELECT bool_and(clock_timestamp() - state_change > '300ms') FROM pg_stat_activity WHERE usename = 'app'`).Scan(&idle)
		return err == nil && idle
	})
	open(t, "postgres://app:secret@"+host)
	if all := databases(t, at); !slices.Contains(all, name) {
		t.Errorf("the databases are %v: %s was dropped", all, name)
	}
}

// TestAServersURLIsThatOfAnyOfItsDatabases: the URL of another database has everything of the server's own, except the name.
func TestAServersURLIsThatOfAnyOfItsDatabases(t *testing.T) {
	t.Parallel()
	at := pgtest.Empty(t)
	config, err := pgx.ParseConfig(at)
	if err != nil {
		t.Fatal(err)
	}
	keywords := fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s", config.Host, config.Port, config.User, config.Password, config.Database)
	for _, at := range []string{at, at + "&application_name=x", strings.Replace(at, "/"+config.Database+"?", "/?dbname="+config.Database+"&", 1), keywords} {
		s := open(t, at)
		other, err := s.URL("other")
		if err != nil {
			t.Errorf("%s: %v", at, err)
			continue
		}
		got, err := pgx.ParseConfig(other)
		if err != nil || got.Database != "other" || got.Password != config.Password || got.Host != config.Host || got.RuntimeParams["application_name"] != "x" && strings.Contains(at, "application_name") {
			t.Errorf("%s became %s (%v)", at, other, err)
		}
	}
}
