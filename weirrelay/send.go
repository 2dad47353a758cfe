package weirrelay

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/sleep"
)

// sender sends batches to a target.
type sender struct {
	target Target
	what   string // for the log of outages
	outage *outage.Log
	retry  backoff
}

// send sends the records, again and again until the target has them, and returns those that it has. refused is called for each that the target refuses for good, by
// its index among those that are left; it is left out then, unless refused fails. It returns ErrMoved, or an error once ctx has ended.
func (s *sender) send(ctx context.Context, records []Record, refused func(i int, why error) error) ([]Record, error) {
	for len(records) > 0 {
		err := s.target.Send(ctx, records)
		if no := (*Refused)(nil); errors.As(err, &no) && no.Index < len(records) {
			if err = refused(no.Index, no.Err); err == nil {
				records = append(records[:no.Index], records[no.Index+1:]...)
				continue
			}
		}
		switch {
		case err == nil:
			s.outage.Worked(s.what)
			s.retry = backoff{}
			return records, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, ErrMoved):
			return nil, err
		}
		s.outage.Failed(s.what, err)
		if !sleep.For(ctx, sleep.Jitter(s.retry.next())) {
			return nil, ctx.Err()
		}
	}
	return nil, nil
}

// maxLetter bounds the payload that a dead letter keeps, in bytes: in base64, it must fit into a job's args.
const maxLetter = 700_000

// keep puts a payload into the letter, if it is not too large.
func (l *DeadLetter) keep(payload []byte, binary bool) {
	switch {
	case len(payload) > maxLetter:
		l.Error = fmt.Sprintf("its %d bytes are left out: %s", len(payload), l.Error)
	case binary || !utf8.Valid(payload):
		l.Bytes = payload
	default:
		l.Payload = string(payload)
	}
}
