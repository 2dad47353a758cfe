package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestALookAtOneWorkerFindsThoseThatSeemToBeLost: not those that attend, send heartbeats, or are fenced; and however many there are, each is looked at.
func TestALookAtOneWorkerFindsThoseThatSeemToBeLost(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, session := connect(t, url), connect(t, url)
	misses := func() bool {
		t.Helper()
		return value[bool](t, conn, `SELECT weir._misses_one()`)
	}
	never := func(who string) {
		t.Helper()
		for range 20 {
			if misses() {
				t.Fatal("missed: " + who)
			}
		}
	}
	soon := func(who string) {
		t.Helper()
		for range 20_000 {
			if misses() {
				return
			}
		}
		t.Fatal("not missed: " + who)
	}

	const silent = `UPDATE weir.last_word SET at = at - interval '1 hour' WHERE worker >= $1` // and those that have started since

	never("nobody is there")
	worker := startWorker(t, conn, "q")
	if !attend(t, session, worker) {
		t.Fatal("the session of a worker is not recognized as its own")
	}
	never("a worker that attends")
	if n := value[int](t, conn, `SELECT count(*) FROM pg_locks WHERE classid = 1464158554 AND pid = pg_backend_pid()`); n != 0 {
		t.Errorf("looking has left %d locks", n)
	}

	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	hasEnded(t, conn, session.PgConn().PID())
	soon("a worker whose session has ended")
	exec(t, conn, `SELECT weir.heartbeat($1)`, worker)
	never("a worker that sends heartbeats")
	exec(t, conn, silent, worker)
	soon("a worker whose heartbeats have ceased")
	exec(t, conn, `SELECT weir._fence($1)`, worker)
	never("a worker that is fenced")

	// Of many workers on many pages of the table, the last one is lost.
	exec(t, conn, `SELECT weir.heartbeat(weir._start('w', ARRAY['q'])) FROM generate_series(1, 300)`)
	never("workers that send heartbeats")
	exec(t, conn, silent, startWorker(t, conn, "q"))
	soon("one of many")
	if pages := value[int](t, conn, `SELECT pg_relation_size('weir.worker') / 8192`); pages < 2 {
		t.Errorf("all workers are on %d page", pages)
	}
	// What it reads does not grow with the workers.
	exec(t, conn, `VACUUM ANALYZE weir.worker`)
	read := func() int {
		t.Helper()
		return value[int](t, conn, `SELECT coalesce(pg_stat_get_xact_tuples_returned('weir.worker'::regclass), 0)`)
	}
	exec(t, conn, `BEGIN`)
	before := read()
	misses()
	if n := read() - before; n > 250 {
		t.Errorf("a look reads %d of 300 rows", n)
	}
	exec(t, conn, `COMMIT`)

	// Among many that have ended, those that have not are looked at all the same.
	exec(t, conn, `SELECT weir._fence(w.id) FROM weir.worker w WHERE NOT w.fenced`)
	exec(t, conn, `SELECT weir._fence(weir._start('w', ARRAY['q'])) FROM generate_series(1, 500)`)
	exec(t, conn, silent, value[int32](t, conn, `SELECT min(w) FROM (SELECT weir._start('w', ARRAY['q']) AS w FROM generate_series(1, 300) OFFSET 0) k`))
	for range 20 {
		if !misses() {
			t.Fatal("a look has found none of 300 workers, among hundreds that have ended")
		}
	}
	// While somebody keeps watch, nobody else need do so.
	if value[bool](t, conn, `SELECT weir._misses_one() FROM (SELECT setval('weir.watched_at', (extract(epoch FROM clock_timestamp()) * 1000)::bigint) OFFSET 0) k`) {
		t.Error("missed, although somebody has just checked")
	}
	exec(t, conn, `SELECT setval('weir.watched_at', (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1000)`)
	soon("workers, for whom nobody has looked for a second")
}
