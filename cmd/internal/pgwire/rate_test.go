package pgwire_test

import (
	"testing"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
)

// TestStatementsBeyondTheRateWait: none of them fails, and notifications arrive.
func TestStatementsBeyondTheRateWait(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{StatementRate: 50})
	conn := e.connect()
	for range 550 {
		if _, err := conn.Exec(t.Context(), `LISTEN a`); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.server.Stats().Delayed; n == 0 {
		t.Error("550 statements at 50 per second, 500 of them at once, have not waited")
	}
	if _, err := conn.Exec(t.Context(), `NOTIFY a, 'x'`); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.WaitForNotification(t.Context()); err != nil || n.Payload != "x" {
		t.Errorf("got %v %v", n, err)
	}
}
