package proof

import (
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestCallersOfNotifyAreFound: functions, triggers, rules and views that send PostgreSQL notifications are listed with the line that does it;
// comments and names that only look similar are not.
func TestCallersOfNotifyAreFound(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SET standard_conforming_strings = off`) // its patterns don't depend on it
	if value[bool](t, conn, `SELECT EXISTS (SELECT FROM weir.notify_callers())`) {
		t.Error("callers were found in a database without any")
	}
	for _, sql := range []string{
		`CREATE TABLE item (id int PRIMARY KEY)`,
		`CREATE TABLE other (id int PRIMARY KEY)`,
		`CREATE FUNCTION by_select() RETURNS void LANGUAGE sql AS $$ SELECT pg_notify('c', 'x') $$`,
		"CREATE FUNCTION by_perform() RETURNS trigger LANGUAGE plpgsql AS $$\nBEGIN\n  -- say so\n  PERFORM pg_catalog.pg_notify ('c', NEW.id::text);\n  RETURN NEW;\nEND $$",
		"CREATE FUNCTION by_statement() RETURNS void LANGUAGE plpgsql AS $$\nBEGIN\n  NOTIFY c, 'x';\nEND $$",
		`CREATE FUNCTION by_statement_inline() RETURNS void LANGUAGE plpgsql AS $$ BEGIN IF true THEN notify "c"; END IF; END $$`,
		`CREATE FUNCTION by_execute(c text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'NOTIFY ' || quote_ident(c); END $$`,
		`CREATE FUNCTION by_format(c text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('NOTIFY %I', c); END $$`,
		`CREATE FUNCTION by_dynamic_select(c text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'SELECT pg_notify($1, $2)' USING c, ''; END $$`,
		`CREATE FUNCTION by_atomic() RETURNS void LANGUAGE sql BEGIN ATOMIC SELECT pg_notify('c', 'x'); END`,
		`CREATE FUNCTION after_a_dash() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM 'a -- b', pg_notify('c', 'x'); END $$`,
		`CREATE PROCEDURE by_procedure() LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('c', 'x'); COMMIT; END $$`,
		`CREATE TRIGGER tells AFTER INSERT ON item FOR EACH ROW EXECUTE FUNCTION by_perform()`,
		`CREATE RULE says AS ON INSERT TO item DO ALSO NOTIFY c`,
		`CREATE RULE calls AS ON DELETE TO other DO ALSO SELECT pg_notify('c', 'gone')`,
		`CREATE VIEW loud AS SELECT id, pg_notify('c', id::text) IS NULL AS told FROM other`,

		"CREATE FUNCTION quiet_line() RETURNS void LANGUAGE plpgsql AS $$\nBEGIN\n  -- PERFORM pg_notify('c', 'don''t');\n  PERFORM 1; -- NOTIFY c\nEND $$",
		"CREATE FUNCTION quiet_block() RETURNS void LANGUAGE plpgsql AS $$ BEGIN /* PERFORM pg_notify('c', 'x');\n NOTIFY c; ** */ PERFORM 1; /* more */ END $$",
		`CREATE FUNCTION notify_something(text) RETURNS void LANGUAGE sql AS 'SELECT'`,
		`CREATE FUNCTION calls_that() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM notify_something('x'); PERFORM my_pg_notify FROM (SELECT 1 AS my_pg_notify) s; END $$`,
		`CREATE FUNCTION reads_a_column() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM notify FROM (SELECT true AS notify) s; RAISE NOTICE 'will notify them'; END $$`,
		`CREATE FUNCTION uses_weir() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM weir.notify('c', 'x'); END $$`,
		`CREATE VIEW quiet AS SELECT id AS notify FROM other`,
		`CREATE RULE nothing AS ON UPDATE TO other DO INSTEAD NOTHING`,
	} {
		exec(t, conn, sql)
	}
	want := []string{
		"function after_a_dash(): BEGIN PERFORM 'a -- b', pg_notify('c', 'x'); END",
		"function by_atomic(): SELECT pg_notify('c'::text, 'x'::text) AS pg_notify;",
		"function by_dynamic_select(text): BEGIN EXECUTE 'SELECT pg_notify($1, $2)' USING c, ''; END",
		"function by_execute(text): BEGIN EXECUTE 'NOTIFY ' || quote_ident(c); END",
		"function by_format(text): BEGIN EXECUTE format('NOTIFY %I', c); END",
		"function by_procedure(): BEGIN PERFORM pg_notify('c', 'x'); COMMIT; END",
		"function by_select(): SELECT pg_notify('c', 'x')",
		"function by_statement(): NOTIFY c, 'x';",
		`function by_statement_inline(): BEGIN IF true THEN notify "c"; END IF; END`,
		"trigger function by_perform(): PERFORM pg_catalog.pg_notify ('c', NEW.id::text);",
		"trigger tells on item: by_perform()",
		"rule calls on other: SELECT pg_notify",
		"rule says on item: NOTIFY c;",
		"view loud: pg_notify",
	}
	if value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'tcn')`) {
		exec(t, conn, `CREATE EXTENSION tcn`)
		exec(t, conn, `CREATE TRIGGER tcn AFTER INSERT ON other FOR EACH ROW EXECUTE FUNCTION triggered_change_notification()`)
		want = append(want, "trigger tcn on other: triggered_change_notification()")
	} else {
		t.Log("the extension tcn is not installed")
	}
	got := column[string](t, conn, `SELECT replace(kind || ' ' || name || ': ' || CASE WHEN kind = 'view' OR name LIKE 'calls on%' THEN substring(calls FROM '(?:SELECT )?pg_notify') ELSE calls END, 'public.', '') FROM weir.notify_callers()`)
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("this caller was not found: %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("found: %s", line)
		}
	}
}
