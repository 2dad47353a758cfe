package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// SteadyConfig configures Steady.
type SteadyConfig struct {
	Duration time.Duration // of all rounds together
	Rounds   int           // of each kind; default: rounds of about 5 seconds
	Clients  int           // default 16
}

// Plain INSERTs go into a table that has nothing that a queue needs except the row.
const (
	sqlPlainTable = `CREATE SCHEMA IF NOT EXISTS weir_bench;
		CREATE TABLE IF NOT EXISTS weir_bench.plain (
			id bigserial PRIMARY KEY, queue text NOT NULL, kind text NOT NULL, args jsonb NOT NULL, priority integer NOT NULL,
			attempt integer NOT NULL, max_attempts integer NOT NULL, enqueued_at timestamptz NOT NULL)`
	sqlPlainInsert = `INSERT INTO weir_bench.plain (queue, kind, args, priority, attempt, max_attempts, enqueued_at)
		VALUES ($1, $2, $3::jsonb, $4, $5, $6, now()) RETURNING id`
	sqlPlainDrop = `DROP SCHEMA IF EXISTS weir_bench CASCADE`
)

// Steady makes clients enqueue one job per transaction while a worker processes them. In alternate rounds the same clients insert the same row
// into a plain table, the minimum cost of storing a job. Both kinds of round use one pool, so both are BEGIN, one statement, COMMIT.
func Steady(ctx context.Context, d *load.Database, e load.Engine, c SteadyConfig) (r *load.Report, err error) {
	c.Clients = cmp.Or(c.Clients, 16)
	c.Rounds = cmp.Or(c.Rounds, max(int(c.Duration/(10*time.Second)), 2))
	slice := c.Duration / time.Duration(2*c.Rounds)
	if slice < 50*time.Millisecond {
		return nil, fmt.Errorf("bench: %s is too short for %d rounds of each kind: give steady more time", c.Duration, c.Rounds)
	}
	if r, err = d.Begin(ctx, "steady", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d clients, one transaction per job, while one worker runs; %d rounds of %s, alternating with plain INSERTs; latencies are those of the clients' transactions",
		c.Clients, c.Rounds, slice)

	pool, client, err := d.Client(ctx, e, c.Clients)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	workers, workerClient, err := d.Client(ctx, e, 4)
	if err != nil {
		return nil, err
	}
	defer workers.Close()
	if _, err := pool.Exec(ctx, sqlPlainTable, pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, fmt.Errorf("bench: create the plain table: %w", err)
	}
	defer func() {
		_, dropErr := pool.Exec(context.WithoutCancel(ctx), sqlPlainDrop)
		err = errors.Join(err, dropErr)
	}()

	m := &load.Meter{}
	stop, failed := load.Start(ctx, workerClient, load.Work{Queues: map[string]int{load.Queue: 200}, Recorded: m.Add})
	defer func() { err = errors.Join(err, stop()) }()

	enqueue := func(tx pgx.Tx) error { return client.Enqueue(ctx, tx, load.Queue, 0) }
	insert := func(tx pgx.Tx) error {
		var id int64
		return tx.QueryRow(ctx, sqlPlainInsert, load.Queue, "bench", "{}", 2, 1, 25).Scan(&id)
	}
	// The first transactions prepare statements and plans.
	for _, f := range []func(pgx.Tx) error{enqueue, insert} {
		warm := &loop{pool: pool, clients: c.Clients, f: f}
		if err := warm.run(ctx, min(slice, 500*time.Millisecond)); err != nil {
			return nil, err
		}
		if f := warm.Done; m.Done.Load() == 0 {
			if err := m.Reach(ctx, f, failed); err != nil {
				return nil, err
			}
		}
	}

	queue, plain := &loop{pool: pool, clients: c.Clients, f: enqueue}, &loop{pool: pool, clients: c.Clients, f: insert}
	var ratios []float64
	var written int64
	worked := m.Done.Load()
	for round := range c.Rounds {
		before, err := d.WAL(ctx)
		if err != nil {
			return nil, err
		}
		if err := queue.run(ctx, slice); err != nil {
			return nil, fmt.Errorf("bench: enqueue: %w", err)
		}
		if err := m.Reach(ctx, worked+queue.Done, failed); err != nil {
			return nil, err
		}
		after, err := d.WAL(ctx)
		if err != nil {
			return nil, err
		}
		written += after - before
		if err := plain.run(ctx, slice); err != nil {
			return nil, fmt.Errorf("bench: insert: %w", err)
		}
		ratios = append(ratios, queue.Rates[round]/plain.Rates[round])
		d.Say("steady, round %d of %d: %.0f enqueues/s, %.0f plain INSERTs/s", round+1, c.Rounds, queue.Rates[round], plain.Rates[round])
	}
	r.Figures, r.Plain, r.Ratio = queue.figures(), plain.figures(), load.SpreadOf(ratios)
	perJob := float64(written) / float64(queue.Done)
	r.WALBytesPerJob = &perJob
	if err := stop(); err != nil {
		return nil, err
	}
	workers.Close()
	if r.DeadTuples, err = d.DeadTuples(ctx, e); err != nil {
		return nil, err
	}
	r.AtLeast("ratio of enqueues to plain INSERTs", r.Ratio.Median, 0.75)
	r.AtMost("WAL bytes per job", perJob, 400)
	r.AtMost("dead tuples", float64(*r.DeadTuples), 0)
	return r, nil
}

// loop runs transactions from a number of clients and adds up the results.
type loop struct {
	load.Rounds
	pool    *pgxpool.Pool
	clients int
	f       func(tx pgx.Tx) error
}

// run runs transactions for a time.
func (l *loop) run(ctx context.Context, d time.Duration) error {
	return l.Run(l.clients, d, func(int) error { return pgx.BeginFunc(ctx, l.pool, l.f) })
}

func (l *loop) figures() *load.Figures {
	return &load.Figures{
		Jobs: l.Done, Seconds: l.Took.Seconds(), JobsPerSecond: float64(l.Done) / l.Took.Seconds(), Rate: load.SpreadOf(l.Rates),
		P50: l.H.At(50), P99: l.H.At(99),
	}
}
