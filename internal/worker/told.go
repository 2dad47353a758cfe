package worker

import (
	"errors"

	"github.com/weir-pg/weir/internal/store"
)

// ErrEnded is why an attempt has another end than its handler's: somebody else has recorded it before.
var ErrEnded = errors.New("the attempt has ended before, in another way")

var errNotRecorded = errors.New("the end of the attempt could not be recorded: the job is given to another worker, or run again")

// tell calls the Told functions of tasks, in a goroutine of its own for which the next tell waits: a slow function delays what is recorded
// after the next flush, but not this one.
func (c *completer) tell(some []*Task, recorded func(t *Task) (store.Outcome, error)) {
	var calls []func()
	for _, t := range some {
		if t.ending == nil || t.ending.told == nil {
			continue
		}
		told := t.ending.told
		outcome, err := recorded(t)
		calls = append(calls, func() { told(outcome, err) })
	}
	if len(calls) == 0 {
		return
	}
	c.telling <- struct{}{}
	go c.makeCalls(calls) // session.run waits for it, in abandon
}

// makeCalls makes the calls and then lets the next tell go ahead. If a call ends its goroutine (runtime.Goexit), another makes the rest.
func (c *completer) makeCalls(calls []func()) {
	made := 0
	defer func() {
		if made < len(calls) {
			go c.makeCalls(calls[made:])
		} else {
			<-c.telling
		}
	}()
	for _, call := range calls {
		made++
		call()
	}
}

// asRecorded returns the outcome in the database of a task whose end was recorded.
func asRecorded(t *Task) (store.Outcome, error) {
	outcome := t.ending.outcome
	if outcome == store.Retried && t.Attempt >= t.MaxAttempts {
		outcome = store.Failed
	}
	if t.ending.again > 0 {
		return outcome, errors.New(*t.ending.err) // why the handler's own result was refused
	}
	return outcome, t.ending.why
}

// asFound returns the outcome in the database of a task that had already ended: it was recorded by the handler's transaction, or by a call
// whose answer was lost.
func asFound(t *Task) (store.Outcome, error) {
	if t.ending.inTx {
		return store.Completed, nil
	}
	if t.ending.found != nil {
		t.ending.found()
	}
	return asRecorded(t)
}

func asLost(*Task) (store.Outcome, error) { return store.Lost, errNotRecorded }

// abandon calls Told for tasks that will not be recorded any more, and waits until all calls have returned. No flush follows it.
func (c *completer) abandon() {
	c.mu.Lock()
	left := append(c.ended, c.inTx...)
	c.ended, c.inTx, c.closed = nil, nil, true
	c.mu.Unlock()
	c.tell(left, asLost)
	c.telling <- struct{}{}
	<-c.telling
}
