package proof

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestNoStatementFailsBecauseAWatchedTableHasChanged: columns are renamed and dropped, also those of the key, of the channel and of the columns, and the key is given up.
func TestNoStatementFailsBecauseAWatchedTableHasChanged(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `CREATE TABLE orders (shop int, id bigint, status text, customer text, PRIMARY KEY (shop, id)); INSERT INTO orders VALUES (1, 1, 'new', 'ada'), (1, 2, 'new', 'bob')`)
	exec(t, conn, `SELECT weir.watch_table('orders', 'orders'), weir.watch_table('orders', 'of.{customer}', ARRAY['status'])`)
	var after int64
	for _, step := range []struct {
		change, statement string
		want              []string
	}{
		{`ALTER TABLE orders RENAME id TO order_id`, `UPDATE orders SET status = 'paid' WHERE order_id = 1`, []string{
			`of.ada public.orders update 1: update {"order_id":1,"shop":1} [status] {"status":"paid"}`, `orders public.orders update 1: update {"order_id":1,"shop":1} [status]`}},
		{`ALTER TABLE orders RENAME customer TO buyer`, `UPDATE orders SET status = 'sent' WHERE order_id = 1`, []string{
			`of.%00 public.orders update 1: update {"order_id":1,"shop":1} [status] {"status":"sent"}`, `orders public.orders update 1: update {"order_id":1,"shop":1} [status]`}},
		{`ALTER TABLE orders DROP COLUMN status`, `UPDATE orders SET buyer = 'eve' WHERE order_id = 2`, []string{`orders public.orders update 1: update {"order_id":2,"shop":1} [buyer]`}},
		{`ALTER TABLE orders ADD COLUMN late int`, `DELETE FROM orders WHERE order_id = 2`, []string{
			`of.%00 public.orders delete 1: delete {"order_id":2,"shop":1}`, `orders public.orders delete 1: delete {"order_id":2,"shop":1}`}},
		{`ALTER TABLE orders DROP CONSTRAINT orders_pkey`, `UPDATE orders SET buyer = 'zoe'`, []string{
			`of.%00 public.orders update 2: delete {"id":null,"shop":1} insert {"id":null,"shop":1} {"status":null}`, `orders public.orders update 2: delete {"id":null,"shop":1} insert {"id":null,"shop":1}`}},
	} {
		exec(t, conn, step.change)
		exec(t, conn, step.statement)
		got := published(t, conn, &after)
		slices.Sort(got)
		if !slices.Equal(got, step.want) {
			t.Errorf("after %s, %s:\n got %s\nwant %s", step.change, step.statement, strings.Join(got, "\n     "), strings.Join(step.want, "\n     "))
		}
	}
}

// TestRowsOfAWatchedTableMoveBetweenPartitions: an update that moves a row to another partition is one of the row.
func TestRowsOfAWatchedTableMoveBetweenPartitions(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `CREATE TABLE parts (region text, id int, note text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
		CREATE TABLE east PARTITION OF parts FOR VALUES IN ('east'); CREATE TABLE west PARTITION OF parts FOR VALUES IN ('west')`)
	exec(t, conn, `SELECT weir.watch_table('parts', 'parts'), weir.watch_table('west', 'west')`)
	var after int64
	for _, step := range []struct {
		sql  string
		want []string
	}{
		{`INSERT INTO parts VALUES ('east', 1, 'x')`, []string{`parts public.parts insert 1: insert {"id":1,"region":"east"}`}},
		{`UPDATE parts SET region = 'west'`, []string{`parts public.parts update 2: delete {"id":1,"region":"east"} insert {"id":1,"region":"west"}`}},
		{`UPDATE parts SET note = 'y'`, []string{`parts public.parts update 1: update {"id":1,"region":"west"} [note]`}},
		{`UPDATE west SET note = 'z'`, []string{`west public.west update 1: update {"id":1,"region":"west"} [note]`}},
		{`CREATE TABLE north PARTITION OF parts FOR VALUES IN ('north'); INSERT INTO parts VALUES ('north', 2, 'x')`, []string{`parts public.parts insert 1: insert {"id":2,"region":"north"}`}},
		{`TRUNCATE parts`, nil},
	} {
		exec(t, conn, step.sql)
		if got := published(t, conn, &after); !slices.Equal(got, step.want) {
			t.Errorf("%s:\n got %s\nwant %s", step.sql, strings.Join(got, "\n     "), strings.Join(step.want, "\n     "))
		}
	}
}

