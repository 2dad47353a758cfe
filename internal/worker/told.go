package worker

import (
	"errors"

	"github.com/weir-pg/weir/internal/store"
)

var errNotRecorded = errors.New("the end of the attempt could not be recorded: the job is given to another worker, or run again")

// tell says to those who asked how their attempts ended, by a goroutine of its own that the next one waits for: who is slow to hear holds up
// what is recorded after the next flush, and not this one.
func (c *completer) tell(some []entry, recorded func(e *entry) (store.Outcome, error)) {
	var calls []func()
	for _, e := range some {
		if e.told == nil {
			continue
		}
		outcome, err := recorded(&e)
		calls = append(calls, func() { e.told(outcome, err) })
	}
	if len(calls) == 0 {
		return
	}
	c.telling <- struct{}{}
	go func() { // ends soon: session.run waits for it, by abandon
		defer func() { <-c.telling }()
		for _, call := range calls {
			call()
		}
	}()
}

// asRecorded is how an end stands in the database that was taken by it.
func asRecorded(e *entry) (store.Outcome, error) {
	outcome := e.end.Outcome
	if outcome == store.Retried && e.task.Attempt >= e.task.MaxAttempts {
		outcome = store.Failed
	}
	if e.inTx {
		return outcome, errNotCommitted
	}
	return outcome, nil
}

// asFound is how an end stands in the database that had one already: that which was recorded with the handler's transaction, or by a call
// whose answer was lost.
func asFound(e *entry) (store.Outcome, error) {
	if e.inTx {
		return store.Completed, nil
	}
	return asRecorded(e)
}

func asLost(*entry) (store.Outcome, error) { return store.Lost, errNotRecorded }

// abandon tells of what will not be recorded any more, and waits until all is told. Nothing is flushed after it.
func (c *completer) abandon() {
	c.mu.Lock()
	left := c.entries
	c.entries, c.closed = nil, true
	c.mu.Unlock()
	c.tell(left, asLost)
	c.telling <- struct{}{}
	<-c.telling
}
