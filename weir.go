// Package weir runs background jobs and publish/subscribe on PostgreSQL, and stays fast when PostgreSQL is under stress.
//
// Jobs are rows of an insert-only log. They are enqueued in your transaction, claimed through a snapshot cursor, and recorded as finished
// in bulk; TRUNCATE reclaims their space. Nothing on a hot path is updated or deleted, so a long transaction elsewhere in the database does
// not slow Weir down.
//
// # Enqueue
//
// A kind of job is a type that holds the job's arguments:
//
//	type HashFile struct{ Path string }
//
//	func (HashFile) Kind() string { return "hash_file" }
//
// A [Client] enqueues it, in your transaction or in one of its own:
//
//	client := weir.NewClient(pool)
//	job, err := client.Enqueue(ctx, HashFile{Path: "a.txt"}, nil) // job.ID
//	job, err := client.EnqueueTx(ctx, tx, HashFile{Path: "b.txt"}, &weir.Options{Queue: "files"})
//
// A job enqueued in a transaction runs only after the transaction has committed; if the transaction rolls back, the job never runs. Wrap a
// database/sql transaction with [SQLTx].
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
// Delivery is at least once: if the worker or the server dies before the result is on disk, the job runs again, so handlers should be safe
// to repeat. [Job.CompleteTx] commits a job's effects and its completion together, which makes effects in the same database exactly-once.
//
// When a handler returns an error, the job is retried with exponential backoff until its attempts are used up. [Fail], [Snooze], [Cancel]
// and [RetryAfter] return errors that end the attempt in another way.
//
// Middleware wraps every enqueue of a client ([Client.WithMiddleware]) and every attempt of a worker (WorkerConfig.Middleware). Use it to
// add to a job's meta, or to decide for all kinds which errors are not worth another attempt. Hooks (WorkerConfig.Hooks) report how
// attempts ended in the database. The module weirotel provides both for OpenTelemetry.
//
// A job that runs for long reports how far it is with [JobMeta.SetProgress], and sets a checkpoint with [JobMeta.SetCheckpoint], from which
// the next attempt goes on.
//
// Jobs may have a key (Options.Key), such as a tenant: the keys of a queue take turns, and may have limits of their own, or run strictly in order.
// See [Limit] and [Client.SetWeight].
//
// Jobs may be members of a [Flow], which enqueues callbacks when all of them have ended, and when all have completed.
//
// [Client.WithCodec] encrypts what jobs store, with keys that the database does not have.
//
// # Publish and subscribe
//
// [Client.PublishTx] publishes a message in your transaction: subscribers receive it after the commit, and can then read what the
// transaction wrote. [Subscribe] subscribes, either at a hub (weir serve) or directly at the database:
//
//	sub, err := weir.Subscribe(ctx, weir.SubscribeConfig{Hubs: []string{"http://127.0.0.1:8080"}, Channels: []string{"orders.*"}})
//	defer sub.Close()
//	for event, err := range sub.All(ctx) {
//		switch {
//		case err != nil:
//			return err
//		case event.Gap != nil:
//			// Messages may be missing: reload the state.
//		default:
//			// event.Message
//		}
//	}
//
// After a lost connection, the subscription reconnects to any of its hubs; no message is missed and none is delivered twice. To resume
// after a restart of your program, save [Subscription.Position] and pass it as SubscribeConfig.After.
//
// A worker that is given hubs (WorkerConfig.Hubs) waits there for work instead of polling the database.
//
// # Errors
//
// Errors say what was wrong, with the value, and what to do. Check for [ErrNotFound], [ErrNotInstalled] and the other error values of this
// package with errors.Is. When the server refuses a call, errors.As finds a *pgconn.PgError; docs/sql.md lists Weir's own SQLSTATEs.
//
// # Test
//
// Package weirtest checks what a transaction has enqueued, runs handlers without a database, drains queues, and gives each test its own
// database.
//
// # Connections
//
// A worker opens at most 3 connections of its own, whatever its concurrency, with the configuration of the client's pool. It takes none
// from the pool, so handlers may use all of the pool's connections. A worker works through PgBouncer in transaction mode, and survives
// restarts of the server.
//
// Install the schema with `weir migrate up`, or from Go with package schema.
package weir

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/store"
)

