package lab

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestWhatAnAdministratorMustRunIsSaid: once it was run, a user without privileges can measure. Roles that the lab has made stay, and a note has the statement that removes them.
func TestWhatAnAdministratorMustRunIsSaid(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil) // roles are the whole server's
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(admin)
	exec := func(sql string) {
		t.Helper()
		if _, err := admin.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	roles := func() []string {
		t.Helper()
		missing, err := rolesMissing(t.Context(), admin)
		if err != nil {
			t.Fatal(err)
		}
		return missing
	}
	exec(`CREATE ROLE "a user" LOGIN PASSWORD 'secret'; REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC`)
	to, err := url.Parse(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	to.User = url.UserPassword("a user", "secret")
	c := tiny("notify", to.String())
	c.Duration = 200 * time.Millisecond

	err = Check(t.Context(), c.Database, c)
	if err == nil {
		t.Fatal("a user without privileges may measure")
	}
	_, quoted, _ := strings.Cut(err.Error(), "`")
	statements, _, _ := strings.Cut(quoted, "`")
	exec(statements)
	if err := Check(t.Context(), c.Database, c); err != nil {
		t.Errorf("after %s: %v", statements, err)
	}
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(r.Notes, " "); r.Way("insert + weir.publish") == nil || strings.Contains(notes, "DROP ROLE") {
		t.Errorf("roles of others are called the lab's, or Weir was not measured: %s", notes)
	}

	const drop = "DROP ROLE weir_enqueue, weir_work, weir_operate, weir_publish, weir_subscribe, weir_hub"
	exec(drop) // nothing of the lab's is in the way
	c.Database = server.URL("postgres")
	if r, err = Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(r.Notes, func(note string) bool { return strings.HasSuffix(note, ": "+drop) }) || len(roles()) > 0 {
		t.Errorf("the server lacks %v, and the notes are %q", roles(), r.Notes)
	}
	exec(drop)
}
