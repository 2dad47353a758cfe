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

// What clients send is held in memory as a whole. So what is long is taken from a few at a time, and the others wait, with what they have
// sent still in their connections.
const (
	short       = 64 << 10
	longAtOnce  = 64
	mostInLists = 1000 // what a list in a request may have: no limit of Limits' is larger by default
)

// readAll reads what a client sends, within its reader's limit and deadline. done must be called when it is no longer needed.
func (w *Web) readAll(ctx context.Context, from io.Reader) (b []byte, done func(), err error) {
	done = func() {}
	b, err = io.ReadAll(io.LimitReader(from, short))
	if err == nil && len(b) == short {
		select {
		case w.long <- struct{}{}:
			done = func() { <-w.long }
		case <-ctx.Done():
			return nil, nil, fail(http.StatusServiceUnavailable, "limit", "this server takes in as many long messages as it may", "try again later")
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
		err = fail(http.StatusRequestEntityTooLarge, "limit", fmt.Sprintf("the body is longer than the %d bytes allowed", tooLong.Limit),
			"publish a reference to it, such as the row's key")
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fail(http.StatusRequestTimeout, "limit", fmt.Sprintf("the body did not come within %v", w.BodyTimeout), "")
	default:
		err = badRequest("the body could not be read", "")
	}
	return nil, nil, err
}

// few is a list in a request. What is longer than any limit is refused before it is made: two bytes of JSON make forty of a message.
type few[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *few[T]) UnmarshalJSON(b []byte) error {
	*l = nil
	if string(b) == "null" {
		return nil
	}
	from := json.NewDecoder(bytes.NewReader(b))
	if first, err := from.Token(); err != nil || first != json.Delim('[') {
		return errors.New("a list was expected")
	}
	*l = few[T]{}
	for from.More() {
		if len(*l) == mostInLists {
			return tooMany("elements in a list", mostInLists)
		}
		var one T
		if err := from.Decode(&one); err != nil {
			return err
		}
		*l = append(*l, one)
	}
	return nil
}

func tooMany(what string, most int) *failure {
	return fail(http.StatusRequestEntityTooLarge, "limit", fmt.Sprintf("there are more %s than the %d that a request may have", what, most), "send several requests")
}
