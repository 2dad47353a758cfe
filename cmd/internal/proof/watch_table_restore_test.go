package proof

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAWatchedTableIsKnownWhereverItIs: restored from a dump, renamed, or moved to another schema, a table is watched as before, once, until that is ended.
func TestAWatchedTableIsKnownWhereverItIs(t *testing.T) {
	t.Parallel()
	const watch = `SELECT weir.watch_table($1::text::regclass, 'orders'), weir.watch_table($1::text::regclass, 'of.{id}', '{note}')`
	goesOn := func(t *testing.T, conn *pgx.Conn, table string) {
		t.Helper()
		var after int64
		for range 2 { // also after a migration has said it again
			exec(t, conn, `DELETE FROM `+table)
			after = value[int64](t, conn, `SELECT coalesce(max(id), 0) FROM weir.message`)
			exec(t, conn, `INSERT INTO `+table+` VALUES (1, 'x')`)
			got := published(t, conn, &after)
			slices.Sort(got)
			if want := []string{`of.1 ` + table + ` insert 1: insert {"id":1} {"note":"x"}`, `orders ` + table + ` insert 1: insert {"id":1}`}; !slices.Equal(got, want) {
				t.Errorf("published are %q, want %q", got, want)
			}
			exec(t, conn, watch, table)
		}
		if n := value[int](t, conn, `SELECT count(*) FROM weir.watched_tables()`); n != 2 {
			t.Errorf("%d are watched, want 2", n)
		}
		if !value[bool](t, conn, `SELECT weir.unwatch_table($1::text::regclass, 'orders') AND weir.unwatch_table($1::text::regclass, 'of.{id}')`, table) {
			t.Error("the table was not watched")
		}
		exec(t, conn, `DELETE FROM `+table)
		if got := published(t, conn, &after); got != nil {
			t.Errorf("the end is published: %q", got)
		}
		if n := value[int](t, conn, `SELECT count(*) FROM pg_proc WHERE proname LIKE 'weir\_watch\_%'`); n != 0 {
			t.Errorf("%d functions are left", n)
		}
	}
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `CREATE TABLE orders (id int PRIMARY KEY, note text); CREATE SCHEMA shop`)
	exec(t, conn, watch, "orders")
	url := conn.Config().ConnString()
	t.Run("restored", func(t *testing.T) {
		dump := dumpProgram(t)
		into := pgtest.Empty(t)
		target := connect(t, into)
		exec(t, target, `CREATE TABLE before (id int); DROP TABLE before`) // oids are others
		run(t, bytes.NewReader(run(t, nil, dump, url)), filepath.Join(filepath.Dir(dump), "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", into)
		goesOn(t, target, "public.orders")
	})
	exec(t, conn, `ALTER TABLE orders RENAME TO sales; ALTER TABLE sales SET SCHEMA shop`)
	exec(t, conn, `ALTER SCHEMA shop RENAME TO market`)
	goesOn(t, conn, "market.sales")
}
