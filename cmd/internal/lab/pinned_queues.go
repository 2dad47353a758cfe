package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	work       func(ctx, until context.Context, t *trial, m *load.Tally) error
}

// pollEvery is the pause of a worker that found nothing.
const pollEvery = 10 * time.Millisecond

// claimFunc claims and finishes jobs. It returns their number, and the time of the claim alone.
type claimFunc func(ctx context.Context, conn *pgx.Conn) (n int, took time.Duration, err error)

// workers makes each worker's session repeat its own claim function.
func workers(newClaim func() claimFunc) func(ctx, until context.Context, t *trial, m *load.Tally) error {
	return func(ctx, until context.Context, t *trial, m *load.Tally) error {
		return eachOf(t.Workers, t.Workers, func(i int) error {
			claim := newClaim()
			for until.Err() == nil {
				n, took, err := claim(ctx, t.sessions.conns[i])
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
		args jsonb NOT NULL DEFAULT '{}', created_at timestamptz NOT NULL DEFAULT now(), ended_at timestamptz)`
	makeStateIndex = `CREATE INDEX ON weir_lab.queue (id) WHERE state = 'ready'`
	makePlainQueue = `CREATE TABLE weir_lab.queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, priority smallint NOT NULL DEFAULT 100,
		run_at timestamptz NOT NULL DEFAULT now(), args jsonb NOT NULL DEFAULT '{}')`
	makePlainIndex = `CREATE INDEX ON weir_lab.queue (priority, run_at, id)`
	dropQueue      = `DROP TABLE weir_lab.queue`
	fillQueue      = `INSERT INTO weir_lab.queue (args) SELECT '{"n": 1}' FROM generate_series(1, $1::int)`
)

// sqlQueues are queues of all known kinds, each in its simplest form.
var sqlQueues = []queueKind{
	{
		name: "SKIP LOCKED, UPDATE", kind: Collapse, what: "the first ready job is locked with SKIP LOCKED and marked as running, and marked as " +
			"done when it ends",
		setup: []string{makeStateQueue, makeStateIndex}, work: workers(newUpdateClaim),
	},
	{
		name: "SKIP LOCKED, DELETE", kind: Collapse, what: "the first job is locked with SKIP LOCKED, and deleted in the same transaction",
		setup: []string{makePlainQueue, makePlainIndex}, work: workers(newDeleteClaim),
	},
	{
		name: "advisory locks, recursive CTE", kind: Collapse, what: "as in Que: a recursive query walks along the jobs until it gets the " +
			"advisory lock of one; the job is deleted when it ends",
		setup: []string{makePlainQueue, makePlainIndex}, work: workers(func() claimFunc { return newAdvisoryClaim(false, 0) }),
	},
	{
		name: "advisory locks, last id", kind: Fix, what: "the same, but the walk starts after the worker's last job, and at the " +
			"beginning only every five seconds",
		setup: []string{makePlainQueue, makePlainIndex}, work: workers(func() claimFunc { return newAdvisoryClaim(true, 0) }),
	},
	{
		name: "advisory locks, jitter", kind: Fix, what: "the walk starts at a random one of the first hundred jobs, so that workers do not " +
			"all try the same locks",
		setup: []string{makePlainQueue, makePlainIndex}, work: workers(func() claimFunc { return newAdvisoryClaim(false, 100) }),
	},
	{
		name: "SKIP LOCKED, 100 at once", kind: Fix, what: "a claim takes up to a hundred jobs and deletes them, so that one walk through the " +
			"dead rows serves all of them",
		setup: []string{makePlainQueue, makePlainIndex}, work: workers(newBulkClaim),
	},
}

func init() {
	for i := range sqlQueues {
		sqlQueues[i].schema, sqlQueues[i].cleanup, sqlQueues[i].enqueue = "weir_lab", dropQueue, fillQueue
	}
}

// one returns an id, or 0 if there is no row.
func one(ctx context.Context, conn *pgx.Conn, sql string, args ...any) (id int64, err error) {
	err = conn.QueryRow(ctx, sql, args...).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return id, err
}

func newUpdateClaim() claimFunc {
	return func(ctx context.Context, conn *pgx.Conn) (int, time.Duration, error) {
		begun := time.Now()
		id, err := one(ctx, conn, `UPDATE weir_lab.queue SET state = 'running'
			WHERE id = (SELECT id FROM weir_lab.queue WHERE state = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id`)
		took := time.Since(begun)
		if err != nil || id == 0 {
			return 0, took, err
		}
		_, err = conn.Exec(ctx, `UPDATE weir_lab.queue SET state = 'done', ended_at = now() WHERE id = $1`, id)
		return 1, took, err
	}
}

func newDeleteClaim() claimFunc {
	return func(ctx context.Context, conn *pgx.Conn) (n int, took time.Duration, err error) {
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			begun := time.Now()
			id, err := one(ctx, conn, `SELECT id FROM weir_lab.queue ORDER BY priority, run_at, id LIMIT 1 FOR UPDATE SKIP LOCKED`)
			took = time.Since(begun)
			if err != nil || id == 0 {
				return err
			}
			n = 1
			_, err = tx.Exec(ctx, `DELETE FROM weir_lab.queue WHERE id = $1`, id)
			return err
		})
		return n, took, err
	}
}

func newBulkClaim() claimFunc {
	return func(ctx context.Context, conn *pgx.Conn) (int, time.Duration, error) {
		begun := time.Now()
		tag, err := conn.Exec(ctx, `DELETE FROM weir_lab.queue
			WHERE id = ANY (ARRAY(SELECT id FROM weir_lab.queue ORDER BY priority, run_at, id LIMIT 100 FOR UPDATE SKIP LOCKED))`)
		return int(tag.RowsAffected()), time.Since(begun), err
	}
}

// advisoryWalk is a recursive query that visits jobs in order, one per step, and stops at the first whose advisory lock it gets. %s is a
// condition, %d the number of jobs that the first step skips. The idea is Que's.
const advisoryWalk = `
	WITH RECURSIVE walk AS (
		SELECT head.*, pg_try_advisory_lock(head.id) AS mine
		FROM (SELECT priority, run_at, id FROM weir_lab.queue WHERE run_at <= now() %[1]s ORDER BY %[2]s LIMIT 1 OFFSET %[3]d) AS head
		UNION ALL
		SELECT next.*, pg_try_advisory_lock(next.id)
		FROM walk, LATERAL (
			SELECT priority, run_at, id FROM weir_lab.queue
			WHERE run_at <= now() AND (%[2]s) > (%[4]s) ORDER BY %[2]s LIMIT 1
		) AS next
		WHERE NOT walk.mine
	)
	SELECT id FROM walk WHERE mine LIMIT 1`

const (
	byPriority = "priority, run_at, id"
	ofWalk     = "walk.priority, walk.run_at, walk.id"
)

// newAdvisoryClaim claims by advisory locks. With a hint the walk starts after the last id; with jitter, at a random one of the first jitter
// jobs.
func newAdvisoryClaim(hint bool, jitter int) claimFunc {
	const fullLookEvery = 5 * time.Second
	var last int64
	lookedAt := time.Now()
	return func(ctx context.Context, conn *pgx.Conn) (int, time.Duration, error) {
		var sql string
		var args []any
		switch {
		case hint:
			if time.Since(lookedAt) > fullLookEvery {
				// A transaction that committed late may have left jobs behind.
				last, lookedAt = 0, time.Now()
			}
			sql, args = fmt.Sprintf(advisoryWalk, "AND id > $1", "id", 0, "walk.id"), []any{last}
		case jitter > 0:
			sql = fmt.Sprintf(advisoryWalk, "", byPriority, rand.IntN(jitter), ofWalk)
		default:
			sql = fmt.Sprintf(advisoryWalk, "", byPriority, 0, ofWalk)
		}
		begun := time.Now()
		id, err := one(ctx, conn, sql, args...)
		if err == nil && id == 0 && jitter > 0 { // there are fewer jobs than were skipped
			id, err = one(ctx, conn, fmt.Sprintf(advisoryWalk, "", byPriority, 0, ofWalk))
		}
		took := time.Since(begun)
		if err != nil || id == 0 {
			return 0, took, err
		}
		last = max(last, id)
		// Another worker may have finished the job between the query's snapshot and the lock: only the one that deletes it has done it.
		tag, err := conn.Exec(ctx, `DELETE FROM weir_lab.queue WHERE id = $1`, id)
		if err == nil {
			_, err = conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, id)
		}
		return int(tag.RowsAffected()), took, err
	}
}