// Args are the arguments of one kind of job. They are stored as JSON, and must encode to an object of up to 1 MiB.
type Args interface {
	// Kind returns the name of the kind, of up to 128 characters. It must not depend on the value.
	Kind() string
}

// Options specify how to run a job. The zero value, or nil, means the defaults.
type Options struct {
	Queue       string    // 1 to 128 characters, created by its first use; default "default"
	Priority    int       // 1 (first) to 4; default 2
	RunAt       time.Time // the earliest start, by the server's clock, up to the year 9999; default, and in the past: at once
	MaxAttempts int       // number of attempts before the job fails for good, 1 to 1000; default 25
	Meta        any       // any value that encodes to a JSON object of up to 64 KiB, without keys that begin with "weir."; handlers see it as Job.Meta
	Flow        int64     // the flow that it is added to, which has not ended: see [Flow]; ErrNotFound, if there is none; default none. A member adds others with the Flow of its Job
	Once        string    // with Flow: what is to be done once in the flow, in this queue, such as a path, 1 to 1000 characters: see [Enqueued.Duplicate]; default: each job is added
	Key         string    // whose job it is, such as a tenant, 1 to 200 characters: keys of a queue take turns, and may have limits; default none
	Unique      *Unique   // not nil: enqueue the job only if it is no duplicate of another
}

// Unique says which jobs a job is a duplicate of. The zero value means those of its queue with its kind and args that have not finished.
//
// A job that is known to be a duplicate is not enqueued: the result is the other's ID, and Duplicate. Transactions that do not see each other
// do not wait for each other either, and may enqueue duplicates; of these one runs, and the others end as cancelled when they would be
// started, with the reason as their error. A job is never dropped for one that is rolled back.
type Unique struct {
	Key     string        // 1 to 1000 characters: jobs of the queue with this key are duplicates, whatever their kind and args
	Fields  []string      // without a Key: names of the args' JSON fields that count, of which the args must have one; nil: all; empty: none
	Until   Until         // up to when an earlier job counts; default UntilFinished
	Within  time.Duration // instead of Until: an earlier job counts if it was enqueued so recently, up to a year, and not cancelled
	Replace bool          // enqueue the job in any case, and drop those that have not started: UntilStarted, but the last one runs
	Wait    bool          // first wait for transactions that have asked for the same with Wait, so that there is always one answer
}

// Until says up to when an earlier job makes later ones duplicates.
type Until string

const (
	UntilFinished Until = "finished" // until it has completed, failed for good, or been cancelled
	UntilStarted  Until = "started"  // while it waits, also for another attempt
)

// ArgsWithOptions are args whose kind has its own default options. Each field that is set in the options passed to Enqueue takes
// precedence.
type ArgsWithOptions interface {
	Args
	EnqueueOptions() Options
}

// Enqueued is the result of enqueueing a job.
type Enqueued struct {
	ID        int64 // of the job, unique in its database
	Duplicate bool  // it is the ID of an earlier job, because the new one would have been a duplicate, or is to be done Once; or, with Unique.Replace, there was one
}

// NewJob is one job for [Client.EnqueueMany].
type NewJob struct {
	Args    Args
	Options *Options

	complete bool // Options already include those of the kind
	plain    bool // its args are encrypted later, if at all
}

// or returns o with unset fields filled in from defaults.
func (o Options) or(defaults Options) Options {
	o.Queue = cmp.Or(o.Queue, defaults.Queue)
	o.Priority = cmp.Or(o.Priority, defaults.Priority)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, defaults.MaxAttempts)
	o.Key = cmp.Or(o.Key, defaults.Key)
	o.Flow = cmp.Or(o.Flow, defaults.Flow)
	o.Once = cmp.Or(o.Once, defaults.Once)
	if o.RunAt.IsZero() {
		o.RunAt = defaults.RunAt
	}
	if o.Meta == nil {
		o.Meta = defaults.Meta
	}
	if o.Unique == nil {
		o.Unique = defaults.Unique
	}
	return o
}

