// Package load is what measurements share: the Engine that is measured, which is Weir or a peer of it, the Database on which, meters of what is
// done, and a Report of what was found; for `weir bench` (cmd/internal/bench), `weir lab` (cmd/internal/lab), and what is measured for Weir's own
// makers alone (cmd/bench).
//
// A Database is a given one or a private server with the settings of a careful production system: fsync and
// synchronous_commit on. Rates come with their spread, for a single number from a busy machine says little.
package load

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Queue is the queue that benches enqueue into, unless they need several.
const Queue = "bench"

// Engine is a job queue in PostgreSQL.
type Engine interface {
	Name() string
	// Tables is a regular expression of the names of its tables, with their schema.
	Tables() string
	// Install creates what is missing of the queue's tables.
	Install(ctx context.Context, conn *pgx.Conn) error
	// Unfinished tells whether there are jobs to be worked. It is called before Install.
	Unfinished(ctx context.Context, pool *pgxpool.Pool) (bool, error)
	// Client returns a client on the pool.
	Client(pool *pgxpool.Pool) (Client, error)
}

// Client is how a program uses an engine.
type Client interface {
	// Fill enqueues n jobs numbered 0, as fast as the engine can, and not in one transaction.
	Fill(ctx context.Context, queue string, n int) error
	// Enqueue enqueues one job with a number, in a transaction of its own if tx is nil.
	Enqueue(ctx context.Context, tx pgx.Tx, queue string, number int64) error
	// Work runs one worker until ctx ends, and returns when what it had begun is recorded.
	Work(ctx context.Context, w Work) error
}

// SQLClient is a Client that also enqueues as a program in another language does.
type SQLClient interface {
	// EnqueueSQL enqueues one job with a number by plain SQL, without the engine's library.
	EnqueueSQL(ctx context.Context, queue string, number int64) error
}

// Work says what a worker does. The functions may be nil, and are called from many goroutines.
type Work struct {
	Queues   map[string]int                          // and the concurrency of each
	Run      func(ctx context.Context, number int64) // the handler; nil: it does nothing
	Fail     func(number int64) bool                 // whether the attempt fails; nil: none does
	Claimed  func(jobs int, took time.Duration)      // after a claim that found jobs
	Recorded func(jobs int)                          // after results are on disk
}
