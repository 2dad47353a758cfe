package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestFailoverFencesNobody: a promoted standby fences no worker for its silence before the promotion, whatever its clock says, and fences workers
// that stay silent from then on.
func TestFailoverFencesNobody(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	conn := connect(t, primary.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `SELECT weir._rescue()`)
	alive := value[int32](t, conn, `SELECT weir._start('alive', ARRAY['q'], '5 seconds')`)
	silent := value[int32](t, conn, `SELECT weir._start('silent', ARRAY['q'], '5 seconds')`)
	exec(t, conn, `SELECT weir.heartbeat(w) FROM unnest(ARRAY[$1::integer, $2]) w`, alive, silent)
	// The primary has been dead for an hour when the standby, which is older, is promoted.
	exec(t, conn, `UPDATE weir.worker SET at = at - interval '1 hour'`)
	exec(t, conn, `UPDATE weir.last_word SET at = at - interval '1 hour'`)
	exec(t, conn, `SELECT setval('weir.watched_at', (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 3600000)`)
	standby := pgtest.Standby(t, primary, nil)
	pgtest.Replayed(t, primary, standby)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Promote(t, standby)
	conn = connect(t, standby.URL("postgres"))
	fenced := func(worker int32) bool {
		return value[bool](t, conn, `SELECT EXISTS (SELECT FROM weir.worker w WHERE w.id = $1 AND w.fenced)`, worker)
	}
	exec(t, conn, `SELECT weir._rescue()`)
	if fenced(alive) || fenced(silent) {
		t.Fatal("a worker was fenced by the first check after the failover")
	}
	until(t, "the worker that stays silent is fenced", func() bool {
		exec(t, conn, `SELECT weir.heartbeat($1)`, alive)
		exec(t, conn, `SELECT weir._rescue()`)
		return fenced(silent)
	})
	if fenced(alive) {
		t.Error("a worker that was never silent was fenced")
	}
}

// TestLeasesDoNotTrustTheClock: steps of the clock, in either direction and however often, neither fence a worker with heartbeats nor keep a silent
// one alive.
func TestLeasesDoNotTrustTheClock(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	alive := value[int32](t, conn, `SELECT weir._start('alive', ARRAY['q'], '10 seconds')`)
	silent := value[int32](t, conn, `SELECT weir._start('silent', ARRAY['q'], '10 seconds')`)
	fenced := func(worker int32) bool {
		return value[bool](t, conn, `SELECT EXISTS (SELECT FROM weir.worker w WHERE w.id = $1 AND w.fenced)`, worker)
	}
	steps := 0
	for step := int64(3_600_000); !fenced(silent); step = -step {
		exec(t, conn, `SELECT weir.heartbeat($1)`, alive)
		exec(t, conn, `SELECT setval('weir.watched_at', (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1)`, step)
		exec(t, conn, `SELECT weir._rescue()`)
		if steps++; steps > 20 {
			t.Fatal("the silent worker is never fenced")
		}
	}
	// A step counts as 2 s, and the lease is 2 s.
	if steps < 6 {
		t.Errorf("the silent worker was fenced after %d steps", steps)
	}
	if fenced(alive) {
		t.Error("a worker that was never silent was fenced")
	}
}

// TestLeasesCountFromTheFirstLookInALifeOfTheServer: after a restart a lease starts with the first check, because the last heartbeats may have been
// lost with the server.
func TestLeasesCountFromTheFirstLookInALifeOfTheServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	conn := connect(t, server.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '5 seconds')`)
	exec(t, conn, `SELECT setval('weir.watched', 60000)`)
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn = reconnect(t, server.URL("postgres"))
	state := func() string { return value[string](t, conn, `SELECT state FROM weir.workers() WHERE id = $1`, worker) }
	exec(t, conn, `UPDATE weir.last_word SET at = at - interval '1 hour'`)
	exec(t, conn, `SELECT setval('weir.watched_at', (extract(epoch FROM clock_timestamp()) * 1000)::bigint)`)
	if got := state(); got != "alive" {
		t.Errorf("before the first check, the worker is %s", got)
	}
	checks := 0
	for ; !isFenced(t, conn, worker); checks++ {
		if checks > 20 {
			t.Fatal("a silent worker is never fenced")
		}
		exec(t, conn, `SELECT setval('weir.watched_at', 0)`) // the next check counts 2 s
		exec(t, conn, `SELECT weir._rescue()`)
		if got := state(); got != "alive" && got != "ended" { // either its lease is running, or it is over
			t.Errorf("after check %d, the worker is %s", checks, got)
		}
	}
	if checks < 5 { // the first check, and four of 2 s each
		t.Errorf("the worker was fenced by check %d", checks)
	}
}