// Tx is the transaction in which a job is enqueued or completed. A pgx.Tx is a Tx; SQLTx makes one from a *sql.Tx.
type Tx interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// SQLTx adapts a database/sql transaction of any PostgreSQL driver.
func SQLTx(tx *sql.Tx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return t.tx.QueryRowContext(ctx, query, args...)
}

// Client enqueues, inspects and manages jobs. It is safe for concurrent use.
type Client struct {
	store      *store.Store
	codecs     codecs
	wrapped    EnqueueFunc // nil: no middleware
	middleware []func(EnqueueFunc) EnqueueFunc
}

// NewClient returns a client that uses pool. Closing the pool remains the caller's responsibility.
func NewClient(pool *pgxpool.Pool) *Client {
	return &Client{store: store.New(pool, 0)}
}

// Pool returns the client's pool.
func (c *Client) Pool() *pgxpool.Pool { return c.store.Pool() }

// Enqueue enqueues a job in a transaction of its own. nil options mean the defaults. A value that is out of bounds is refused with an error
// that names it (SQLSTATE 22023 if the server refuses it). The error is ErrNotInstalled if Weir is not installed in the database. After a
// connection error, the job may still have been enqueued.
func (c *Client) Enqueue(ctx context.Context, args Args, o *Options) (job Enqueued, err error) {
	if c.wrapped != nil {
		return c.throughOne(ctx, nil, NewJob{Args: args, Options: o})
	}
	err = c.store.Direct(ctx, func(q store.Querier) error {
		job, err = c.enqueueOne(ctx, q, NewJob{Args: args, Options: o})
		return err
	})
	return job, err
}

// EnqueueTx enqueues a job in your transaction: the job runs after the commit, and never after a rollback. It returns the same errors as
// Enqueue. An error from the server aborts the transaction: roll it back.
func (c *Client) EnqueueTx(ctx context.Context, tx Tx, args Args, o *Options) (Enqueued, error) {
	if tx == nil {
		return Enqueued{}, errNoTx
	}
	if c.wrapped != nil {
		return c.throughOne(ctx, tx, NewJob{Args: args, Options: o})
	}
	return c.enqueueOne(ctx, tx, NewJob{Args: args, Options: o})
}

// EnqueueMany enqueues all jobs or none, in one transaction of its own, and returns the results in order. It sends up to 10,000 jobs at a
// time.
func (c *Client) EnqueueMany(ctx context.Context, jobs []NewJob) (all []Enqueued, err error) {
	if c.wrapped != nil {
		return c.through(ctx, nil, jobs...)
	}
	err = c.store.InTx(ctx, func(q store.Querier) error {
		all, err = c.enqueueMany(ctx, q, jobs)
		return err
	})
	return all, err
}

// EnqueueManyTx is EnqueueMany in your transaction.
func (c *Client) EnqueueManyTx(ctx context.Context, tx Tx, jobs []NewJob) ([]Enqueued, error) {
	if tx == nil {
		return nil, errNoTx
	}
	if c.wrapped != nil {
		return c.through(ctx, tx, jobs...)
	}
	return c.enqueueMany(ctx, tx, jobs)
}

func (c *Client) enqueueOne(ctx context.Context, tx Tx, j NewJob) (Enqueued, error) {
	job, err := j.encode(ctx, c.codecs)
	if err != nil {
		return Enqueued{}, fmt.Errorf("weir: enqueue: %w", err)
	}
	all, err := send(ctx, tx, []store.Job{job})
	if err != nil {
		return Enqueued{}, fmt.Errorf("weir: enqueue: %w", explain(err, "weir_enqueue"))
	}
	return all[0], nil
}

