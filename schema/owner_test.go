package schema_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestTimeoutsOfTheRoleEndNoMigration: a migration completes however slow the server or the client is.
func TestTimeoutsOfTheRoleEndNoMigration(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), pgtest.Empty(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `SELECT set_config(name, CASE name WHEN 'transaction_timeout' THEN '1s' ELSE '1ms' END, false)
		FROM pg_settings WHERE name IN ('lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')`); err != nil {
		t.Fatal(err)
	}
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if err := schema.Down(t.Context(), conn, 0); err != nil {
		t.Fatal(err)
	}
}

// TestASchemaOfAnotherOwnerIsRefused: a role that may create the schema weir, or a function in it, before Weir is installed cannot get its
// code run with the rights of the installing role; a role that owns all of the schema may migrate.
func TestASchemaOfAnotherOwnerIsRefused(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), pgtest.Empty(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`CREATE ROLE weir_owner_test`)
	t.Cleanup(func() {
		_, _ = conn.Exec(context.Background(), `RESET ROLE; DROP OWNED BY weir_owner_test CASCADE; DROP ROLE weir_owner_test`)
	})
	mine := `CREATE FUNCTION weir._tidy() RETURNS integer LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION weir._tidy() OWNER TO weir_owner_test;`
	for setup, want := range map[string]string{
		`CREATE SCHEMA weir AUTHORIZATION weir_owner_test`:                                                                       "the schema weir belongs to weir_owner_test",
		`CREATE SCHEMA weir; GRANT CREATE ON SCHEMA weir TO weir_owner_test; ` + mine:                                            "the function weir._tidy() belongs to weir_owner_test",
		`CREATE SCHEMA weir; CREATE TABLE weir.migration (version integer); ALTER TABLE weir.migration OWNER TO weir_owner_test`: "the relation weir.migration belongs to weir_owner_test",
	} {
		exec(setup)
		if err := schema.Up(t.Context(), conn); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("after %s: %v, want %s", setup, err, want)
		}
		exec(`DROP SCHEMA weir CASCADE`)
	}
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Errorf("where nothing is in the way: %v", err)
	}
	// Of an installed schema, it does not advise to drop anything.
	exec(`SET ROLE weir_owner_test`)
	if err := schema.Up(t.Context(), conn); err == nil || !strings.Contains(err.Error(), "weir is installed, and the schema weir belongs to "+conn.Config().User+": run `weir migrate up` as ") || strings.Contains(err.Error(), "drop") {
		t.Errorf("as another role: %v", err)
	}
}

// TestWithoutItsRolesNothingIsInstalled: a role that may not create Weir's roles gets an error that names all missing ones, and nothing is
// left behind. Once an administrator has created them, the installation succeeds.
func TestWithoutItsRolesNothingIsInstalled(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil) // roles are the whole server's
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	const roles = "weir_enqueue weir_work weir_operate weir_publish weir_subscribe weir_hub"
	for _, sql := range []string{`CREATE ROLE plain LOGIN PASSWORD 'secret'`, `CREATE DATABASE plain OWNER plain`} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	config, err := pgx.ParseConfig(server.URL("plain"))
	if err != nil {
		t.Fatal(err)
	}
	config.User, config.Password = "plain", "secret"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	err = schema.Up(t.Context(), conn)
	if err == nil {
		t.Fatal("it was installed without its roles")
	}
	said := err.Error()
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		said += pg.Detail + pg.Hint
	}
	for role := range strings.FieldsSeq(roles) {
		if !strings.Contains(said, role) {
			t.Errorf("%q does not name %s", said, role)
		}
	}
	var there bool
	if err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'weir')`).Scan(&there); err != nil || there {
		t.Errorf("something was left behind: %v, %v", there, err)
	}
	for role := range strings.FieldsSeq(roles) {
		if _, err := admin.Exec(t.Context(), `CREATE ROLE `+role); err != nil {
			t.Fatal(err)
		}
	}
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Errorf("with the roles: %v", err)
	}
}

// TestAnOwnerWhoMayNotCreateTemporaryTablesIsRefused: the functions that tidy and rebase need them; the error contains the statement that
// grants it, and nothing is left behind. An owner who loses the privilege later hears of it at the next migration.
func TestAnOwnerWhoMayNotCreateTemporaryTablesIsRefused(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), pgtest.Server(t, nil).URL("postgres")) // privileges on a database are often granted to PUBLIC
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	const grant = `GRANT TEMPORARY ON DATABASE postgres TO "Weir's owner"`
	exec(`CREATE ROLE "Weir's owner" CREATEROLE; GRANT CREATE ON DATABASE postgres TO "Weir's owner"; REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC`)
	for _, before := range []string{"without the schema", "with the schema"} {
		exec(`SET ROLE "Weir's owner"`)
		if err := schema.Up(t.Context(), conn); err == nil || !strings.Contains(err.Error(), grant) {
			t.Errorf("%s: %v, want an error that contains %s", before, err, grant)
		}
		var exists bool
		if err := conn.QueryRow(t.Context(), `SELECT to_regnamespace('weir') IS NOT NULL`).Scan(&exists); err != nil || exists != (before == "with the schema") {
			t.Errorf("%s: afterwards the schema exists: %v, %v", before, exists, err)
		}
		exec(`RESET ROLE; ` + grant + `; SET ROLE "Weir's owner"`)
		if err := schema.Up(t.Context(), conn); err != nil {
			t.Fatalf("%s, after %s: %v", before, grant, err)
		}
		exec(`RESET ROLE; REVOKE TEMPORARY ON DATABASE postgres FROM "Weir's owner"`)
	}
}