// TestLongRowsOfAWatchedTableAreFewAtATime: so that a statement does not need memory for all of them.
func TestLongRowsOfAWatchedTableAreFewAtATime(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `CREATE TABLE docs (id int PRIMARY KEY, body text); ALTER TABLE docs ALTER body SET STORAGE EXTERNAL; SELECT weir.watch_table('docs', 'docs')`)
	exec(t, conn, `INSERT INTO docs SELECT n, repeat('x', 1 << 20) FROM generate_series(1, 24) n`)
	exec(t, conn, `UPDATE docs SET body = body || 'x' WHERE id > 12`)
	exec(t, conn, `DELETE FROM docs`)
	got := column[string](t, conn, `SELECT format('%s: %s rows in %s messages', op, sum(rows), count(*)) FROM (SELECT p->>'op' AS op, (p->>'rows')::int AS rows FROM weir.message m, CAST(convert_from(m.payload, 'UTF8') AS jsonb) p) m GROUP BY op ORDER BY op`)
	if want := []string{"delete: 24 rows in 2 messages", "insert: 24 rows in 2 messages", "update: 12 rows in 2 messages"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAFunctionOfAnotherIsNotWatchedWith: whoever may create functions in the table's schema could have made one that the owner's rights would go to.
func TestAFunctionOfAnotherIsNotWatchedWith(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `DO $$ BEGIN CREATE ROLE weir_test_eve NOLOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`)
	exec(t, conn, `CREATE TABLE orders (id bigint PRIMARY KEY); GRANT CREATE ON SCHEMA public TO weir_test_eve`)
	name := value[string](t, conn, `SELECT 'weir_watch_' || left(md5('orders'::regclass::oid || ' orders'), 12)`)
	exec(t, conn, `SET ROLE weir_test_eve`)
	exec(t, conn, `CREATE FUNCTION public.`+name+`() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	exec(t, conn, `RESET ROLE`)
	exec(t, conn, `SELECT weir.watch_table('orders', 'orders'), weir.watch_table('orders', 'orders')`)
	if value[bool](t, conn, `SELECT bool_or(p.proname = $1 OR p.proowner <> c.relowner) OR count(*) <> 3 FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid WHERE c.oid = 'orders'::regclass`, name) {
		t.Error("the table is watched with the function of another")
	}
	exec(t, conn, `DO $$ BEGIN EXECUTE (SELECT format('ALTER FUNCTION %s OWNER TO weir_test_eve', w::regprocedure) FROM weir._watches_of('orders', 'orders') w); END $$`)
	if _, err := conn.Exec(t.Context(), `SELECT weir.watch_table('orders', 'orders')`); sqlstate(err) != "42723" || !strings.Contains(err.Error(), "belongs to weir_test_eve") {
		t.Errorf("watching with the function of another: %v", err)
	}
}

// TestNamesInAWatchedTableAreOnlyNames: no name of a column, of a table or in a channel is run as SQL by who watches the table.
func TestNamesInAWatchedTableAreOnlyNames(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SET check_function_bodies = off`) // or the rest of the body, which makes no sense, would be refused
	var after int64
	for i, quote := range []string{"$body$", "$make$", "$$", "'", `\'`, "%L", "*/", "{0}"} {
		name := quote + `;CREATE TABLE public.pwned();SELECT ` + quote
		id := pgx.Identifier{name}.Sanitize()
		exec(t, conn, `CREATE TABLE `+id+` (`+id+` text PRIMARY KEY)`)
		channel := "of." + strings.Trim(quote, "{}*")
		exec(t, conn, `SELECT weir.watch_table($1::text::regclass, $2, ARRAY[$3])`, id, channel, name)
		exec(t, conn, `INSERT INTO `+id+` VALUES ('x')`)
		exec(t, conn, `UPDATE `+id+` SET `+id+` = 'y'`)
		if got := published(t, conn, &after); len(got) != 2 || !strings.HasPrefix(got[0], channel+" ") {
			t.Errorf("of the %dth name, published are %q", i, got)
		}
		if got := value[int](t, conn, `SELECT count(*) FROM weir.watched_tables() w WHERE w.channel = $1 AND w.columns = ARRAY[$2]`, channel, name); got != 1 {
			t.Errorf("the %dth name is watched %d times", i, got)
		}
	}
	if value[bool](t, conn, `SELECT to_regclass('public.pwned') IS NOT NULL`) {
		t.Error("a name was run as SQL")
	}
}

// TestAColumnOfAWatchedTableMayHaveAnyName: also one that is a name in the function which watch_table makes.
func TestAColumnOfAWatchedTableMayHaveAnyName(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	var after int64
	for _, name := range []string{"n", "o", "p", "r", "w", "k", "nr", "keys", "old", "new", "olds", "news", "old_rows", "new_rows", "tg_op"} {
		exec(t, conn, `CREATE TABLE `+name+` (id int PRIMARY KEY, `+name+` text)`)
		exec(t, conn, `SELECT weir.watch_table($1::text::regclass, 'rows.{id}', ARRAY[$1])`, name)
		for _, step := range []struct{ sql, want string }{
			{`INSERT INTO ` + name + ` VALUES (1, 'a')`, `insert 1: insert {"id":1} {"` + name + `":"a"}`},
			{`UPDATE ` + name + ` SET ` + name + ` = 'b'`, `update 1: update {"id":1} [` + name + `] {"` + name + `":"b"}`},
			{`DELETE FROM ` + name, `delete 1: delete {"id":1}`},
		} {
			exec(t, conn, step.sql)
			want := "rows.1 public." + name + " " + step.want
			if got := published(t, conn, &after); len(got) != 1 || got[0] != want {
				t.Errorf("%s:\n got %s\nwant %s", step.sql, strings.Join(got, "\n     "), want)
			}
		}
	}
}
