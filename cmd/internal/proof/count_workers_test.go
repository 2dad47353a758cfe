package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestQueuesCountTheWorkersThatAreAlive: weir.queues counts workers with a session or a lease that is not over, like weir.workers, and no dead one,
// also if no worker is left to fence it.
func TestQueuesCountTheWorkersThatAreAlive(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	workers := func(queue string) int {
		return value[int](t, conn, `SELECT workers FROM weir.queues() WHERE name = $1`, queue)
	}
	exec(t, conn, `SELECT weir._start('dead', ARRAY['alone', 'shared'], '1 second')`)
	exec(t, conn, `SELECT weir._start('alive', ARRAY['shared'], '5 minutes')`)
	idle := value[int32](t, conn, `SELECT weir._start('idle', ARRAY['idle'], '1 second')`)
	session := connect(t, url)
	attend(t, session, idle)
	exec(t, session, `SET idle_session_timeout = 0`)
	until(t, "the dead worker is silent", func() bool {
		return value[string](t, conn, `SELECT state FROM weir.workers() WHERE name = 'dead'`) == "silent"
	})
	exec(t, conn, `UPDATE weir.last_word SET at = at - interval '1 hour' WHERE worker = $1`, idle)
	for queue, want := range map[string]int{"alone": 0, "shared": 1, "idle": 1} {
		if n := workers(queue); n != want {
			t.Errorf("%d workers work the queue %s, want %d", n, queue, want)
		}
	}
	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the worker whose session has ended is not counted", func() bool { return workers("idle") == 0 })
}

// TestWorkersAreAliveInALongTransaction: a transaction that is older than a worker's lease sees the worker's later heartbeats.
func TestWorkersAreAliveInALongTransaction(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '2 seconds')`)
	long := connect(t, url)
	exec(t, long, `BEGIN`)
	until(t, "the transaction is older than the lease", func() bool {
		return value[bool](t, long, `SELECT clock_timestamp() > now() + interval '3 seconds'`)
	})
	until(t, "the worker is alive", func() bool {
		exec(t, conn, `SELECT weir.heartbeat($1)`, worker)
		return value[string](t, long, `SELECT w.state || ' ' || q.workers FROM weir.workers() w, weir.queues() q`) == "alive 1"
	})
	exec(t, long, `COMMIT`)
}