func (c *Client) enqueueMany(ctx context.Context, tx Tx, jobs []NewJob) ([]Enqueued, error) {
	const limit = 10_000
	all := make([]Enqueued, 0, len(jobs))
	for start := 0; start < len(jobs); start += limit {
		some := jobs[start:min(start+limit, len(jobs))]
		encoded := make([]store.Job, len(some))
		for i, j := range some {
			var err error
			if encoded[i], err = j.encode(ctx, c.codecs); err != nil {
				return nil, fmt.Errorf("weir: enqueue job %d of %d: %w", start+i+1, len(jobs), err)
			}
		}
		done, err := send(ctx, tx, encoded)
		if err != nil {
			return nil, fmt.Errorf("weir: enqueue jobs %d to %d of %d: %w", start+1, start+len(some), len(jobs), explain(err, "weir_enqueue"))
		}
		all = append(all, done...)
	}
	return all, nil
}

// send enqueues jobs, and returns the results in order: those that may be duplicates in one call, the others in another.
func send(ctx context.Context, tx Tx, jobs []store.Job) ([]Enqueued, error) {
	if len(jobs) == 1 && jobs[0].Unique == nil && jobs[0].Once == "" {
		id, err := store.Enqueue(ctx, tx, jobs[0])
		return []Enqueued{{ID: id}}, err
	}
	plain, unique := jobs, []store.Job(nil)
	if isUnique := func(j store.Job) bool { return j.Unique != nil }; slices.ContainsFunc(jobs, isUnique) {
		unique = slices.DeleteFunc(slices.Clone(jobs), func(j store.Job) bool { return !isUnique(j) })
		plain = slices.DeleteFunc(slices.Clone(jobs), isUnique)
	}
	plains, err := sendPlain(ctx, tx, plain)
	if err != nil {
		return nil, err
	}
	var uniques []store.Answer
	if len(unique) > 0 {
		if uniques, err = store.EnqueueUnique(ctx, tx, unique); err != nil {
			return nil, err
		}
	}
	all := make([]Enqueued, len(jobs))
	for i, j := range jobs {
		from := &plains
		if j.Unique != nil {
			from = &uniques
		}
		all[i], *from = Enqueued((*from)[0]), (*from)[1:]
	}
	return all, nil
}

// sendPlain enqueues jobs that are not unique.
func sendPlain(ctx context.Context, tx Tx, jobs []store.Job) (all []store.Answer, err error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	var ids []int64
	var duplicates []bool
	if _, ok := tx.(sqlTx); !ok {
		ids, duplicates, err = store.EnqueueMany(ctx, tx, jobs)
	} else if slices.ContainsFunc(jobs, func(j store.Job) bool { return j.Once != "" }) {
		for _, j := range jobs {
			if j.Once != "" {
				answer, err := store.EnqueueOnce(ctx, tx, j)
				if err != nil {
					return nil, err
				}
				all = append(all, answer)
				continue
			}
			id, err := store.Enqueue(ctx, tx, j)
			if err != nil {
				return nil, err
			}
			all = append(all, store.Answer{ID: id})
		}
		return all, nil
	} else {
		ids, err = store.EnqueueManyJSON(ctx, tx, jobs)
	}
	if err != nil {
		return nil, err
	}
	all = make([]store.Answer, len(jobs))
	for i, id := range ids {
		all[i] = store.Answer{ID: id, Duplicate: duplicates != nil && duplicates[i]}
	}
	return all, nil
}

// options returns the given options, completed by those of the kind.
func (j NewJob) options() (o Options) {
	if j.Options != nil {
		o = *j.Options
	}
	if kind, ok := j.Args.(ArgsWithOptions); ok && !j.complete {
		o = o.or(kind.EnqueueOptions())
	}
	return o
}

// lastRunAt is the last second of the year 9999. Times in JSON, as which jobs are listed, end there.
const lastRunAt = 253402300799

