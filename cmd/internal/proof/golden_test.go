package proof

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// golden is read and written only by TestSchemaMatchesGolden.
var golden = filepath.Join("..", "..", "..", "schema", "schema.golden.sql")

// TestSchemaMatchesGolden: the schema matches the golden file, so that a review shows every change of it; it is the same on every version.
func TestSchemaMatchesGolden(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	got := describeSchema(t, conn)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	file, err := os.ReadFile(golden)
	if err != nil {
		t.Fatalf("%v: create it with go test ./cmd/internal/proof -run Golden -update", err)
	}
	if want := string(file); got != want {
		t.Errorf("the schema differs from %s: if that is intended, run go test ./cmd/internal/proof -run Golden -update\n%s", golden, firstDifference(want, got))
	}
}

// TestMigrationsGoDownAndUp: all migrations can be undone, and installing them again gives the same schema.
func TestMigrationsGoDownAndUp(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Empty(t))
	ctx := t.Context()
	all, err := schema.Migrations()
	if err != nil {
		t.Fatal(err)
	}
	up := func() string {
		t.Helper()
		for range 2 { // the second time changes nothing
			if err := schema.Up(ctx, conn); err != nil {
				t.Fatal(err)
			}
		}
		return describeSchema(t, conn)
	}
	first := up()
	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	down := func(to int) {
		t.Helper()
		if err := schema.Down(ctx, conn, to); err != nil {
			t.Fatalf("down to %d: %v", to, err)
		}
	}
	for to := len(all) - 1; to >= 1; to-- {
		down(to)
		if n := value[int](t, conn, `SELECT max(version) FROM weir.migration`); n != to {
			t.Fatalf("after migrating down to %d, the list has version %d", to, n)
		}
	}
	if second := up(); second != first {
		t.Errorf("migrating down to 1 and up again gives a different schema\n%s", firstDifference(first, second))
	}
	down(0)
	if n := value[int](t, conn, `SELECT count(*) FROM pg_namespace WHERE nspname = 'weir'`); n != 0 {
		t.Error("schema weir still exists after migrating down to 0")
	}
	down(0)
	if status, err := schema.Status(ctx, conn); err != nil || !status[0].AppliedAt.IsZero() {
		t.Errorf("the status after migrating down to 0 is %v (%v)", status, err)
	}
	if third := up(); third != first {
		t.Errorf("migrating down to 0 and up again gives a different schema\n%s", firstDifference(first, third))
	}
}

// TestFunctionsAreReplacedAsAWhole: whatever functions a database has, migrating leaves it with exactly this build's functions and privileges.
func TestFunctionsAreReplacedAsAWhole(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	want := describeSchema(t, conn)
	for _, older := range []string{
		`CREATE OR REPLACE FUNCTION weir.pause(queue text) RETURNS boolean LANGUAGE sql AS 'SELECT false'`,                                                                               // another body
		`DROP FUNCTION weir.pause; CREATE FUNCTION weir.pause(queue text) RETURNS text LANGUAGE sql AS 'SELECT text ''older'''`,                                                          // another result
		`CREATE FUNCTION weir.stale() RETURNS integer LANGUAGE sql SET search_path = pg_catalog, pg_temp SET jit = off AS 'SELECT 1'`,                                                    // dropped since; it has the settings of all of Weir's
		`DROP FUNCTION weir.flows; CREATE FUNCTION weir.flows(after bigint DEFAULT NULL) RETURNS integer LANGUAGE sql SET search_path = pg_catalog, pg_temp SET jit = off AS 'SELECT 1'`, // an argument was added since
		`GRANT EXECUTE ON FUNCTION weir.pause TO weir_enqueue`,
	} {
		if _, err := conn.PgConn().Exec(t.Context(), older).ReadAll(); err != nil {
			t.Fatalf("%s: %v", older, err)
		}
		exec(t, conn, `UPDATE weir.setting SET value = 'older' WHERE name = 'functions'`)
		if err := schema.Up(t.Context(), conn); err != nil {
			t.Fatalf("after %s: %v", older, err)
		}
		if got := describeSchema(t, conn); got != want {
			t.Errorf("after %s the schema differs\n%s", older, firstDifference(want, got))
		}
		enqueueN(t, conn, "q", 1)
		if !value[bool](t, conn, `SELECT weir.pause('q')`) {
			t.Errorf("after %s, weir.pause is still the old one", older)
		}
	}
}

