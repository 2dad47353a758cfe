package weir

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/weir-pg/weir/internal/store"
)

// WorkFunc works one attempt at a job, whose args are JSON. It is what middleware of a worker wraps: see WorkerConfig.Middleware.
type WorkFunc func(ctx context.Context, job *Job[json.RawMessage]) error

// EnqueueFunc enqueues jobs, all or none, and returns what became of each, in order: in the transaction tx, or with nil in one of its own.
// It is what middleware of a client wraps: see Client.WithMiddleware.
type EnqueueFunc func(ctx context.Context, tx Tx, jobs []NewJob) ([]Enqueued, error)

// WithMiddleware returns a client whose Enqueue, EnqueueTx, EnqueueMany and EnqueueManyTx go through the middleware, the first outermost, and
// then through what c has already. It shares c's pool. Each of the four is one call; the jobs are the middleware's to change, and so are their
// Options, which are never nil, name a queue, and include what the kind says (ArgsWithOptions). What calls next with tx enqueues in the caller's
// transaction; with nil, it would not. Jobs that are enqueued by SQL, or by other clients, do not pass through.
func (c *Client) WithMiddleware(middleware ...func(next EnqueueFunc) EnqueueFunc) *Client {
	next := c.wrapped
	if next == nil {
		next = func(ctx context.Context, tx Tx, jobs []NewJob) ([]Enqueued, error) {
			return enqueue(ctx, c.store, tx, jobs)
		}
	}
	next, err := wrapped(next, middleware)
	if err != nil {
		panic("weir: Client.WithMiddleware: " + err.Error())
	}
	return &Client{store: c.store, wrapped: next}
}

// enqueue is what is in the middle of a client's middleware.
func enqueue(ctx context.Context, s *store.Store, tx Tx, jobs []NewJob) (all []Enqueued, err error) {
	switch {
	case tx == nil && len(jobs) == 1:
		err = s.Direct(ctx, func(q store.Querier) error {
			all, err = enqueue(ctx, s, q, jobs)
			return err
		})
		return all, err
	case tx == nil:
		err = s.InTx(ctx, func(q store.Querier) error {
			all, err = enqueueMany(ctx, q, jobs)
			return err
		})
		return all, err
	case len(jobs) == 1:
		job, err := enqueueOne(ctx, tx, jobs[0])
		return []Enqueued{job}, err
	}
	return enqueueMany(ctx, tx, jobs)
}

// through enqueues jobs through the client's middleware.
func (c *Client) through(ctx context.Context, tx Tx, jobs ...NewJob) ([]Enqueued, error) {
	// What a caller has given may be given again: it is not for middleware to change.
	jobs = slices.Clone(jobs)
	options := make([]Options, len(jobs))
	for i, j := range jobs {
		if j.Args == nil {
			return nil, fmt.Errorf("weir: enqueue job %d of %d: %w", i+1, len(jobs), errNoArgs)
		}
		options[i] = j.options()
		options[i].Queue = cmp.Or(options[i].Queue, store.DefaultQueue)
		jobs[i].Options, jobs[i].complete = &options[i], true
	}
	all, err := c.wrapped(ctx, tx, jobs)
	if err == nil && len(all) != len(jobs) {
		err = fmt.Errorf("weir: enqueue: the client's middleware returned %d results for %d jobs: it must return one for each, or an error", len(all), len(jobs))
	}
	return all, err
}

// throughOne is through for one job.
func (c *Client) throughOne(ctx context.Context, tx Tx, job NewJob) (Enqueued, error) {
	all, err := c.through(ctx, tx, job)
	if err != nil {
		return Enqueued{}, err
	}
	return all[0], nil
}

// SetMeta sets a key of Meta, which it replaces by a copy: what was given as Meta stays as it is. Keys that begin with "weir." are Weir's own.
func (o *Options) SetMeta(key string, value any) error {
	fields := map[string]json.RawMessage{}
	if o.Meta != nil {
		text, err := json.Marshal(o.Meta)
		if err == nil {
			err = json.Unmarshal(text, &fields)
		}
		if err != nil {
			return fmt.Errorf("weir: meta of type %T does not encode to a JSON object: %w", o.Meta, err)
		}
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("weir: encode %q for meta: %w", key, err)
	}
	if fields == nil { // it was null
		fields = map[string]json.RawMessage{}
	}
	fields[key] = text
	o.Meta = fields
	return nil
}

// wrapped is next within middleware, the first outermost.
func wrapped[F WorkFunc | EnqueueFunc](next F, middleware []func(F) F) (F, error) {
	for i, wrap := range slices.Backward(middleware) {
		if wrap == nil {
			return nil, fmt.Errorf("middleware %d is nil", i)
		}
		if next = wrap(next); next == nil {
			return nil, fmt.Errorf("middleware %d returned nil", i)
		}
	}
	return next, nil
}

// work is what is in the middle of a worker's middleware: the handler, whose panics are errors already.
func (h *Handlers) work(ctx context.Context, job *Job[json.RawMessage]) error {
	found := h.find(job.Kind)
	if found == nil {
		return ErrUnknownKind
	}
	return found.call(ctx, job.JobMeta, job.Args)
}

// call runs the handler, and turns a panic into an error.
func (h *handler) call(ctx context.Context, meta JobMeta, args []byte) (err error) {
	defer caught(&err)
	return h.run(ctx, meta, args)
}

// caught, deferred, turns a panic into an error.
func caught(err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Value: v, Stack: debug.Stack()}
	}
}

var (
	errNoArgs = errors.New("the job has no args")
	errNoTx   = errors.New("weir: enqueue: the transaction is nil: to enqueue in one of its own, call Enqueue or EnqueueMany")
)
