package main

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/pgtest"
)

// asRole returns the database's URL for a new user with the given roles.
func asRole(t *testing.T, admin *pgx.Conn, database, roles string) string {
	t.Helper()
	to, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	user := strings.TrimPrefix(to.Path, "/") + "_user"
	for _, sql := range []string{
		fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'secret'`, user),
		fmt.Sprintf(`GRANT %s TO %s`, roles, user),
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(t.Context(), `DROP ROLE `+user); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	to.User = url.UserPassword(user, "secret")
	return to.String()
}

func TestWorkEndsWhenIdleWithItsRoleAlone(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	admin, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	as := asRole(t, admin, database, "weir_work")
	work := func() (int, string) {
		var out, errs bytes.Buffer
		code := run([]string{"work", "--database", as, "--queue", "q", "--exit-when-idle", "--", "true"}, strings.NewReader(""), &out, &errs)
		return code, errs.String()
	}
	if _, err := admin.Exec(t.Context(), `SELECT weir.enqueue('q', 'k')`); err != nil {
		t.Fatal(err)
	}
	if code, said := work(); code != exitOK || !strings.Contains(said, "1 completed") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
	// Without the privilege to read queues it can't know when to exit, and says so once.
	if _, err := admin.Exec(t.Context(), `REVOKE EXECUTE ON FUNCTION weir.jobs_page FROM weir_work`); err != nil {
		t.Fatal(err)
	}
	if code, said := work(); code != exitFailure || strings.Count(said, "permission denied") != 1 {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

func TestWhatAnOwnerWithoutCreateroleMayNotDoIsSaidFirst(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	for _, sql := range []string{`CREATE ROLE app LOGIN PASSWORD 'secret'`, `CREATE DATABASE app OWNER app`} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	to, err := url.Parse(server.URL("app"))
	if err != nil {
		t.Fatal(err)
	}
	to.User = url.UserPassword("app", "secret")
	weir := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(append(args, "--database", to.String()), strings.NewReader(""), &out, &errs)
		return code, out.String(), errs.String()
	}
	roles := []string{"weir_enqueue", "weir_work", "weir_operate", "weir_publish", "weir_subscribe", "weir_hub"}

	code, _, said := weir("migrate", "up")
	for _, role := range roles {
		if !strings.Contains(said, "CREATE ROLE "+role+" NOLOGIN") {
			t.Errorf("it does not say how to make %s:\n%s", role, said)
		}
	}
	if code != exitFailure {
		t.Errorf("exit code %d", code)
	}
	// Of a list, each database fails for the same reason, and the cure is said once.
	if _, err := admin.Exec(t.Context(), `CREATE DATABASE app2 OWNER app`); err != nil {
		t.Fatal(err)
	}
	other := *to
	other.Path = "/app2"
	var out, errs bytes.Buffer
	if code := run([]string{"migrate", "up", "--list", "-"}, strings.NewReader(to.String()+"\n"+other.String()+"\n"), &out, &errs); code != exitFailure ||
		strings.Count(errs.String(), "CREATE ROLE weir_work NOLOGIN") != 1 || strings.Count(errs.String(), "may not create roles") != 2 || strings.Contains(errs.String(), "SQLSTATE") {
		t.Errorf("of a list: exit code %d:\n%s", code, errs.String())
	}
	if _, status, _ := weir("migrate", "status"); strings.Count(status, " -\n") != strings.Count(status, "\n")-1 {
		t.Errorf("something was left behind:\n%s", status)
	}

	code, printed, said := weir("lab", "all", "--duration", "100ms")
	if code != exitFailure || printed != "" || strings.Count(said, "administrator") != 1 || !strings.Contains(said, "storm needs 2068 connections") {
		t.Errorf("weir lab exits with %d:\n%s%s", code, printed, said)
	}
	_, quoted, _ := strings.Cut(said, "`")
	statements, _, _ := strings.Cut(quoted, "`")
	for _, role := range roles {
		if !strings.Contains(statements, "CREATE ROLE "+role+" NOLOGIN") {
			t.Errorf("the lab does not say how to make %s:\n%s", role, said)
		}
	}
	if _, err := admin.PgConn().Exec(t.Context(), statements).ReadAll(); err != nil {
		t.Fatal(err)
	}
	if code, _, said := weir("migrate", "up"); code != exitOK {
		t.Errorf("with the roles: exit code %d:\n%s", code, said)
	}
	if code, _, said := weir("enqueue", "--kind", "k"); code != exitOK {
		t.Errorf("enqueue: exit code %d:\n%s", code, said)
	}
}

// TestWhatAUserLacksIsNamed: an error about missing privileges names the role or privilege required.
func TestWhatAUserLacksIsNamed(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	admin, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	check := func(database, want string, args ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		code := run(append(args[:len(args):len(args)], "--database", database), strings.NewReader(""), &out, &errs)
		if code != exitFailure || !strings.Contains(errs.String(), want) {
			t.Errorf("weir %v exits with %d, without %q: %s", args, code, want, errs.String())
		}
	}
	as := asRole(t, admin, database, "pg_read_all_stats")
	const denied = "permission denied for schema weir: grant this user the role "
	for want, calls := range map[string][]string{
		denied + "weir_enqueue":   {"enqueue --kind k"},
		denied + "weir_publish":   {"publish a b"},
		denied + "weir_subscribe": {"listen a"},
		denied + "weir_work":      {"jobs list", "jobs show 1", "jobs cancel 1"},
		denied + "weir_operate":   {"jobs retry 1", "settings list", "queues list", "queues pause q", "workers", "hubs", "relay list", "relay forget r"},
		"the schema weir belongs": {"migrate status", "migrate up", "migrate down --to 1 --yes"},
	} {
		for _, call := range calls {
			check(as, want, strings.Fields(call)...)
		}
	}
	// A hub needs its own role: with all other roles only part of it would work.
	config, err := pgx.ParseConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(t.Context(), `GRANT weir_operate TO `+config.User); err != nil {
		t.Fatal(err)
	}
	check(as, "grant the role weir_hub to this user", "serve", "--listen-pg", "", "--listen-http", "127.0.0.1:0")
	empty := asRole(t, admin, pgtest.Empty(t), "pg_read_all_stats")
	check(empty, "migrate as the owner of the database, or have the owner run: GRANT CREATE ON DATABASE", "migrate", "up")
}

func TestARefusalOverASocketNamesTheSystemsUser(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{"/run/postgresql": "operating system user of the same name", "localhost": "check user and password"} {
		config, err := pgx.ParseConfig("host=" + host + " user=app dbname=app")
		if err != nil {
			t.Fatal(err)
		}
		if got := unreachable(config, false, &pgconn.PgError{Code: "28000", Message: "refused"}).Error(); !strings.Contains(got, want) {
			t.Errorf("at %s: %s", host, got)
		}
	}
}

// TestWhatAUserMayNotSeeOfAFlowIsLeftOut: how a flow stands is shown to every role that may look it up; what is left out is said in one line, with the role that shows it.
func TestWhatAUserMayNotSeeOfAFlowIsLeftOut(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]struct{ shown, hidden []string }{
		"weir_enqueue": {shown: []string{"task t, which a worker's chores enqueue\n"}, hidden: []string{"the role weir_work shows how many jobs are running", "the role weir_operate shows"}},
		"weir_work":    {shown: []string{"running     0\n", "kind k in queue q, which is available\n"}, hidden: []string{"the role weir_operate shows"}},
		"weir_operate": {shown: []string{"running     0\n", "kind k in queue q, which is available, but no worker works its queue\n", "task t, which a worker's chores enqueue, but no worker runs\n"}},
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			database := pgtest.Database(t)
			admin, err := pgx.Connect(t.Context(), database)
			if err != nil {
				t.Fatal(err)
			}
			defer admin.Close(t.Context())
			for _, sql := range []string{`SELECT weir.flow('f')`, `SELECT weir.enqueue('q', 'k', flow => 1)`, `SELECT weir.add_tasks(1, '[{"task": "t", "queue": "q", "kind": "k"}]')`} {
				if _, err := admin.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			as := asRole(t, admin, database, role)
			for _, flags := range [][]string{nil, {"--json"}} {
				var out, errs bytes.Buffer
				code := run(append([]string{"flows", "show", "1", "--database", as}, flags...), strings.NewReader(""), &out, &errs)
				if code != exitOK || strings.Count(errs.String(), "\n") > 1 || (errs.Len() > 0) != (want.hidden != nil) {
					t.Errorf("%v: exit code %d:\n%s%s", flags, code, out.String(), errs.String())
				}
				for _, text := range want.hidden {
					if !strings.Contains(errs.String(), text) {
						t.Errorf("%v: it does not say %q: %s", flags, text, errs.String())
					}
				}
				for _, text := range want.shown {
					if flags == nil && !strings.Contains(out.String(), text) {
						t.Errorf("it does not show %q:\n%s", text, out.String())
					}
				}
			}
		})
	}
}
