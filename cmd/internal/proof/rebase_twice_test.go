package proof

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// blocked waits until a session waits for a lock of another session.
func blocked(t *testing.T, watch, session *pgx.Conn) {
	t.Helper()
	until(t, "a session waits for another's lock", func() bool {
		return value[bool](t, watch, `SELECT cardinality(pg_blocking_pids($1)) > 0`, session.PgConn().PID())
	})
}

// TestRebasesAtTheSameTimeAreOne: a fleet that starts on a restored database rebases it once; the other calls wait without holding anything that the
// first needs, so that there is no deadlock, and then find nothing to do.
func TestRebasesAtTheSameTimeAreOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		call, setting string
		step          int // the advisory lock that the call takes first
	}{{`SELECT weir.rebase()`, "cluster", 0}, {`SELECT weir.rebase_messages()`, "message_cluster", 4}} {
		url := pgtest.Database(t)
		conn, gate := connect(t, url), connect(t, url)
		enqueueN(t, conn, "q", 3)
		exec(t, conn, `SELECT weir.publish_many(ARRAY['c', 'c', 'c'], ARRAY['1', '2', '3'])`)
		exec(t, conn, `UPDATE weir.setting SET value = 'elsewhere' WHERE name = $1`, c.setting)

		exec(t, gate, `BEGIN`)
		exec(t, gate, `SELECT pg_advisory_xact_lock(1464158547, $1)`, c.step)
		type answer struct {
			logged *int64
			err    error
		}
		answers := make(chan answer, 3)
		for range cap(answers) {
			caller := connect(t, url)
			go func() {
				var a answer
				a.err = caller.QueryRow(t.Context(), c.call).Scan(&a.logged)
				answers <- a
			}()
			blocked(t, conn, caller)
		}
		exec(t, gate, `COMMIT`)
		first := 0
		for range cap(answers) {
			a := pgtest.Receive(t, answers, "a call returns")
			if a.err != nil {
				t.Errorf("%s at the same time as others: %v", c.call, a.err)
			} else if a.logged != nil {
				first++
				if *a.logged != 3 {
					t.Errorf("%s logged %d attempts again, want 3", c.call, *a.logged)
				}
			}
		}
		if first != 1 {
			t.Errorf("%s: %d of %d calls rebased the log, want one", c.call, first, cap(answers))
		}
	}
}

// TestNewestTickIsOfItsEpoch: a hub that queries the newest tick during a rebase gets the new log's tick with the new log's epoch.
func TestNewestTickIsOfItsEpoch(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, rebase := connect(t, url), connect(t, url)
	pool := pgtest.Pool(t, url)
	exec(t, conn, `SELECT weir.publish('c', '1')`)
	exec(t, conn, `SELECT weir._await_tick(weir.newest_tick())`)
	exec(t, conn, `UPDATE weir.setting SET value = 'elsewhere' WHERE name = 'message_cluster'`)
	exec(t, rebase, `BEGIN`)
	exec(t, rebase, `SELECT weir.rebase_messages()`)

	type answer struct {
		at  store.Place
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		at, err := store.New(pool, 0).NewestTick(t.Context())
		answers <- answer{at, err}
	}()
	until(t, "the query waits for the rebase", func() bool {
		return value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND $1::integer = ANY (pg_blocking_pids(pid)))`, rebase.PgConn().PID())
	})
	exec(t, rebase, `COMMIT`)
	a := pgtest.Receive(t, answers, "a call returns")
	if a.err != nil {
		t.Fatal(a.err)
	}
	if want := value[int64](t, conn, `SELECT epoch FROM weir.epoch ORDER BY from_tick DESC LIMIT 1`); a.at.Epoch != want || a.at.Tick != newest(t, conn) {
		t.Errorf("got tick %d of epoch %d, want %d of %d", a.at.Tick, a.at.Epoch, newest(t, conn), want)
	}
}
