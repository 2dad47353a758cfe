package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// tape remembers all that an examination was told by the server, the clock and the machine, in order, so that it can be told the same again. A nil tape
// remembers nothing. It serves one goroutine.
type tape struct {
	Told []told `json:"told"`

	replays bool
	inside  bool             // within another question, whose answer is enough
	next    map[string][]int // of each question, the answers that were not given yet
}

// told is an answer.
type told struct {
	Ask    string          `json:"ask"`
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  string          `json:"error,omitempty"`
	Code   string          `json:"code,omitempty"` // SQLSTATE of the error
}

// toldError is an error that a replay is told.
type toldError struct {
	text   string
	server *pgconn.PgError // nil: not the server's
}

func (e *toldError) Error() string { return e.text }

func (e *toldError) Unwrap() error {
	if e.server == nil {
		return nil
	}
	return e.server
}

// rewind prepares a tape that was read for being asked.
func (t *tape) rewind() {
	t.replays, t.next = true, map[string][]int{}
	for i, a := range t.Told {
		t.next[a.Ask] = append(t.next[a.Ask], i)
	}
}

// asked returns the answer to a question: that of f, which the tape then remembers, or in a replay the one that it remembers.
func asked[T any](t *tape, question string, f func() (T, error)) (T, error) {
	if t == nil || t.inside {
		return f()
	}
	var answer T
	if t.replays {
		at := t.next[question]
		if len(at) == 0 {
			return answer, fmt.Errorf("the recording has no answer to %q: another version of weir doctor, which asks other questions, has made it", clip(oneLine(question), 60))
		}
		t.next[question] = at[1:]
		a := t.Told[at[0]]
		if a.Error != "" {
			err := &toldError{text: a.Error}
			if a.Code != "" {
				err.server = &pgconn.PgError{Code: a.Code, Message: a.Error}
			}
			return answer, err
		}
		if err := json.Unmarshal(a.Answer, &answer); err != nil {
			return answer, fmt.Errorf("the recording's answer to %q: %w", clip(oneLine(question), 60), err)
		}
		return answer, nil
	}
	t.inside = true
	answer, err := f()
	t.inside = false
	a := told{Ask: question}
	if err == nil {
		a.Answer, err = json.Marshal(answer)
	}
	if err != nil {
		a.Error = err.Error()
		var refused *pgconn.PgError
		if errors.As(err, &refused) {
			a.Code = refused.Code
		}
	}
	t.Told = append(t.Told, a)
	return answer, err
}

// recall is asked for what can't fail.
func recall[T any](t *tape, question string, f func() T) T {
	answer, _ := asked(t, question, func() (T, error) { return f(), nil }) // a recording without the answer tells the zero value
	return answer
}

// clock tells the time of day without its steps: of when it was started, and of what has passed since by the monotonic clock. So times that it told are
// as far apart when they have been written to a file. A nil clock is that of the machine.
type clock struct{ started time.Time }

func newClock() *clock { return &clock{time.Now()} }

func (c *clock) now() time.Time {
	if c == nil {
		return time.Now()
	}
	return c.started.Round(0).Add(time.Since(c.started))
}