// TestMissingRolesAndPrivilegesAreMended: a dump restored without Weir's roles, or without privileges, says which functions it has; migrating
// still creates the roles and grants what this build grants, and nothing else.
func TestMissingRolesAndPrivilegesAreMended(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Server(t, nil).URL("postgres")) // roles are the whole server's
	up := func() string {
		t.Helper()
		if err := schema.Up(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		return describeSchema(t, conn)
	}
	want := up()
	const roles = `weir_enqueue, weir_work, weir_operate, weir_publish, weir_subscribe, weir_hub`
	for _, lost := range []string{
		`DROP OWNED BY ` + roles + `; DROP ROLE ` + roles,                                     // pg_dump without pg_dumpall --globals-only
		`DROP OWNED BY ` + roles + `; GRANT EXECUTE ON ALL ROUTINES IN SCHEMA weir TO PUBLIC`, // pg_restore --no-privileges
		`DROP OWNED BY weir_hub; DROP ROLE weir_hub`,
		`REVOKE USAGE ON SCHEMA weir FROM weir_work`,
		`REVOKE EXECUTE ON FUNCTION weir.take FROM weir_work`,
		`REVOKE SELECT ON weir.failed_jobs FROM weir_operate`,
		`GRANT EXECUTE ON FUNCTION weir.pause TO weir_enqueue`,
	} {
		if _, err := conn.PgConn().Exec(t.Context(), lost).ReadAll(); err != nil {
			t.Fatalf("%s: %v", lost, err)
		}
		if got := up(); got != want {
			t.Errorf("after %s the schema differs\n%s", lost, firstDifference(want, got))
		}
	}
	version := `SELECT string_agg(xmin::text, ' ' ORDER BY oid) FROM pg_proc WHERE pronamespace = 'weir'::regnamespace`
	before := value[string](t, conn, version)
	if up(); value[string](t, conn, version) != before {
		t.Error("functions were replaced although nothing was missing")
	}
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return "- " + a[i] + "\n+ " + b[i]
		}
	}
	return "one is longer than the other"
}

