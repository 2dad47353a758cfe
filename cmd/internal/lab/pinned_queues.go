package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// queueKind is one kind of queue in PostgreSQL.
type queueKind struct {
	name, what string
	kind       Kind
	schema     string   // of its tables
	setup      []string // creates it
	cleanup    string   // drops it
	enqueue    string   // enqueues $1 jobs
	named      bool     // into the queue $2
	left       string   // counts the jobs that have waited for more than $1 seconds, in the queue $2 if it is named
	guard      bool     // the guard ends what pins
	work       func(ctx, until context.Context, t *trial, m *load.Tally) error
}

// pollEvery is the pause of a worker that found nothing.
const pollEvery = 10 * time.Millisecond

// forgetEvery is how often a worker that goes on from its last job looks from the beginning, for jobs that were committed late.
const forgetEvery = 4 * time.Second

// claimFunc claims, does and finishes jobs. It returns their number, and the time of the claim alone.
type claimFunc func(ctx, until context.Context, conn *pgx.Conn, t *trial) (n int, took time.Duration, err error)

// workers makes each worker's session repeat its own claim function.
func workers(newClaim func() claimFunc) func(ctx, until context.Context, t *trial, m *load.Tally) error {
	return func(ctx, until context.Context, t *trial, m *load.Tally) error {
		return eachOf(t.Workers, t.Workers, func(i int) error {
			claim := newClaim()
			for until.Err() == nil {
				n, took, err := claim(ctx, until, t.sessions.conns[i], t)
				if err != nil {
					return err
				}
				t.claimed(m, n, took)
				if n == 0 {
					sleep.For(until, pollEvery)
					continue
				}
				t.finished(m, n)
			}
			return nil
		})
	}
}

const (
	makeStateQueue = `CREATE TABLE weir_lab.queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state text NOT NULL DEFAULT 'ready',
		args jsonb NOT NULL DEFAULT '{}', run_at timestamptz NOT NULL DEFAULT now(), ended_at timestamptz)`
	makeStateIndex = `CREATE INDEX ON weir_lab.queue (id) WHERE state = 'ready'`
	makePlainQueue = `CREATE TABLE weir_lab.queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, priority smallint NOT NULL DEFAULT 100,
		run_at timestamptz NOT NULL DEFAULT now(), args jsonb NOT NULL DEFAULT '{}')`
	makePlainIndex = `CREATE INDEX ON weir_lab.queue (priority, run_at, id)`
	dropQueue      = `DROP TABLE weir_lab.queue`
	fillQueue      = `INSERT INTO weir_lab.queue (args) SELECT '{"n": 1}' FROM generate_series(1, $1::int)`
	countLeft      = `SELECT count(*) FROM weir_lab.queue WHERE run_at < now() - $1::float8 * interval '1 second'`

	// waited is how long a job has waited, by the server's clock alone.
	waited = `extract(epoch FROM clock_timestamp() - run_at)::float8`
)

