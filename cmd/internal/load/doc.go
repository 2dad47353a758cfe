// Package load is shared by all measurements: the Engine to measure (Weir or a similar queue), the Database to measure on, meters, and the
// Report. It serves `weir bench` (cmd/internal/bench), `weir lab` (cmd/internal/lab), and the measurements for Weir's developers (cmd/bench).
//
// A Database is an existing one, or a private server with the settings of a careful production system: fsync and synchronous_commit on. Rates
// include their spread, because a single number from a busy machine says little.
package load

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Queue is the queue of benches that need only one.
const Queue = "bench"

// Engine is a job queue in PostgreSQL.
type Engine interface {
	Name() string
	// Tables is a regular expression that matches the qualified names of its tables.
	Tables() string
	// Install creates the missing tables of the queue.
	Install(ctx context.Context, conn *pgx.Conn) error
	// Unfinished reports whether there are unfinished jobs. It is called before Install.
	Unfinished(ctx context.Context, pool *pgxpool.Pool) (bool, error)
	// Client returns a client that uses the pool.
	Client(pool *pgxpool.Pool) (Client, error)
}

// Client uses an engine as a program does.
type Client interface {
	// Fill enqueues n jobs with number 0, as fast as the engine can, in several transactions.
	Fill(ctx context.Context, queue string, n int) error
	// Enqueue enqueues one job with a number, in its own transaction if tx is nil.
	Enqueue(ctx context.Context, tx pgx.Tx, queue string, number int64) error
	// Work runs one worker until ctx ends, and returns once the results of its jobs are recorded.
	Work(ctx context.Context, w Work) error
}

// SQLClient is a Client that can also enqueue as a program in another language does.
type SQLClient interface {
	// EnqueueSQL enqueues one job with a number by plain SQL, without the engine's library.
	EnqueueSQL(ctx context.Context, queue string, number int64) error
}

// TenantClient is a Client whose jobs may belong to tenants, which take turns.
type TenantClient interface {
	// EnqueueFor enqueues one job of a tenant with a number, in its own transaction.
	EnqueueFor(ctx context.Context, queue, tenant string, number int64) error
	// FillFor enqueues n jobs of a tenant with number 0, in one transaction. It calls commits, if not nil, before it commits.
	FillFor(ctx context.Context, queue, tenant string, n int, commits func() error) error
	// LimitTenants limits how many jobs of each tenant run; 0: no limit.
	LimitTenants(ctx context.Context, queue string, running int) error
}

// Work configures a worker. Its functions may be nil, and are called from many goroutines.
type Work struct {
	Queues   map[string]int                          // with the concurrency of each
	Run      func(ctx context.Context, number int64) // handler; nil: no-op
	Fail     func(number int64) bool                 // whether the attempt fails; nil: never
	Claimed  func(jobs int, took time.Duration)      // called after a claim that returned jobs
	Recorded func(jobs int)                          // called after results are on disk
}
