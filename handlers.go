package weir

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"time"

	"github.com/weir-pg/weir/internal/sealed"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// Job is one attempt at a job, as its handler sees it.
type Job[A any] struct {
	JobMeta
	Args A
}

// JobMeta describes an attempt, without its args.
type JobMeta struct {
	ID          int64 // unique in its database
	Kind        string
	Queue       string
	Priority    int             // 1 (first) to 4
	Key         string          // Options.Key; "": the job has none
	Flow        int64           // the flow that it is a member of; 0: none. Pass it as Options.Flow to add others
	Attempt     int             // from 1
	PutOff      int             // how many times the job was snoozed or released before this attempt
	MaxAttempts int             // the number of the last attempt
	EnqueuedAt  time.Time       // by the server's clock
	ReadyAt     time.Time       // when this attempt became available; later than EnqueuedAt if it had to wait for its RunAt or a retry
	Meta        json.RawMessage // nil: the job has none
	Encrypted   bool            // what the job stores is encrypted: keep it, and the texts of its errors, out of logs and traces

	attempt *attempt
}

// noWorker is the worker of an attempt that weirtest.Work runs without a database.
const noWorker = 0

// attempt holds what a handler may set while it runs.
type attempt struct {
	worker int32
	batch  store.Batch
	output *string
	inTx   bool
	groups *groups // of the worker
	task   *worker.Task
	seal   func(part sealed.Part, text string) (string, error) // nil: nothing is encrypted
	codecs *codecs
	client *Client
}

// Client returns the client whose worker runs the job, so of the database that the job comes from; nil: the job was constructed directly, for a test that calls its
// handler.
func (j *JobMeta) Client() *Client {
	if j.attempt == nil {
		return nil
	}
	return j.attempt.client
}

// SetOutput stores a text of up to 1 MiB with the job's result; longer text is truncated. Client.Job returns it. On a job that was
// constructed directly, for a test that calls its handler, SetOutput does nothing; weirtest.Work does return the output.
func (j *JobMeta) SetOutput(text string) {
	if j.attempt != nil {
		j.attempt.output = &text
	}
}

// CompleteTx records the job as completed in your transaction, so that the job's effects and its completion commit together or not at all. An output must
// be set before. Counts are added to counters of the job's flow as with [Client.IncrementTx], but in the same call and row as its end.
//
// The transaction must be READ COMMITTED, and in the database of the worker. Commit it, then return nil from the handler; if the
// transaction turns out not to be committed, the attempt counts as failed, and the next one follows after the backoff of the queue.
//
// CompleteTx fails by design if the worker has been fenced: another worker has the job then, and you must roll the transaction back. On a
// job that was constructed directly, which no worker has claimed, it fails with ErrNotClaimed; in weirtest.Work it succeeds and writes
// nothing.
func (j *JobMeta) CompleteTx(ctx context.Context, tx Tx, counts ...Count) error {
	switch {
	case j.attempt == nil:
		return fmt.Errorf("weir: complete job %d: %w", j.ID, ErrNotClaimed)
	case j.attempt.worker == noWorker:
		j.attempt.inTx = true
		return nil
	}
	var output *string
	if j.attempt.output != nil {
		text, err := worker.StoredOutput(j.attempt.seal, *j.attempt.output)
		if err != nil {
			return fmt.Errorf("weir: complete job %d: encrypt its output: %w", j.ID, err)
		}
		output = &text
	}
	added, err := encodeCounts(counts)
	if err != nil {
		return fmt.Errorf("weir: complete job %d: %w", j.ID, err)
	}
	if err := store.CompleteTx(ctx, tx, j.attempt.worker, j.attempt.batch, j.ID, output, added); err != nil {
		return fmt.Errorf("weir: complete job %d: %w", j.ID, explain(err, "weir_work"))
	}
	j.attempt.inTx = true
	return nil
}

// KindOptions specify how to run the jobs of one kind. The zero value means the worker's defaults.
type KindOptions struct {
	Timeout time.Duration                              // of one attempt; 0: WorkerConfig.Timeout, one hour by default; negative: none
	Retry   func(attempt int, err error) time.Duration // delay before the next attempt; nil: WorkerConfig.Retry
}

// Handlers maps kinds of jobs to the functions that run them. Register all handlers before a worker starts.
type Handlers struct {
	kinds map[string]*handler
	rest  *handler
}

type handler struct {
	run     func(ctx context.Context, meta JobMeta, args []byte) error
	options KindOptions
}

// NewHandlers returns an empty Handlers.
func NewHandlers() *Handlers { return &Handlers{kinds: map[string]*handler{}} }

// Handle registers the handler for the kind of A. It panics if the kind already has one.
func Handle[A Args](h *Handlers, run func(ctx context.Context, job *Job[A]) error) {
	HandleWith(h, KindOptions{}, run)
}

// HandleWith is Handle with options for the kind.
func HandleWith[A Args](h *Handlers, o KindOptions, run func(ctx context.Context, job *Job[A]) error) {
	var zero A
	kind := zero.Kind()
	if _, ok := h.kinds[kind]; ok {
		panic(fmt.Sprintf("weir: kind %q already has a handler", kind))
	}
	h.kinds[kind] = &handler{options: o, run: func(ctx context.Context, meta JobMeta, args []byte) error {
		job := &Job[A]{JobMeta: meta}
		if err := json.Unmarshal(args, &job.Args); err != nil {
			return &undecoded{kind, err}
		}
		return run(ctx, job)
	}}
}

// undecoded is the error for args that do not decode into the handler's type.
type undecoded struct {
	kind string
	err  error
}

func (e *undecoded) Error() string {
	return fmt.Sprintf("decode the args of kind %s: %v", e.kind, e.err)
}

func (e *undecoded) Unwrap() error { return e.err }

// HandleRest registers a handler for all kinds without one of their own. It receives the args as JSON.
func HandleRest(h *Handlers, o KindOptions, run func(ctx context.Context, job *Job[json.RawMessage]) error) {
	h.rest = &handler{options: o, run: func(ctx context.Context, meta JobMeta, args []byte) error {
		return run(ctx, &Job[json.RawMessage]{JobMeta: meta, Args: args})
	}}
}

// Kinds lists the kinds that have their own handler, sorted.
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