// sqlQueues are queues of all known kinds, each in its simplest form.
var sqlQueues = []queueKind{
	{
		name: "SKIP LOCKED, UPDATE", kind: Collapse, what: "the first ready job is locked with SKIP LOCKED and marked as running, and marked as " +
			"done when it ends",
		setup: []string{makeStateQueue, makeStateIndex}, left: countLeft + ` AND state = 'ready'`, work: workers(newUpdateClaim),
	},
	{
		name: "SKIP LOCKED, DELETE", kind: Collapse, what: "the first job is locked with SKIP LOCKED, done, and deleted in the same transaction",
		work: workers(newDeleteClaim),
	},
	{
		name: "recursive CTE", kind: Collapse, what: "as in Que: a recursive query walks along the jobs, in the order of priority, time and id, until it gets the " +
			"advisory lock of one; the job is deleted when it ends",
		work: workers(func() claimFunc { return newAdvisoryClaim(advisoryPlain) }),
	},
	{
		name: "recursive CTE, last id", kind: Fix, what: "the same query with one condition more: the job's id is above that of the worker's last one. The order is the same, so " +
			"the scan still meets the dead rows in the index, but skips them without a look at the table. A job that commits late is never found",
		work: workers(func() claimFunc { return newAdvisoryClaim(advisoryLast) }),
	},
	{
		name: "recursive CTE, lock jitter", kind: Fix, what: fmt.Sprintf("the same, but every %s a worker forgets its last id, and finds what was committed late", forgetEvery),
		work: workers(func() claimFunc { return newAdvisoryClaim(advisoryJitter) }),
	},
	{
		name: "recursive CTE, by id", kind: Fix, what: "another queue: without priorities, so that the last id is where the scan of the index starts; with lock jitter",
		work: workers(func() claimFunc { return newAdvisoryClaim(advisoryByID) }),
	},
	{
		name: "100 at once", kind: Fix, what: "a claim takes up to a hundred jobs with SKIP LOCKED, does one after another, and deletes them, so that one walk through the " +
			"dead rows serves all of them; a job waits for those before it in its batch",
		work: workers(newBulkClaim),
	},
}

func init() {
	for i := range sqlQueues {
		q := &sqlQueues[i]
		q.schema, q.cleanup, q.enqueue = "weir_lab", dropQueue, fillQueue
		if q.setup == nil {
			q.setup, q.left = []string{makePlainQueue, makePlainIndex}, countLeft
		}
	}
}

// queueNamed returns one of sqlQueues.
func queueNamed(name string) queueKind {
	for _, q := range sqlQueues {
		if q.name == name {
			return q
		}
	}
	panic("lab: no queue " + name) // can't happen: the names are in this package
}

// seconds converts a number of seconds.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// one returns an id and how long its job has waited, or 0 if there is no row.
func one(ctx context.Context, conn *pgx.Conn, sql string, args ...any) (id int64, waited time.Duration, err error) {
	var s float64
	err = conn.QueryRow(ctx, sql, args...).Scan(&id, &s)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, 0, nil
	}
	return id, seconds(s), err
}

func newUpdateClaim() claimFunc {
	return func(ctx, until context.Context, conn *pgx.Conn, t *trial) (int, time.Duration, error) {
		begun := time.Now()
		id, waited, err := one(ctx, conn, `UPDATE weir_lab.queue SET state = 'running'
			WHERE id = (SELECT id FROM weir_lab.queue WHERE state = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, `+waited)
		took := time.Since(begun)
		if err != nil || id == 0 {
			return 0, took, err
		}
		t.handle(until, id, waited)
		_, err = conn.Exec(ctx, `UPDATE weir_lab.queue SET state = 'done', ended_at = now() WHERE id = $1`, id)
		return 1, took, err
	}
}

func newDeleteClaim() claimFunc {
	return func(ctx, until context.Context, conn *pgx.Conn, t *trial) (n int, took time.Duration, err error) {
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			begun := time.Now()
			id, waited, err := one(ctx, conn, `SELECT id, `+waited+` FROM weir_lab.queue ORDER BY priority, run_at, id LIMIT 1 FOR UPDATE SKIP LOCKED`)
			took = time.Since(begun)
			if err != nil || id == 0 {
				return err
			}
			n = 1
			t.handle(until, id, waited)
			_, err = tx.Exec(ctx, `DELETE FROM weir_lab.queue WHERE id = $1`, id)
			return err
		})
		return n, took, err
	}
}

// batched is a job of a batch.
type batched struct {
	ID     int64
	Waited float64 // seconds
}

// deleteBatch deletes the first jobs, at most n.
func deleteBatch(ctx context.Context, conn *pgx.Conn, n int) ([]batched, error) {
	rows, _ := conn.Query(ctx, `DELETE FROM weir_lab.queue
		WHERE id = ANY (ARRAY(SELECT id FROM weir_lab.queue ORDER BY priority, run_at, id LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING id, `+waited, n) // rows report the error
	return pgx.CollectRows(rows, pgx.RowToStructByPos[batched])
}

