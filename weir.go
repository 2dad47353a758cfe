// Package weir runs background jobs and publish/subscribe on PostgreSQL, and keeps its speed when PostgreSQL is under stress.
//
// Jobs are rows of an insert-only log: enqueued in your transaction, claimed through a snapshot cursor,
// recorded as finished in bulk, and given back by TRUNCATE. Nothing on a hot path is updated or deleted,
// so a long transaction elsewhere in the database slows nothing down.
//
// # Enqueue
//
// A kind of job is a type with its arguments:
//
//	type HashFile struct{ Path string }
//
//	func (HashFile) Kind() string { return "hash_file" }
//
// A [Client] enqueues it, in a transaction of yours or by itself:
//
//	client := weir.NewClient(pool)
//	job, err := client.Enqueue(ctx, HashFile{Path: "a.txt"}, nil) // job.ID
//	job, err := client.EnqueueTx(ctx, tx, HashFile{Path: "b.txt"}, &weir.Options{Queue: "files"})
//
// A job enqueued in a transaction runs after its commit, and never after its rollback. A database/sql
// transaction is passed as [SQLTx].
//
// # Work
//
// [Handlers] maps kinds to functions, and a [Worker] runs them:
//
//	handlers := weir.NewHandlers()
//	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[HashFile]) error {
//		return hash(ctx, job.Args.Path)
//	})
//	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"files": 8}})
//	err = worker.Run(ctx) // until ctx ends; then it stops gracefully
//
// Delivery is at least once: a job may be run again when its worker or the server dies before the result
// is on disk, so handlers should be safe to repeat. [Job.CompleteTx] makes a job's effects and its
// completion commit together, which is exactly-once for effects in the same database.
//
// An error of a handler is retried with exponential backoff until the attempts are used up; [Fail],
// [Snooze] and [Cancel] return errors that mean something else.
//
// Middleware wraps every enqueue of a client ([Client.WithMiddleware]) and every attempt of a worker (WorkerConfig.Middleware): to add to a job's
// meta, or to say for all kinds which errors are not worth another attempt. Hooks (WorkerConfig.Hooks) are told how attempts have ended in the
// database. The module weirotel has both for OpenTelemetry.
//
// # Publish and subscribe
//
// [Client.PublishTx] publishes a message with a transaction of yours: subscribers get it after the commit, and can read what the
// transaction wrote. [Subscribe] subscribes, at a hub (weir serve) or straight from the database:
//
//	sub, err := weir.Subscribe(ctx, weir.SubscribeConfig{Hubs: []string{"http://127.0.0.1:8080"}, Channels: []string{"orders.*"}})
//	defer sub.Close()
//	for event, err := range sub.All(ctx) {
//		switch {
//		case err != nil:
//			return err
//		case event.Gap != nil:
//			// Messages may be missing: read the state anew.
//		default:
//			// event.Message
//		}
//	}
//
// A lost connection is made anew, at any hub, and nothing is missing and nothing comes twice. A position kept from
// [Subscription.Position] goes on after a restart of the program (SubscribeConfig.After).
//
// A worker told of hubs (WorkerConfig.Hubs) waits there for work instead of looking for it.
//
// # Errors
//
// Errors say what was wrong, with the value, and what to do. [ErrNotFound], [ErrNotInstalled] and the others named in this package are asked for with
// errors.Is; what the server has refused is a *pgconn.PgError, for errors.As, with Weir's own SQLSTATEs in docs/sql.md.
//
// # Test
//
// Package weirtest asserts on what a transaction has enqueued, runs handlers without a database, drains queues, and gives each test a database
// of its own.
//
// # Connections
//
// A worker opens at most 3 connections of its own, whatever its concurrency, made as those of the client's pool are; it takes none from
// the pool, so handlers may use up all of that. It works through PgBouncer in transaction mode, and survives restarts of the server.
//
// The schema is installed by `weir migrate up`, or from Go by package schema.
package weir

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/store"
)

// Args are the arguments of one kind of job. They are stored as JSON, and must encode to an object, of up to 1 MiB.
type Args interface {
	// Kind names the kind; it must not depend on the value. At most 128 characters.
	Kind() string
}

// Options say how a job is to be run. The zero value, or nil, means the defaults.
type Options struct {
	Queue       string    // default "default"; 1 to 128 characters; its first use makes it
	Priority    int       // 1 (first) to 4; default 2
	RunAt       time.Time // not before, by the server's clock; default at once
	MaxAttempts int       // how often the job is tried before it has failed, 1 to 1000; default 25
	Meta        any       // anything that encodes to a JSON object, of up to 64 KiB; handlers see it as Job.Meta
}

// ArgsWithOptions are args whose kind has options of its own. What Enqueue is given goes before, field by field.
type ArgsWithOptions interface {
	Args
	EnqueueOptions() Options
}

// Enqueued is what became of a job that was enqueued.
type Enqueued struct {
	ID int64 // of the job, unique in its database
}

// NewJob is one job for EnqueueMany.
type NewJob struct {
	Args    Args
	Options *Options

	complete bool // Options include what the kind says
}

// or fills in what is not set.
func (o Options) or(defaults Options) Options {
	o.Queue = cmp.Or(o.Queue, defaults.Queue)
	o.Priority = cmp.Or(o.Priority, defaults.Priority)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, defaults.MaxAttempts)
	if o.RunAt.IsZero() {
		o.RunAt = defaults.RunAt
	}
	if o.Meta == nil {
		o.Meta = defaults.Meta
	}
	return o
}