// hasNUL reports whether a text in JSON contains the escape of a NUL character.
func hasNUL(text []byte) bool {
	for rest := text; ; {
		i := bytes.Index(rest, []byte(`\u0000`))
		if i < 0 {
			return false
		}
		before := len(rest[:i]) - len(bytes.TrimRight(rest[:i], `\`)) // an even number: they escape each other
		if before%2 == 0 {
			return true
		}
		rest = rest[i+1:]
	}
}

// checkArgs refuses args, in the form in which they are stored, that the server would refuse without saying where.
func checkArgs(job store.Job) error {
	if hasNUL(job.Args) {
		return store.BadData(fmt.Errorf("the args of kind %s contain a NUL character, which PostgreSQL cannot store: leave it out, or encode the text, for example in base64", job.Kind))
	}
	return nil
}

// encode encodes the job, and checks what the server cannot report as clearly.
func (j NewJob) encode(ctx context.Context, c codecs) (store.Job, error) {
	if j.Args == nil {
		return store.Job{}, errNoArgs
	}
	o := j.options()
	job := store.Job{Queue: o.Queue, Kind: j.Args.Kind(), Priority: o.Priority, RunAt: o.RunAt, MaxAttempts: o.MaxAttempts, Key: o.Key, Flow: o.Flow, Once: o.Once}
	for _, part := range [][2]string{{"the kind", job.Kind}, {"the queue", job.Queue}, {"the key", job.Key}, {"Once", job.Once}} {
		if strings.IndexByte(part[1], 0) >= 0 {
			return job, store.BadData(fmt.Errorf("%s %q contains a NUL character, which PostgreSQL cannot store", part[0], part[1]))
		}
	}
	// Compared in seconds since 1970, which wrap nowhere: drivers count microseconds, and time.Time counts from an earlier year.
	switch at := job.RunAt.Unix(); {
	case at > lastRunAt:
		return job, fmt.Errorf("RunAt is %s: it must not be later than the year 9999", job.RunAt.UTC().Format(time.RFC3339))
	case at < 0:
		job.RunAt = time.Time{} // at once, as any RunAt in the past; PostgreSQL knows no year before 4714 BC
	default:
		job.RunAt = job.RunAt.UTC() // elsewhere it may already be the next year
	}
	var err error
	if job.Args, err = json.Marshal(j.Args); err != nil {
		return job, fmt.Errorf("encode the args of kind %s: %w", job.Kind, err)
	}
	plain := job.Args
	if job.Args, err = c.encodeArgs(ctx, job.Kind, plain); err != nil {
		return job, err
	}
	if err := checkArgs(job); err != nil && !j.plain {
		return job, err
	}
	if o.Meta != nil {
		if job.Meta, err = json.Marshal(o.Meta); err != nil {
			return job, fmt.Errorf("encode the meta of kind %s: %w", job.Kind, err)
		}
		if err := checkMeta(job.Meta); err != nil {
			return job, err
		}
		if hasNUL(job.Meta) {
			return job, fmt.Errorf("the meta of kind %s contains a NUL character, which PostgreSQL cannot store: leave it out", job.Kind)
		}
	}
	if o.Once != "" && o.Flow == 0 {
		return job, fmt.Errorf("kind %s has Once %q and no Flow: a job is done once in a flow; without one, see Unique", job.Kind, o.Once)
	}
	if u := o.Unique; u != nil {
		if o.Flow != 0 {
			return job, fmt.Errorf("kind %s has Unique and Flow %d: unique jobs can't be members of flows", job.Kind, o.Flow)
		}
		if strings.IndexByte(u.Key, 0) >= 0 {
			return job, fmt.Errorf("Unique.Key %q contains a NUL character, which PostgreSQL cannot store", u.Key)
		} else if u.Within < 0 {
			return job, fmt.Errorf("Unique.Within is %s: it must not be negative", u.Within)
		} else if u.Within > longest {
			return job, fmt.Errorf("Unique.Within is %s: it must be at most a year", u.Within)
		} else if u.Key == "" && (u.Fields == nil || len(u.Fields) > 0) && !bytes.Equal(plain, job.Args) {
			return job, fmt.Errorf("args of kind %s are encrypted, so that no two are equal: set Unique.Key", job.Kind)
		}
		job.Unique = &store.Unique{Key: u.Key, Fields: u.Fields, Until: string(u.Until), Within: u.Within, Replace: u.Replace, Wait: u.Wait}
	}
	return job, nil
}