func newBulkClaim() claimFunc {
	return func(ctx, until context.Context, conn *pgx.Conn, t *trial) (n int, took time.Duration, err error) {
		err = pgx.BeginFunc(ctx, conn, func(pgx.Tx) error {
			begun := time.Now()
			jobs, err := deleteBatch(ctx, conn, 100)
			took = time.Since(begun)
			claimed := time.Now()
			for _, j := range jobs {
				behind := time.Since(claimed)
				t.waitedBehind(behind)
				t.handle(until, j.ID, seconds(j.Waited)+behind)
			}
			n = len(jobs)
			return err
		})
		return n, took, err
	}
}

// advisoryWalk is a recursive query that visits jobs in order, one per step, and stops at the first whose advisory lock it gets. %[1]s is a
// condition for each step, %[2]s the order. The idea is Que's.
const advisoryWalk = `
	WITH RECURSIVE walk AS (
		SELECT head.*, pg_try_advisory_lock(head.id) AS mine
		FROM (SELECT priority, run_at, id FROM weir_lab.queue WHERE run_at <= now() %[1]s ORDER BY %[2]s LIMIT 1) AS head
		UNION ALL
		SELECT next.*, pg_try_advisory_lock(next.id)
		FROM walk, LATERAL (
			SELECT priority, run_at, id FROM weir_lab.queue
			WHERE run_at <= now() %[1]s AND (%[2]s) > (%[3]s) ORDER BY %[2]s LIMIT 1
		) AS next
		WHERE NOT walk.mine
	)
	SELECT id, ` + waited + ` FROM walk WHERE mine LIMIT 1`

const (
	byPriority = "priority, run_at, id"
	ofWalk     = "walk.priority, walk.run_at, walk.id"
)

// advisory is a variant of the queue with advisory locks.
type advisory int

const (
	advisoryPlain  advisory = iota
	advisoryLast            // a worker skips what is not above its last id
	advisoryJitter          // and forgets it now and then
	advisoryByID            // and the order is that of the ids
)

// newAdvisoryClaim claims by advisory locks.
func newAdvisoryClaim(v advisory) claimFunc {
	var last int64 // 0: look from the beginning
	forgot := time.Now()
	after, plain := fmt.Sprintf(advisoryWalk, "AND id > $1", byPriority, ofWalk), fmt.Sprintf(advisoryWalk, "", byPriority, ofWalk)
	if v == advisoryByID {
		after, plain = fmt.Sprintf(advisoryWalk, "AND id > $1", "id", "walk.id"), fmt.Sprintf(advisoryWalk, "", "id", "walk.id")
	}
	return func(ctx, until context.Context, conn *pgx.Conn, t *trial) (int, time.Duration, error) {
		if (v == advisoryJitter || v == advisoryByID) && time.Since(forgot) > forgetEvery {
			last, forgot = 0, time.Now()
		}
		sql, args := plain, []any(nil)
		if last > 0 {
			sql, args = after, []any{last}
		}
		begun := time.Now()
		id, waited, err := one(ctx, conn, sql, args...)
		took := time.Since(begun)
		if err != nil || id == 0 {
			return 0, took, err
		}
		if v != advisoryPlain {
			last = id
		}
		// Another worker may have finished the job between the query's snapshot and the lock: only the one that deletes it has done it. It is tried
		// before the work, whose end it confirms, because the lock is kept until then.
		var there bool
		if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM weir_lab.queue WHERE id = $1)`, id).Scan(&there); err != nil {
			return 0, took, err
		}
		n := 0
		if there {
			t.handle(until, id, waited)
			tag, err := conn.Exec(ctx, `DELETE FROM weir_lab.queue WHERE id = $1`, id)
			if err != nil {
				return 0, took, err
			}
			n = int(tag.RowsAffected())
		}
		_, err = conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, id)
		return n, took, err
	}
}