// Tx is a transaction to enqueue or to complete a job in. A pgx.Tx is one; SQLTx makes one of a *sql.Tx.
type Tx interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// SQLTx adapts a transaction of database/sql, whatever its driver for PostgreSQL.
func SQLTx(tx *sql.Tx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return t.tx.QueryRowContext(ctx, query, args...)
}

// Client enqueues jobs, looks at them and operates on them. It is safe for concurrent use.
type Client struct {
	store   *store.Store
	wrapped EnqueueFunc // nil: there is no middleware
}

// NewClient returns a client on a pool, which stays yours to close.
func NewClient(pool *pgxpool.Pool) *Client {
	return &Client{store: store.New(pool, 0)}
}

// Enqueue enqueues a job in a transaction of its own. nil options are the defaults. What is out of bounds is refused with an error that has the value
// (SQLSTATE 22023, where the server refuses it); ErrNotInstalled: the database has no Weir. After an error of the connection the job may have
// been enqueued all the same.
func (c *Client) Enqueue(ctx context.Context, args Args, o *Options) (job Enqueued, err error) {
	if c.wrapped != nil {
		return c.throughOne(ctx, nil, NewJob{Args: args, Options: o})
	}
	err = c.store.Direct(ctx, func(q store.Querier) error {
		job, err = enqueueOne(ctx, q, NewJob{Args: args, Options: o})
		return err
	})
	return job, err
}

// EnqueueTx enqueues a job in a transaction of yours: it runs after the commit, and never after a rollback. Errors: as Enqueue. One that the
// server refuses ends the transaction: roll it back.
func (c *Client) EnqueueTx(ctx context.Context, tx Tx, args Args, o *Options) (Enqueued, error) {
	if tx == nil {
		return Enqueued{}, errNoTx
	}
	if c.wrapped != nil {
		return c.throughOne(ctx, tx, NewJob{Args: args, Options: o})
	}
	return enqueueOne(ctx, tx, NewJob{Args: args, Options: o})
}

// EnqueueMany enqueues jobs in one transaction of its own, all or none, and returns what became of each, in order.
// Up to 10,000 are sent at once.
func (c *Client) EnqueueMany(ctx context.Context, jobs []NewJob) (all []Enqueued, err error) {
	if c.wrapped != nil {
		return c.through(ctx, nil, jobs...)
	}
	err = c.store.InTx(ctx, func(q store.Querier) error {
		all, err = enqueueMany(ctx, q, jobs)
		return err
	})
	return all, err
}

// EnqueueManyTx is EnqueueMany in a transaction of yours.
func (c *Client) EnqueueManyTx(ctx context.Context, tx Tx, jobs []NewJob) ([]Enqueued, error) {
	if tx == nil {
		return nil, errNoTx
	}
	if c.wrapped != nil {
		return c.through(ctx, tx, jobs...)
	}
	return enqueueMany(ctx, tx, jobs)
}

func enqueueOne(ctx context.Context, tx Tx, j NewJob) (Enqueued, error) {
	job, err := j.encode()
	if err != nil {
		return Enqueued{}, fmt.Errorf("weir: enqueue: %w", err)
	}
	id, err := store.Enqueue(ctx, tx, job)
	if err != nil {
		return Enqueued{}, fmt.Errorf("weir: enqueue: %w", explain(err, "weir_enqueue"))
	}
	return Enqueued{id}, nil
}

func enqueueMany(ctx context.Context, tx Tx, jobs []NewJob) ([]Enqueued, error) {
	send := store.EnqueueMany
	if _, ok := tx.(sqlTx); ok {
		send = store.EnqueueManyJSON
	}
	const most = 10_000
	all := make([]Enqueued, 0, len(jobs))
	for start := 0; start < len(jobs); start += most {
		some := jobs[start:min(start+most, len(jobs))]
		encoded := make([]store.Job, len(some))
		for i, j := range some {
			var err error
			if encoded[i], err = j.encode(); err != nil {
				return nil, fmt.Errorf("weir: enqueue job %d of %d: %w", start+i+1, len(jobs), err)
			}
		}
		ids, err := send(ctx, tx, encoded)
		if err != nil {
			return nil, fmt.Errorf("weir: enqueue jobs %d to %d of %d: %w", start+1, start+len(some), len(jobs), explain(err, "weir_enqueue"))
		}
		for _, id := range ids {
			all = append(all, Enqueued{id})
		}
	}
	return all, nil
}

// options are those given, and those of the kind.
func (j NewJob) options() (o Options) {
	if j.Options != nil {
		o = *j.Options
	}
	if kind, ok := j.Args.(ArgsWithOptions); ok && !j.complete {
		o = o.or(kind.EnqueueOptions())
	}
	return o
}

// encode checks what the server cannot say as well.
func (j NewJob) encode() (store.Job, error) {
	if j.Args == nil {
		return store.Job{}, errNoArgs
	}
	o := j.options()
	job := store.Job{Queue: o.Queue, Kind: j.Args.Kind(), Priority: o.Priority, RunAt: o.RunAt, MaxAttempts: o.MaxAttempts}
	if strings.IndexByte(job.Kind, 0) >= 0 || strings.IndexByte(job.Queue, 0) >= 0 {
		return job, fmt.Errorf("the kind %q or the queue %q contains a NUL character, which PostgreSQL cannot store", job.Kind, job.Queue)
	}
	var err error
	if job.Args, err = json.Marshal(j.Args); err != nil {
		return job, fmt.Errorf("encode the args of kind %s: %w", job.Kind, err)
	}
	if o.Meta != nil {
		if job.Meta, err = json.Marshal(o.Meta); err != nil {
			return job, fmt.Errorf("encode the meta of kind %s: %w", job.Kind, err)
		}
	}
	return job, nil
}
