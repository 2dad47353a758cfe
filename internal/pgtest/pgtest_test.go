package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestEachDatabaseIsItsOwn: databases of one test do not share tables.
func TestEachDatabaseIsItsOwn(t *testing.T) {
	t.Parallel()
	for range 3 {
		pool := pgtest.Pool(t, pgtest.Empty(t))
		if _, err := pool.Exec(t.Context(), "CREATE TABLE mine ()"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDatabaseHasTheSchema: Database returns databases with Weir's schema.
func TestDatabaseHasTheSchema(t *testing.T) {
	t.Parallel()
	for range 3 {
		begin := time.Now()
		pool := pgtest.Pool(t, pgtest.Database(t))
		t.Logf("created in %v", time.Since(begin))
		var there bool
		if err := pool.QueryRow(t.Context(), "SELECT pg_catalog.to_regclass('weir.job') IS NOT NULL").Scan(&there); err != nil {
			t.Fatal(err)
		}
		if !there {
			t.Error("the table weir.job does not exist")
		}
	}
}

// TestDatabaseIsDroppedInSpiteOfSessionsAndPreparedTransactions: a test's database is dropped even if sessions or prepared transactions remain.
func TestDatabaseIsDroppedInSpiteOfSessionsAndPreparedTransactions(t *testing.T) {
	t.Parallel()
	outer := pgtest.Pool(t, pgtest.Empty(t))
	var name string
	t.Run("test", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), pgtest.Empty(t)) // never closed
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{"BEGIN", "CREATE TABLE left_over ()", "PREPARE TRANSACTION 'it''s left over'"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		if err := conn.QueryRow(t.Context(), "SELECT pg_catalog.current_database()").Scan(&name); err != nil {
			t.Fatal(err)
		}
	})
	var left int
	if err := outer.QueryRow(t.Context(), "SELECT count(*) FROM pg_catalog.pg_database WHERE datname = $1", name).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if left != 0 {
		t.Errorf("database %s was not dropped", name)
	}
}

// TestServerOfATestsOwnCanBeKilled: a test's own server restarts after a kill, with its parameters.
func TestServerOfATestsOwnCanBeKilled(t *testing.T) {
	t.Parallel()
	s := pgtest.Server(t, map[string]string{"work_mem": "7MB"})
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	var value string
	if err := pgtest.Pool(t, s.URL("postgres")).QueryRow(context.Background(), "SHOW work_mem").Scan(&value); err != nil {
		t.Fatal(err)
	}
	if value != "7MB" {
		t.Errorf("work_mem is %s, want 7MB", value)
	}
}
