package weirrelay

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	sure   func(context.Context) error // called before anything is sent; nil: any number of processes send
}

// send sends the records, again and again until the target has them, and returns those that it has. refused is called for each that the target refuses for good, by
// its index among those that are left; it is left out then, unless refused fails. It returns ErrMoved, or an error once ctx has ended.
func (s *sender) send(ctx context.Context, records []Record, refused func(i int, why error) error) ([]Record, error) {
	for len(records) > 0 {
		if s.sure != nil {
			if err := s.sure(ctx); err != nil {
				return nil, err
			}
		}
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

// What a dead letter keeps at most, in bytes: its payload, which in base64 must fit into a job's args, and other texts.
const (
	maxLetter  = 700_000
	maxSubject = 1000
	maxError   = 4000
)

// keep puts a payload into the letter, if it is not too large.
func (l *DeadLetter) keep(payload []byte, binary bool) {
	switch {
	case len(payload) > maxLetter:
		*l = l.bare(len(payload))
	case binary || !utf8.Valid(payload):
		l.Bytes = payload
	default:
		l.Payload = string(payload)
	}
}

// bare is the letter without its payload, of which it says how large it was.
func (l DeadLetter) bare(size int) DeadLetter {
	l.Payload, l.Bytes, l.Error = "", nil, fmt.Sprintf("its %d bytes are left out: %s", size, l.Error)
	return l
}

// legible returns a text that a job's args can have, of at most so many bytes.
func legible(text string, most int) string {
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
}
