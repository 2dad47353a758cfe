package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestASubscriberStopsNobody: whatever a role that may subscribe does in a transaction that it does not end, ticks are cut and segments turn.
func TestASubscriberStopsNobody(t *testing.T) {
	url := pgtest.Database(t)
	subscriber, hub := connect(t, url), connect(t, url)
	exec(t, hub, `SELECT weir.publish('c', 'one')`)
	exec(t, hub, `SELECT * FROM weir.tick(1)`)
	exec(t, subscriber, `SET ROLE weir_subscribe; BEGIN`)
	for sql, code := range map[string]string{
		`SELECT * FROM weir.ticks(1)`: "", `SELECT * FROM weir.read(2)`: "", `SELECT weir.newest_tick()`: "",
		`SELECT * FROM weir.tick(1)`: "42501", `SELECT weir.cut()`: "42501", `SELECT weir.rebase_messages()`: "42501", `SELECT weir.rotate_messages()`: "42501",
		`SELECT weir.reclaim_messages(1, '0')`: "42501", `LOCK TABLE weir.message`: "42501",
	} {
		exec(t, subscriber, `SAVEPOINT before`)
		if _, err := subscriber.Exec(t.Context(), sql); sqlstate(err) != code {
			t.Errorf("%s: %v, want SQLSTATE %q", sql, err, code)
		}
		if code != "" {
			exec(t, subscriber, `ROLLBACK TO before`)
		}
	}
	exec(t, hub, `SET lock_timeout = '10s'`)
	exec(t, hub, `SELECT weir.publish('c', 'two')`)
	if n := value[int](t, hub, `SELECT cardinality(seqs) FROM weir.tick(2)`); n != 1 {
		t.Errorf("%d ticks were cut, want 1", n)
	}
	exec(t, hub, `SELECT weir.rotate_messages()`)
	exec(t, subscriber, `ROLLBACK`)
}
