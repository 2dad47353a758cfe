package proof

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// change is a message of a watched table.
type change struct {
	Table   string
	Op      string
	Rows    int
	More    bool
	Changes []struct {
		Op      string
		Key     map[string]any
		Changed []string
		New     map[string]any
	}
}

// short is the message in a line.
func (c change) short() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %d:", c.Table, c.Op, c.Rows)
	for _, r := range c.Changes {
		key, _ := json.Marshal(r.Key)
		fmt.Fprintf(&b, " %s %s", r.Op, key)
		if r.Changed != nil {
			fmt.Fprintf(&b, " %v", r.Changed)
		}
		if r.New != nil {
			text, _ := json.Marshal(r.New)
			fmt.Fprintf(&b, " %s", text)
		}
	}
	return b.String()
}

// published returns the messages since the last call, as channel and message.
func published(t *testing.T, conn *pgx.Conn, after *int64) (all []string) {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT id, channel, convert_from(payload, 'UTF8') FROM weir.message WHERE id > $1 ORDER BY id`, *after)
	if err != nil {
		t.Fatal(err)
	}
	var channel, payload string
	if _, err := pgx.ForEachRow(rows, []any{after, &channel, &payload}, func() error {
		var c change
		if err := json.Unmarshal([]byte(payload), &c); err != nil {
			return err
		}
		all = append(all, channel+" "+c.short())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestStatementsThatChangeAWatchedTableArePublished(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `CREATE TABLE orders (id bigint PRIMARY KEY, status text, customer text, total int)`)
	exec(t, conn, `SELECT weir.watch_table('orders', 'orders'), weir.watch_table('orders', 'customers.{customer}.orders', ARRAY['status'])`)
	exec(t, conn, `SELECT weir.watch_table('orders', 'orders')`) // again: nothing changes
	var after int64
	for _, step := range []struct {
		sql  string
		want []string
	}{
		{`INSERT INTO orders VALUES (1, 'new', 'ada', 5), (2, 'new', 'bob', 6)`, []string{
			`orders public.orders insert 2: insert {"id":1} insert {"id":2}`,
			`customers.ada.orders public.orders insert 1: insert {"id":1} {"status":"new"}`, `customers.bob.orders public.orders insert 1: insert {"id":2} {"status":"new"}`}},
		{`UPDATE orders SET status = 'paid', total = 7 WHERE id = 1`, []string{
			`orders public.orders update 1: update {"id":1} [status total]`, `customers.ada.orders public.orders update 1: update {"id":1} [status] {"status":"paid"}`}},
		{`UPDATE orders SET total = total + 1`, []string{`orders public.orders update 2: update {"id":1} [total] update {"id":2} [total]`}},
		{`UPDATE orders SET total = total`, nil},
		{`UPDATE orders SET customer = 'b.b>' WHERE id = 2`, []string{
			`orders public.orders update 1: update {"id":2} [customer]`,
			`customers.b%2Eb%3E.orders public.orders update 1: insert {"id":2} {"status":"new"}`, `customers.bob.orders public.orders update 1: delete {"id":2}`}},
		{`UPDATE orders SET id = 3 WHERE id = 2`, []string{
			`orders public.orders update 2: delete {"id":2} insert {"id":3}`,
			`customers.b%2Eb%3E.orders public.orders update 2: delete {"id":2} insert {"id":3} {"status":"new"}`}},
		{`INSERT INTO orders VALUES (3, 'new', NULL, 1) ON CONFLICT (id) DO UPDATE SET customer = NULL, status = '{total}'`, []string{
			`orders public.orders update 1: update {"id":3} [customer status]`,
			`customers.%00.orders public.orders update 1: insert {"id":3} {"status":"{total}"}`, `customers.b%2Eb%3E.orders public.orders update 1: delete {"id":3}`}},
		{`DELETE FROM orders WHERE id = 99`, nil},
		{`DELETE FROM orders`, []string{`orders public.orders delete 2: delete {"id":1} delete {"id":3}`,
			`customers.ada.orders public.orders delete 1: delete {"id":1}`, `customers.%00.orders public.orders delete 1: delete {"id":3}`}},
		{`SELECT weir.unwatch_table('orders', 'orders')`, nil},
		{`INSERT INTO orders VALUES (1, 'new', '', 5)`, []string{`customers.%.orders public.orders insert 1: insert {"id":1} {"status":"new"}`}},
	} {
		exec(t, conn, step.sql)
		got := published(t, conn, &after)
		slices.Sort(got)
		want := slices.Clone(step.want)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %s\nwant %s", step.sql, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
	exec(t, conn, `BEGIN; INSERT INTO orders VALUES (7, 'new', 'ada', 5); ROLLBACK`)
	if got := published(t, conn, &after); got != nil {
		t.Errorf("what was rolled back is published: %v", got)
	}
	if got := column[string](t, conn, `SELECT format('%s %s %s', table_name, channel, columns) FROM weir.watched_tables()`); !slices.Equal(got, []string{"orders customers.{customer}.orders {status}"}) {
		t.Errorf("watched are %v", got)
	}
	if value[bool](t, conn, `SELECT weir.unwatch_table('orders', 'orders')`) {
		t.Error("a table that is not watched was found")
	}
}

func TestManyChangedRowsAreFewMessages(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `CREATE TABLE parent (a int, id int, note text, PRIMARY KEY (a, id)) PARTITION BY LIST (a)`)
	exec(t, conn, `CREATE TABLE child PARTITION OF parent FOR VALUES IN (1)`)
	exec(t, conn, `SELECT weir.watch_table('parent', 'parent')`)
	exec(t, conn, `INSERT INTO parent SELECT 1, n, repeat('x', 100) FROM generate_series(1, 25000) n`)
	var got []change
	for _, payload := range column[string](t, conn, `SELECT convert_from(payload, 'UTF8') FROM weir.message ORDER BY id`) {
		var c change
		if err := json.Unmarshal([]byte(payload), &c); err != nil {
			t.Fatal(err)
		}
		if len(payload) > 100_000 {
			t.Errorf("a message has %d bytes", len(payload))
		}
		got = append(got, c)
	}
	if len(got) != 3 || got[0].Rows != 10000 || !got[0].More || len(got[0].Changes) < 500 || got[2].Rows != 5000 {
		t.Errorf("%d messages, the first of %d rows with %d changes", len(got), got[0].Rows, len(got[0].Changes))
	}
}

func TestWatchingATableIsRefusedWithAReason(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	exec(t, conn, `CREATE TABLE orders (id bigint PRIMARY KEY, "odd {name}" text); CREATE TABLE bare (id int); CREATE VIEW seen AS SELECT * FROM orders`)
	for _, c := range []struct{ sql, code, says string }{
		{`weir.watch_table('bare', 'x')`, "55000", "bare has no primary key"},
		{`weir.watch_table('seen', 'x')`, "42809", "seen is not a table"},
		{`weir.watch_table('weir.queue', 'x')`, "42809", "a table of Weir itself"},
		{`weir.watch_table('orders', '')`, "22023", "the channel has 0 bytes"},
		{`weir.watch_table('orders', NULL)`, "22023", "the channel has no bytes"},
		{`weir.watch_table('orders', 'orders.>')`, "22023", "is a pattern"},
		{`weir.watch_table('orders', 'orders.{id')`, "22023", "a brace without its other one"},
		{`weir.watch_table('orders', 'orders.{nr}')`, "42703", `orders has no column "nr"`},
		{`weir.watch_table('orders', 'orders', ARRAY['nr'])`, "42703", `orders has no column "nr"`},
		{`weir.watch_table('orders', 'orders', '{}')`, "22023", "columns is empty"},
		{`weir.watch_table(NULL, 'orders')`, "42809", "null is not a table"},
	} {
		_, err := conn.Exec(t.Context(), `SELECT `+c.sql)
		if sqlstate(err) != c.code || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v, want %s with %q", c.sql, err, c.code, c.says)
		}
	}
}

func TestAWatchedTableIsPublishedWithTheRightsOfItsOwner(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, role := range []string{"weir_test_owner", "weir_test_clerk"} {
		exec(t, conn, `DO $$ BEGIN CREATE ROLE `+role+` NOLOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`)
	}
	exec(t, conn, `CREATE SCHEMA shop; GRANT ALL ON SCHEMA shop TO weir_test_owner; GRANT USAGE ON SCHEMA shop TO weir_test_clerk; SET ROLE weir_test_owner`)
	// A cast that says as whom it is called.
	exec(t, conn, `CREATE TYPE shop.spy AS ENUM ('a'); CREATE FUNCTION shop.tell(shop.spy) RETURNS json LANGUAGE sql AS 'SELECT to_json(current_user::text)'; CREATE CAST (shop.spy AS json) WITH FUNCTION shop.tell(shop.spy)`)
	exec(t, conn, `CREATE TABLE shop.orders (id bigint PRIMARY KEY, spy shop.spy); GRANT INSERT ON shop.orders TO weir_test_clerk`)
	exec(t, conn, `RESET ROLE`)
	if _, err := conn.Exec(t.Context(), `SELECT weir.watch_table('shop.orders', 'orders.{id}', '{spy}')`); sqlstate(err) != "42501" || !strings.Contains(err.Error(), "weir_test_owner, may not publish") {
		t.Errorf("the owner may not publish, and watching says %v", err)
	}
	exec(t, conn, `GRANT weir_publish TO weir_test_owner`)
	exec(t, conn, `SELECT weir.watch_table('shop.orders', 'orders.{id}', '{spy}')`) // as a superuser
	exec(t, conn, `SET ROLE weir_test_clerk`)
	exec(t, conn, `INSERT INTO shop.orders VALUES (1, 'a')`)
	if _, err := conn.Exec(t.Context(), `SELECT weir.watch_table('shop.orders', 'x')`); sqlstate(err) != "42501" || !strings.Contains(err.Error(), "permission denied for schema weir") {
		t.Errorf("a clerk watches the table: %v", err)
	}
	exec(t, conn, `RESET ROLE; GRANT weir_enqueue TO weir_test_clerk; SET ROLE weir_test_clerk`)
	if _, err := conn.Exec(t.Context(), `SELECT weir.watch_table('shop.orders', 'x')`); sqlstate(err) != "42501" || !strings.Contains(err.Error(), "permission denied for function watch_table") {
		t.Errorf("a clerk with another role watches the table: %v", err)
	}
	exec(t, conn, `RESET ROLE; REVOKE weir_enqueue FROM weir_test_clerk`)
	if got := column[string](t, conn, `SELECT channel || ' ' || (convert_from(payload, 'UTF8')::jsonb #>> '{changes,0,new,spy}') FROM weir.message`); !slices.Equal(got, []string{"orders.1 weir_test_owner"}) {
		t.Errorf("published are %v", got)
	}
	if value[bool](t, conn, `SELECT bool_or(has_function_privilege('weir_test_clerk', p.oid, 'EXECUTE')) FROM pg_proc p WHERE p.proname LIKE 'weir\_watch\_%'`) {
		t.Error("others may use the trigger's function for tables of theirs")
	}
	exec(t, conn, `DROP SCHEMA weir CASCADE`) // by hand, without weir migrate down
	exec(t, conn, `INSERT INTO shop.orders VALUES (2, 'a')`)
}
