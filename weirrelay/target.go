package weirrelay

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-pg/weir"
)

// Record is a message or a job on its way to a target.
type Record struct {
	// ID is the same whenever this record is sent again, and no other of this relay has it: the target may tell repeats by it.
	ID string

	Position weir.Position // of a message: it follows it in the log
	Channel  string
	Binary   bool // the payload was published as bytes, not text

	Job *weir.JobMeta // of a job

	Payload []byte // of a message; the args of a job

	// Made from the route's templates.
	Subject string
	Key     string
	Headers map[string]string
}

// Target is where a relay's messages go, or its jobs. Its methods are called by one goroutine at a time.
type Target interface {
	// Begin is called before the first Send, and again whenever the relay begins anew. In a relay of jobs, there are no positions. recorded is a position up to which the target is known to have
	// had everything; it may have more, or be "", if nothing was recorded yet. Begin returns a position up to which the target has everything: its own, if it keeps one, and "" if that
	// is not there; or recorded, if it keeps none. The relay goes on from the later one of the two, unless the target's own shows that it has lost what it had.
	Begin(ctx context.Context, recorded weir.Position) (weir.Position, error)
	// Send returns nil once the target has all of the records for good, in this order. After an error it may have any of them, and Send is called with
	// the same again: those that it has are not to be doubled. An error that is a *Refused is about one record, which is not sent again.
	Send(ctx context.Context, records []Record) error
}

// Forgetful is a target that may lose its own position, and nothing else: so an older one, or none, does not show that it was set back.
type Forgetful interface{ Forgetful() }

// ErrMoved is a target's error when another process has sent to it what this one does not know: the relay begins anew where the target is.
var ErrMoved = errors.New("the target has moved")

// Refused is a target's error for one record that it will never take, such as one that is too large.
type Refused struct {
	Index int // in the records of the call
	Err   error
}

func (r *Refused) Error() string { return fmt.Sprintf("record %d is refused: %v", r.Index, r.Err) }

func (r *Refused) Unwrap() error { return r.Err }

// Behind returns those of the records that are behind a position which one of them has, and how many are not: for targets that know where they are. If none
// has it, it returns them all.
func Behind(records []Record, at weir.Position) (rest []Record, passed int) {
	for i := range records {
		if at != "" && records[i].Position == at {
			return records[i+1:], i + 1
		}
	}
	return records, 0
}