// describeSchema describes the schema as SQL, from the catalogs, in a fixed order.
func describeSchema(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("-- Written by go test ./cmd/internal/proof -run Golden -update. Views are without their queries, which each PostgreSQL prints differently.\n")
	for _, sql := range goldenQueries {
		b.WriteString("\n")
		for _, line := range column[string](t, conn, sql) {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

var goldenQueries = []string{
	`SELECT format('CREATE TYPE %s AS ENUM (%s);', t.oid::regtype, string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder))
	FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid WHERE t.typnamespace = 'weir'::regnamespace GROUP BY t.oid ORDER BY 1`,

	`SELECT format('CREATE SEQUENCE weir.%I AS %s MINVALUE %s MAXVALUE %s;', sequencename, data_type, min_value, max_value)
	FROM pg_sequences WHERE schemaname = 'weir' ORDER BY sequencename COLLATE "C"`,

	`SELECT CASE WHEN c.relispartition THEN format('CREATE TABLE %s PARTITION OF %s %s', c.oid::regclass, i.inhparent::regclass, pg_get_expr(c.relpartbound, c.oid))
		ELSE format('CREATE %s %s (%s)', CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'c' THEN 'TYPE' ELSE 'TABLE' END, c.oid::regclass, (
			SELECT string_agg(E'\n  ' || format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
				|| coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), ''), ',' ORDER BY a.attnum)
			FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
			WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) || E'\n') END
		|| coalesce(' PARTITION BY ' || pg_get_partkeydef(c.oid), '') || coalesce(' WITH (' || array_to_string(c.reloptions, ', ') || ')', '')
		|| ';' || coalesce((SELECT string_agg(format(E'\nALTER TABLE %s ALTER COLUMN %I SET STORAGE %s;', c.oid::regclass, a.attname,
			CASE a.attstorage WHEN 'e' THEN 'EXTERNAL' WHEN 'p' THEN 'PLAIN' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END), '' ORDER BY a.attnum)
			FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid
			WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attstorage <> y.typstorage), '')
	FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
	WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'c') ORDER BY c.relname::text COLLATE "C"`,

	`SELECT format('ALTER TABLE %s ADD %s;', conrelid::regclass, pg_get_constraintdef(oid)) FROM pg_constraint
	WHERE connamespace = 'weir'::regnamespace AND contype IN ('p', 'u', 'c', 'f', 'x') AND conparentid = 0 ORDER BY (conrelid::regclass || conname::text) COLLATE "C"`,

	`SELECT pg_get_indexdef(c.oid) || ';' FROM pg_class c WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind IN ('i', 'I') AND NOT c.relispartition
		AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = c.oid) ORDER BY c.relname::text COLLATE "C"`,

	`SELECT format(E'CREATE %s weir.%I(%s)%s LANGUAGE %s %s%s%s\nAS $$%s$$;', CASE p.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END, p.proname, pg_get_function_arguments(p.oid),
		' RETURNS ' || pg_get_function_result(p.oid), l.lanname,
		CASE p.provolatile WHEN 'v' THEN 'VOLATILE' WHEN 's' THEN 'STABLE' ELSE 'IMMUTABLE' END, CASE WHEN p.prosecdef THEN ' SECURITY DEFINER' ELSE '' END,
		(SELECT string_agg(' SET ' || c, '' ORDER BY ord) FROM unnest(p.proconfig) WITH ORDINALITY u(c, ord)), p.prosrc)
	FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang WHERE p.pronamespace = 'weir'::regnamespace ORDER BY (p.proname || pg_get_function_arguments(p.oid)) COLLATE "C"`,

	`SELECT line FROM (
		SELECT format('COMMENT ON %s %s IS %L;', CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, oid::regclass, obj_description(oid, 'pg_class')) AS line
		FROM pg_class WHERE relnamespace = 'weir'::regnamespace AND relkind <> 'c' AND obj_description(oid, 'pg_class') IS NOT NULL
		UNION ALL SELECT format('COMMENT ON COLUMN %s.%I IS %L;', c.oid::regclass, a.attname, col_description(c.oid, a.attnum))
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relnamespace = 'weir'::regnamespace AND col_description(c.oid, a.attnum) IS NOT NULL
		UNION ALL SELECT format('COMMENT ON TYPE %s IS %L;', oid::regtype, obj_description(oid, 'pg_type')) FROM pg_type
		WHERE typnamespace = 'weir'::regnamespace AND obj_description(oid, 'pg_type') IS NOT NULL
		UNION ALL SELECT format('COMMENT ON ROUTINE %s IS %L;', oid::regprocedure, obj_description(oid, 'pg_proc')) FROM pg_proc
		WHERE pronamespace = 'weir'::regnamespace AND obj_description(oid, 'pg_proc') IS NOT NULL) c ORDER BY line COLLATE "C"`,

	`SELECT line FROM (
		SELECT format('GRANT EXECUTE ON ROUTINE %s TO %s;', p.oid::regprocedure, string_agg(a.grantee::regrole::text, ', ' ORDER BY a.grantee::regrole::text COLLATE "C")) AS line
		FROM pg_proc p, aclexplode(p.proacl) a WHERE p.pronamespace = 'weir'::regnamespace AND a.grantee <> p.proowner GROUP BY p.oid
		UNION ALL SELECT format('GRANT %s ON %s TO %s;', a.privilege_type, c.oid::regclass, string_agg(a.grantee::regrole::text, ', ' ORDER BY a.grantee::regrole::text COLLATE "C"))
		FROM pg_class c, aclexplode(c.relacl) a WHERE c.relnamespace = 'weir'::regnamespace AND a.grantee <> c.relowner GROUP BY c.oid, a.privilege_type
		UNION ALL SELECT format('GRANT %s ON SCHEMA weir TO %s;', a.privilege_type, string_agg(a.grantee::regrole::text, ', ' ORDER BY a.grantee::regrole::text COLLATE "C"))
		FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = 'weir' AND a.grantee <> n.nspowner GROUP BY a.privilege_type) g ORDER BY line COLLATE "C"`,
}
