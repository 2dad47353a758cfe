package server

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestReadsFromAStandby: a hub that reads from a streaming standby delivers all messages in order, including those published while
// the standby lagged, and a subscriber can then read the row on that standby.
func TestReadsFromAStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, map[string]string{"wal_level": "replica", "max_wal_senders": "5"})
	conn, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	exec := func(c *pgx.Conn, sql string) {
		t.Helper()
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(conn, `CREATE TABLE thing (id integer PRIMARY KEY)`)
	standby := pgtest.Standby(t, primary, nil)
	pgtest.Replayed(t, primary, standby)
	replica, err := pgx.Connect(t.Context(), standby.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer replica.Close(context.Background())

	s := start(t, Config{Database: primary.URL("postgres"), ReadDatabase: standby.URL("postgres")})
	client := listen(t, s, primary.URL("postgres"), "things")
	for i := range 30 {
		switch i {
		case 10:
			exec(replica, `SELECT pg_wal_replay_pause()`)
		case 20:
			exec(replica, `SELECT pg_wal_replay_resume()`)
		}
		exec(conn, fmt.Sprintf(`BEGIN; INSERT INTO thing VALUES (%[1]d); SELECT weir.publish('things', '%[1]d'); COMMIT`, i))
	}
	for i := range 30 {
		if got := received(t, client); got != fmt.Sprintf("things=%d", i) {
			t.Fatalf("message %d is %s", i, got)
		}
		var there bool
		if err := replica.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM thing WHERE id = $1)`, i).Scan(&there); err != nil || !there {
			t.Fatalf("row %d can't be read on the standby that delivered its message: %v", i, err)
		}
	}
}
