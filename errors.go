package weir

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// Causes of the end of a job's context: context.Cause(ctx) is one of them when a handler is stopped.
var (
	ErrCancelled = worker.ErrCancelled // the job was cancelled
	ErrStopping  = worker.ErrStopping  // the worker's StopTimeout is over; the job is handed back
	ErrFenced    = worker.ErrFenced    // the job was given to another worker
	ErrLapsed    = worker.ErrLapsed    // the worker's heartbeats do not arrive, and the job may soon be given to another; it is handed back
)

// ErrNotInstalled: the database has no schema weir, or an older one. Run `weir migrate up`.
var ErrNotInstalled = errors.New("weir is not installed in this database, or an older version of it: run `weir migrate up`")

// ErrNotFound: there is no job of that id, or no queue of that name.
var ErrNotFound = errors.New("not found")

// ErrNotClaimed: the job was made by hand, and no worker holds it. A test runs a handler that completes its job with weirtest.Work.
var ErrNotClaimed = errors.New("no worker has claimed the job, for it was made by hand: run its handler with weirtest.Work")

// ErrUnknownKind, returned by a handler (of HandleRest, say), says that this worker has none for the job's kind: the job is handed back, to be
// run by a worker that has, after a pause that doubles each time, up to five minutes. No attempt is used up. A worker returns it by itself
// for kinds without a handler, so that an old one does not fail the new jobs of a deployment that goes on.
var ErrUnknownKind = errors.New("no handler for this kind in this worker")

// IsFenced tells whether a call was refused because its worker had been fenced.
func IsFenced(err error) bool { return store.IsFenced(err) || errors.Is(err, ErrFenced) }

// Fail returns an error that ends a job as failed for good, whatever attempts it has left. err is kept as the reason; nil is allowed.
func Fail(err error) error { return &ending{store.Failed, err, 0} }

// Cancel returns an error that ends a job as cancelled: it has become needless. err is kept as the reason; nil is allowed.
func Cancel(err error) error { return &ending{store.Cancelled, err, 0} }

// Snooze returns an error that puts a job off without using up an attempt: Job.Attempt stays as it is, and Job.PutOff
// counts. 0 or less runs it again at once.
func Snooze(d time.Duration) error { return &ending{store.Snoozed, nil, d} }

// RetryAfter returns an error that fails the attempt and retries it after d, whatever the policy; 0 or less: at once. The last of
// Job.MaxAttempts is not retried: the job has failed. err is kept as the reason.
func RetryAfter(d time.Duration, err error) error { return &ending{store.Retried, err, d} }

// ending is a handler's wish for how its attempt ends.
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

// explain adds to an error what to do about it: the server's hint, which an error's text leaves out, or ours. role is one that may make the call.
func explain(err error, role string) error {
	switch {
	case err == nil:
		return nil
	case store.IsNotInstalled(err):
		return fmt.Errorf("%w (%w)", ErrNotInstalled, err)
	case store.IsDenied(err):
		return fmt.Errorf("%w: grant this user the role %s", err, role)
	}
	if hint := store.Hint(err); hint != "" {
		return fmt.Errorf("%w: %s", err, hint)
	}
	return err
}
