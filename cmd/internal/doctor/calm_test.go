package doctor_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/sleep"
)

func TestAnIdleServerIsWell(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url := pgtest.Database(t)
	for range 30 {
		execute(t, connect(t, url), "SELECT 1")
	}
	execute(t, connect(t, url), "LISTEN news")
	r := examine(t, url, 2*time.Second)
	if len(r.Findings) > 0 {
		t.Errorf("findings on an idle server:\n%s", describe(r))
	}
	if len(r.Well) < 10 {
		t.Errorf("only %d checks are healthy:\n%s", len(r.Well), describe(r))
	}
}

// bank is pgbench's load, TPC-B, at scale 50 with a pause after each transaction, because a healthy load leaves room. Without the pause, a client
// that a busy machine stops within a transaction makes all others wait for its row, which the doctor rightly reports.
func bank(t *testing.T, url string, clients int) {
	t.Helper()
	execute(t, connect(t, url),
		"CREATE TABLE branch (id int PRIMARY KEY, balance int) WITH (fillfactor = 50)", "INSERT INTO branch SELECT i, 0 FROM generate_series(1, 50) i",
		"CREATE TABLE teller (id int PRIMARY KEY, branch int, balance int) WITH (fillfactor = 50)", "INSERT INTO teller SELECT i, i % 50, 0 FROM generate_series(1, 500) i",
		"CREATE TABLE account (id int PRIMARY KEY, branch int, balance int) WITH (fillfactor = 90)", "INSERT INTO account SELECT i, i % 50, 0 FROM generate_series(1, 100000) i",
		"CREATE TABLE history (teller int, branch int, account int, delta int, at timestamptz)", "VACUUM ANALYZE")
	runSessions(t, url, clients, func(ctx context.Context, conn *pgx.Conn, _ int) error {
		account, teller, branch, delta := 1+rand.IntN(100000), 1+rand.IntN(500), 1+rand.IntN(50), rand.IntN(1000)-500
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			for _, s := range []struct {
				sql  string
				args []any
			}{
				{"UPDATE account SET balance = balance + $1 WHERE id = $2", []any{delta, account}},
				{"SELECT balance FROM account WHERE id = $1", []any{account}},
				{"UPDATE teller SET balance = balance + $1 WHERE id = $2", []any{delta, teller}},
				{"UPDATE branch SET balance = balance + $1 WHERE id = $2", []any{delta, branch}},
				{"INSERT INTO history VALUES ($1, $2, $3, $4, now())", []any{teller, branch, account, delta}},
			} {
				if _, err := tx.Exec(ctx, s.sql, s.args...); err != nil {
					return err
				}
			}
			return nil
		})
		if !sleep.For(ctx, 5*time.Millisecond) {
			return ctx.Err()
		}
		return err
	})
}

// TestSingleRowsOfManyClientsAreWell: clients that serve requests commit single rows because that is what they are asked for.
func TestSingleRowsOfManyClientsAreWell(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	expectCalm(t, examine(t, singleRowsLoad(t), 2*examineFor))
}

func TestAHealthyLoadIsWell(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	for name, parameters := range map[string]map[string]string{"quick flushes": nil, "flushes as on a disk": {"fsync": "on"}} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Server(t, parameters).URL("postgres")
			bank(t, url, 8)
			// Normal additional load: a listener that is notified occasionally, and a report that takes some seconds.
			execute(t, connect(t, url), "LISTEN news")
			execute(t, connect(t, url), "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM account")
			runSessions(t, url, 1, repeat("NOTIFY news", "SELECT pg_sleep(0.05)"))
			expectCalm(t, examine(t, url, 3*time.Second))
		})
	}
}
