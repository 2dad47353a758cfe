package weir

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// Errors that end a job's context before its handler returns: context.Cause(ctx) is one of them.
var (
	ErrCancelled = worker.ErrCancelled // the job was cancelled
	ErrStopping  = worker.ErrStopping  // the worker is stopping and StopTimeout has passed; the job is released
	ErrFenced    = worker.ErrFenced    // the job was given to another worker
	ErrLapsed    = worker.ErrLapsed    // the worker's heartbeats do not arrive, so that another worker may soon get the job; it is released
)

// ErrNotInstalled means that Weir's schema is missing from the database, or older than this library needs. Run `weir migrate up`.
var ErrNotInstalled = store.ErrNotInstalled

// ErrNotFound means that there is no job, flow or operation with that id, or no queue or schedule with that name.
var ErrNotFound = errors.New("not found")

// ErrNotClaimed means that the job was constructed directly, and no worker has claimed it. In tests, run a handler that completes its job
// with weirtest.Work.
var ErrNotClaimed = errors.New("no worker has claimed the job, because it was constructed directly: run its handler with weirtest.Work")

// ErrUnknownKind means that this worker has no handler for the job's kind. A worker returns it automatically for kinds without a handler,
// and a handler may return it too, for example one registered with HandleRest. The job is released for a worker that has a handler, after a
// pause that doubles each time, up to five minutes. No attempt is used up. During a rolling deployment, old workers therefore do not fail
// jobs of new kinds.
var ErrUnknownKind = errors.New("no handler for this kind in this worker")

// IsFenced reports whether a call was refused because its worker had been fenced.
func IsFenced(err error) bool { return store.IsFenced(err) || errors.Is(err, ErrFenced) }

// Fail returns an error that ends a job as failed, even if it has attempts left. err is stored as the reason; it may be nil.
func Fail(err error) error { return &ending{store.Failed, err, 0} }

// Cancel returns an error that ends a job as cancelled, because it is no longer needed. err is stored as the reason; it may be nil.
func Cancel(err error) error { return &ending{store.Cancelled, err, 0} }

// Snooze returns an error that postpones a job by d without using up an attempt: Job.Attempt stays the same, and Job.PutOff increases. If d
// is 0 or less, the job is available again at once.
func Snooze(d time.Duration) error { return &ending{store.Snoozed, nil, d} }

// RetryAfter returns an error that fails the attempt and retries the job after d, regardless of the retry policy. If d is 0 or less, the
// job is available again at once. The attempt with the number Job.MaxAttempts is not retried: it fails the job. err is stored as the
// reason.
func RetryAfter(d time.Duration, err error) error { return &ending{store.Retried, err, d} }

// ending is the outcome that a handler requests for its attempt.
type ending struct {
	outcome store.Outcome
	err     error
	after   time.Duration
}

func (e *ending) Error() string {
	switch e.outcome {
	case store.Snoozed:
		return fmt.Sprintf("snoozed for %s", e.after)
	default:
		if e.err == nil {
			return string(e.outcome)
		}
		return e.err.Error()
	}
}

func (e *ending) Unwrap() error { return e.err }

// explain adds what to do to an error: the server's hint, which an error's text leaves out, or our own. role is a role that may make the
// call.
func explain(err error, role string) error {
	switch {
	case err == nil:
		return nil
	case store.IsNotInstalled(err), store.IsDenied(err):
		return store.Explain(err, role)
	case store.IsStatementLost(err): // in the caller's transaction, which can't be repeated here
		return fmt.Errorf("%w: a pooler in transaction mode mixes up prepared statements: add default_query_exec_mode=exec to pgx's connection string, or set max_prepared_statements in PgBouncer 1.21 or later", err)
	}
	unknown := store.IsUnknownFlow(err)
	if hint := store.Hint(err); hint != "" {
		err = fmt.Errorf("%w: %s", err, hint)
	}
	if unknown {
		return unknownFlow{err}
	}
	return err
}

// unknownFlow is an error of the server about a flow that does not exist: it is ErrNotFound.
type unknownFlow struct{ error }

func (unknownFlow) Is(target error) bool { return target == ErrNotFound }
func (e unknownFlow) Unwrap() error      { return e.error }
