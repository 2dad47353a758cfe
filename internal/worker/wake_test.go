package worker

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestWatchMissesNoTransaction: when a job's transaction commits, however late, the next poll reports a change, although the job's id was
// assigned long before. Each step polls as the fetcher does.
func TestWatchMissesNoTransaction(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	st := store.New(pool, 0)
	w := &watch{store: st}

	quiet := func(when string) {
		t.Helper()
		for range 10 { // claims follow a change, and soon nothing changes any more
			changed, _, err := w.poll(ctx, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			if !changed {
				return
			}
		}
		t.Fatalf("%s: the watch keeps reporting changes", when)
	}
	wakes := func(when string) {
		t.Helper()
		changed, _, err := w.poll(ctx, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !changed {
			t.Errorf("%s: the watch reports no change", when)
		}
		quiet(when)
	}
	begin := func() (*pgx.Conn, func(sql string)) {
		t.Helper()
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		exec := func(sql string) {
			t.Helper()
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
		}
		exec(`BEGIN`)
		return conn, exec
	}
	const enqueue = `SELECT weir.enqueue('q', 'k')`
	if _, err := pool.Exec(ctx, enqueue); err != nil { // also creates the queue
		t.Fatal(err)
	}
	wakes("a job in a transaction of its own")

	// The newest transaction of all: no snapshot lists it, because no newer one has ended.
	_, newest := begin()
	newest(enqueue)
	wakes("an id was drawn")
	newest(`COMMIT`)
	wakes("the transaction that drew it committed")

	// An old transaction that logs its job late, next to one that continues.
	_, old := begin()
	old(`SELECT pg_current_xact_id()`)
	_, other := begin()
	other(enqueue)
	wakes("another drew")
	old(enqueue)
	wakes("the old one drew")
	old(`COMMIT`)
	wakes("the old one committed")
	other(`ROLLBACK`)
	wakes("the other ended, whichever way")

	_, prepared := begin()
	prepared(enqueue)
	prepared(`PREPARE TRANSACTION 'wake'`)
	wakes("a prepared transaction drew")
	if _, err := pool.Exec(ctx, `COMMIT PREPARED 'wake'`); err != nil {
		t.Fatal(err)
	}
	wakes("the prepared transaction committed")

	// A resumed queue has older jobs.
	_, resumes := begin()
	resumes(`SELECT weir.resume('q')`)
	wakes("a queue is being resumed")
	resumes(`COMMIT`)
	wakes("it has been")

	// Two transactions log jobs, and commit in reverse order, each between two polls.
	_, first := begin()
	_, second := begin()
	first(enqueue)
	second(enqueue)
	wakes("two drew")
	second(`COMMIT`)
	wakes("the second committed")
	first(`COMMIT`)
	wakes("the first committed")
	quiet("at the end")
}
