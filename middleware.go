package weir

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/weir-pg/weir/internal/store"
)

// WorkFunc works one attempt at a job, whose args are JSON. A worker's middleware wraps it: see WorkerConfig.Middleware.
type WorkFunc func(ctx context.Context, job *Job[json.RawMessage]) error

// EnqueueFunc enqueues all jobs or none, and returns the results in order. It uses the transaction tx, or one of its own if tx is nil. A
// client's middleware wraps it: see [Client.WithMiddleware].
type EnqueueFunc func(ctx context.Context, tx Tx, jobs []NewJob) ([]Enqueued, error)

// WithMiddleware returns a client whose Enqueue, EnqueueTx, EnqueueMany and EnqueueManyTx pass through the middleware, the first outermost,
// and then through the middleware that c already has. It shares c's pool. Each call of the four is one call of the middleware. The
// middleware may change the jobs and their Options, which are never nil, name a queue, and include the defaults of the kind
// ([ArgsWithOptions]). To enqueue in the caller's transaction, middleware must pass tx on to next. Jobs that are enqueued with SQL or by
// other clients do not pass through.
func (c *Client) WithMiddleware(middleware ...func(next EnqueueFunc) EnqueueFunc) *Client {
	next := c.wrapped
	if next == nil {
		next = c.enqueue
	}
	next, err := wrapped(next, middleware)
	if err != nil {
		panic("weir: Client.WithMiddleware: " + err.Error())
	}
	return &Client{store: c.store, codecs: c.codecs, wrapped: next, middleware: slices.Concat(middleware, c.middleware)}
}

// enqueue is the innermost function of a client's middleware.
func (c *Client) enqueue(ctx context.Context, tx Tx, jobs []NewJob) (all []Enqueued, err error) {
	switch {
	case tx == nil && len(jobs) == 1:
		err = c.store.Direct(ctx, func(q store.Querier) error {
			all, err = c.enqueue(ctx, q, jobs)
			return err
		})
		return all, err
	case tx == nil:
		err = c.store.InTx(ctx, func(q store.Querier) error {
			all, err = c.enqueueMany(ctx, q, jobs)
			return err
		})
		return all, err
	case len(jobs) == 1:
		job, err := c.enqueueOne(ctx, tx, jobs[0])
		return []Enqueued{job}, err
	}
	return c.enqueueMany(ctx, tx, jobs)
}

// through enqueues jobs through the client's middleware.
func (c *Client) through(ctx context.Context, tx Tx, jobs ...NewJob) ([]Enqueued, error) {
	// The caller may use its jobs again, so middleware must not change them: give it copies.
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

// SetMeta sets a key of Meta. It replaces Meta with a copy: the value that Meta held is not changed. Keys that start with "weir." are
// reserved for Weir: enqueueing refuses them, except weirotel.MetaKey.
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
	if fields == nil { // Meta encodes to null
		fields = map[string]json.RawMessage{}
	}
	fields[key] = text
	o.Meta = fields
	return nil
}

// checkMeta refuses reserved keys in an encoded meta, except that of package weirotel, which programs may set too.
func checkMeta(meta []byte) error {
	if bytes.Count(meta, []byte(`"weir.`)) == bytes.Count(meta, []byte(`"weir.otel"`)) {
		return nil // the usual case, without decoding
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(meta, &fields) // the server refuses what is not an object
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if strings.HasPrefix(key, "weir.") && key != "weir.otel" {
			return fmt.Errorf("the key %q of meta is reserved for Weir: choose one that does not begin with \"weir.\"", key)
		}
	}
	return nil
}

// wrapped wraps next in middleware, the first outermost.
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

// work is the innermost function of a worker's middleware: the handler, with panics turned into errors.
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
	errNoTx   = errors.New("weir: enqueue: the transaction is nil: to enqueue without a transaction of yours, call Enqueue or EnqueueMany")
)
