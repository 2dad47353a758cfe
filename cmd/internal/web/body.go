package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
)

// Bodies and frames are held in memory as a whole. So only a few long ones are read at a time; the others wait, with what they have sent
// still in their connections.
const (
	short      = 64 << 10
	longAtOnce = 64
	maxInLists = 2000 // elements in a list of a request: no request may have more, nor is any default in Limits larger
)

// readAll reads a body or a frame, within its reader's limit and deadline. The caller must call done when it no longer needs the bytes.
func (w *Web) readAll(ctx context.Context, from io.Reader) (b []byte, done func(), err error) {
	done = func() {}
	b, err = io.ReadAll(io.LimitReader(from, short))
	if err == nil && len(b) == short {
		select {
		case w.long <- struct{}{}:
			done = func() { <-w.long }
		case <-ctx.Done():
			return nil, nil, fail(http.StatusServiceUnavailable, "limit", "this server is reading the maximum number of long messages", "try again later")
		}
		rest := bytes.NewBuffer(b)
		_, err = rest.ReadFrom(from)
		b = rest.Bytes()
	}
	if err == nil {
		return b, done, nil
	}
	done()
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		err = fail(http.StatusRequestEntityTooLarge, "limit", fmt.Sprintf("the body is longer than the limit of %d bytes", tooLong.Limit),
			"publish a reference to it, such as the row's key")
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fail(http.StatusRequestTimeout, "limit", fmt.Sprintf("the body did not arrive within %v", w.BodyTimeout), "")
	default:
		err = badRequest("the body could not be read", "")
	}
	return nil, nil, err
}

// List is a list in a request. One that is longer than any limit is refused before it is built: two bytes of JSON become forty in memory.
type List[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *List[T]) UnmarshalJSON(b []byte) error {
	*l = nil
	if string(b) == "null" {
		return nil
	}
	from := json.NewDecoder(bytes.NewReader(b))
	if first, err := from.Token(); err != nil || first != json.Delim('[') {
		return errors.New("expected a list")
	}
	*l = List[T]{}
	for from.More() {
		if len(*l) == maxInLists {
			return tooMany("elements in a list", maxInLists)
		}
		var one T
		if err := from.Decode(&one); err != nil {
			return err
		}
		*l = append(*l, one)
	}
	return nil
}

func tooMany(what string, limit int) *Failure {
	return fail(http.StatusRequestEntityTooLarge, "limit", fmt.Sprintf("too many %s: a request may have up to %d", what, limit), "send several requests")
}
