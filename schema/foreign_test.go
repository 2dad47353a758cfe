package schema_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func run(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// TestWhatIsNotWeirsIsNeitherAdoptedNorDropped: Weir is not installed into a schema that contains something else, nor removed with it; the error names it, and
// nothing is changed. What others have put into the schema later survives upgrades and downgrades.
func TestWhatIsNotWeirsIsNeitherAdoptedNorDropped(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	conn := connect(t, pgtest.Empty(t))
	for create, want := range map[string]string{
		`CREATE TABLE weir.mine (id serial PRIMARY KEY)`:                        "sequence weir.mine_id_seq, table weir.mine",
		`CREATE FUNCTION weir.enqueue() RETURNS int LANGUAGE sql AS 'SELECT 1'`: "function weir.enqueue()",
		`CREATE TYPE weir.mine AS ENUM ('a')`:                                   "type weir.mine",
		`CREATE VIEW weir.mine AS SELECT 1 AS a`:                                "view weir.mine",
		`CREATE SEQUENCE weir.a; CREATE SEQUENCE weir.b; CREATE SEQUENCE weir.c; CREATE SEQUENCE weir.d; CREATE SEQUENCE weir.e; CREATE SEQUENCE weir.f`: "sequence weir.a, sequence weir.b, sequence weir.c, sequence weir.d, sequence weir.e, and others",
	} {
		run(t, conn, `CREATE SCHEMA weir; `+create)
		if err := schema.Up(ctx, conn); err == nil || !strings.Contains(err.Error(), "is not Weir's: it contains "+want+":") {
			t.Errorf("up after %s: %v, want an error that names %s", create, err, want)
		}
		run(t, conn, `DROP SCHEMA weir CASCADE`)
	}
	run(t, conn, `CREATE SCHEMA weir`) // an empty one is welcome
	if err := schema.Up(ctx, conn); err != nil {
		t.Fatal(err)
	}
	for create, want := range map[string]string{
		`CREATE TABLE weir.mine (id integer)`:                                    "table weir.mine",
		`CREATE FUNCTION weir.mine(text) RETURNS int LANGUAGE sql AS 'SELECT 1'`: "function weir.mine(text)",
		`CREATE VIEW weir.mine AS SELECT 1 AS a`:                                 "view weir.mine",
		`CREATE TABLE weir.mine (a integer) PARTITION BY LIST (a); CREATE TABLE weir.mine_1 PARTITION OF weir.mine FOR VALUES IN (1)`: "table weir.mine",
	} {
		run(t, conn, create)
		if err := schema.Down(ctx, conn, 0); err == nil || !strings.Contains(err.Error(), "what is not Weir's: "+want+":") {
			t.Errorf("down after %s: %v, want an error that names %s", create, err, want)
		}
		if err := schema.Down(ctx, conn, 1); err != nil {
			t.Errorf("down to 1 after %s: %v", create, err)
		}
		if err := schema.Up(ctx, conn); err != nil {
			t.Errorf("up after %s: %v", create, err)
		}
		run(t, conn, `UPDATE weir.setting SET value = '' WHERE name = 'functions'`)
		if err := schema.Up(ctx, conn); err != nil { // replaces all functions
			t.Errorf("up after %s: %v", create, err)
		}
		kind, name, _ := strings.Cut(want, " ")
		run(t, conn, `DROP `+kind+` `+name)
	}
	run(t, conn, `SELECT weir.enqueue('q', 'k')`)
	if err := schema.Down(ctx, conn, 0); err != nil {
		t.Fatal(err)
	}
}

// TestOfSeveralMigrationsAtOnceEachSaysWhatItHasApplied: of processes that migrate at the same time, one has applied everything, and the others nothing.
func TestOfSeveralMigrationsAtOnceEachSaysWhatItHasApplied(t *testing.T) {
	t.Parallel()
	all, err := schema.Migrations()
	if err != nil {
		t.Fatal(err)
	}
	url := pgtest.Empty(t)
	var applied [3]int
	var wait sync.WaitGroup
	for i := range applied {
		conn := connect(t, url)
		wait.Go(func() {
			done, err := schema.Apply(t.Context(), conn)
			if err != nil {
				t.Error(err)
			}
			applied[i] = len(done)
		})
	}
	wait.Wait()
	if total := applied[0] + applied[1] + applied[2]; total != len(all) || max(applied[0], applied[1], applied[2]) != len(all) {
		t.Errorf("they say that they have applied %v migrations of %d", applied, len(all))
	}
}
