package pgwire_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgwire"
)

// TestWhatAConnectionKeepsCountsByItsSize: a hundred wide statements take as much as thousands of narrow ones, and as few of them may be kept.
func TestWhatAConnectionKeepsCountsByItsSize(t *testing.T) {
	e := start(t, pgwire.Config{})
	conn, err := pgx.Connect(t.Context(), e.url("app", "x", "sslmode=disable"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	prepare := func(n int, sql string) (kept int, err error) {
		for kept = range n {
			if _, err = conn.Prepare(t.Context(), fmt.Sprintf("%.20s %d", sql, kept), sql); err != nil {
				return kept, err
			}
		}
		return n, nil
	}
	if kept, err := prepare(1000, "SELECT pg_notify($1, $2)"); err != nil {
		t.Errorf("a thousand narrow ones: %v after %d", err, kept)
	}
	if kept, err := prepare(100, "SELECT 1"+strings.Repeat(",1", 1600)); err == nil || !strings.Contains(err.Error(), "54000") {
		t.Errorf("%d wide ones are kept: %v", kept, err)
	}
}
