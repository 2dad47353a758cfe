package weir

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// Job is one attempt at a job, as its handler sees it.
type Job[A any] struct {
	JobMeta
	Args A
}

// JobMeta is what is known of an attempt besides its args.
type JobMeta struct {
	ID          int64 // unique in its database
	Kind        string
	Queue       string
	Priority    int             // 1 (first) to 4
	Attempt     int             // from 1
	PutOff      int             // how often this attempt was snoozed, or handed back by a worker, before
	MaxAttempts int             // the attempt of this number is the last
	EnqueuedAt  time.Time       // by the server's clock
	ReadyAt     time.Time       // since when this attempt could be claimed: later than EnqueuedAt where it had to wait for its time
	Meta        json.RawMessage // nil: none was given

	attempt *attempt
}

// noWorker is the worker of an attempt that is run without a database, by weirtest.Work.
const noWorker = 0

// attempt is what a handler may set in the course of its work.
type attempt struct {
	worker int32
	batch  store.Batch
	output *string
	inTx   bool
}

// SetOutput keeps a text with the job's result, at most 1 MiB of it; it is read by Client.Job. With a job that was made by hand, for a test that
// calls its handler directly, it does nothing: weirtest.Work returns the output.
func (j *JobMeta) SetOutput(text string) {
	if j.attempt != nil {
		j.attempt.output = &text
	}
}

// CompleteTx records the job as completed in a transaction of yours: its effects and its completion
// commit together, or not at all. The transaction must be READ COMMITTED, in the database that the
// worker works in. Commit it, then return nil from the handler; if it turns out not to be committed,
// the attempt counts as failed. It fails, by design, when the worker has been fenced: then another
// has the job, and this transaction must be rolled back. With a job that was made by hand, which no worker holds, it fails with
// ErrNotClaimed; in weirtest.Work it succeeds, and touches nothing.
func (j *JobMeta) CompleteTx(ctx context.Context, tx Tx) error {
	switch {
	case j.attempt == nil:
		return fmt.Errorf("weir: complete job %d: %w", j.ID, ErrNotClaimed)
	case j.attempt.worker == noWorker:
		j.attempt.inTx = true
		return nil
	}
	if err := store.CompleteTx(ctx, tx, j.attempt.worker, j.attempt.batch, j.ID); err != nil {
		return fmt.Errorf("weir: complete job %d: %w", j.ID, explain(err, "weir_work"))
	}
	j.attempt.inTx = true
	return nil
}

// KindOptions say how jobs of one kind are run. The zero value means the worker's defaults.
type KindOptions struct {
	Timeout time.Duration                              // of one attempt; 0: WorkerConfig.Timeout, an hour by default; negative: none
	Retry   func(attempt int, err error) time.Duration // how long until the next attempt; nil: WorkerConfig.Retry
}

// Handlers maps kinds of jobs to the functions that run them. Fill it before a worker starts.
type Handlers struct {
	kinds map[string]*handler
	rest  *handler
}

type handler struct {
	run     func(ctx context.Context, meta JobMeta, args []byte) error
	options KindOptions
}

// NewHandlers returns an empty map.
func NewHandlers() *Handlers { return &Handlers{kinds: map[string]*handler{}} }

// Handle registers the function for the kind of A. It panics if the kind has one already.
func Handle[A Args](h *Handlers, run func(ctx context.Context, job *Job[A]) error) {
	HandleWith(h, KindOptions{}, run)
}

// HandleWith is Handle with options for the kind.
func HandleWith[A Args](h *Handlers, o KindOptions, run func(ctx context.Context, job *Job[A]) error) {
	var zero A
	kind := zero.Kind()
	if _, ok := h.kinds[kind]; ok {
		panic(fmt.Sprintf("weir: kind %q has a handler already", kind))
	}
	h.kinds[kind] = &handler{options: o, run: func(ctx context.Context, meta JobMeta, args []byte) error {
		job := &Job[A]{JobMeta: meta}
		if err := json.Unmarshal(args, &job.Args); err != nil {
			return &undecoded{kind, err}
		}
		return run(ctx, job)
	}}
}

// undecoded is the error of args that the handler's type can't take.
type undecoded struct {
	kind string
	err  error
}

func (e *undecoded) Error() string {
	return fmt.Sprintf("decode the args of kind %s: %v", e.kind, e.err)
}

func (e *undecoded) Unwrap() error { return e.err }

// HandleRest registers a function for all kinds that have none of their own; it gets the args as JSON.
func HandleRest(h *Handlers, o KindOptions, run func(ctx context.Context, job *Job[json.RawMessage]) error) {
	h.rest = &handler{options: o, run: func(ctx context.Context, meta JobMeta, args []byte) error {
		return run(ctx, &Job[json.RawMessage]{JobMeta: meta, Args: args})
	}}
}

// Kinds lists the kinds with a handler of their own.
func (h *Handlers) Kinds() []string {
	var kinds []string
	for kind := range h.kinds {
		kinds = append(kinds, kind)
	}
	sort.Strings(kinds)
	return kinds
}

func (h *Handlers) find(kind string) *handler {
	if found, ok := h.kinds[kind]; ok {
		return found
	}
	return h.rest
}
