package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"unicode/utf8"
)

// lineMost is the longest line, more than the server takes as args.
const lineMost = 2 << 20

// line is the args of a job and where they stand, from 1.
type line struct {
	number int64
	args   json.RawMessage
}

// read yields the args of each line of in. An empty line of --jsonl is passed over; an empty one of --lines is a job.
func (c *enqueueCmd) read(ctx context.Context, in io.Reader) iter.Seq2[line, error] {
	return func(yield func(line, error) bool) {
		scanner := bufio.NewScanner(&contextReader{ctx: ctx, in: in})
		scanner.Buffer(make([]byte, 0, 64<<10), lineMost)
		if c.Null {
			scanner.Split(splitNUL)
		}
		number := int64(0)
		for scanner.Scan() {
			number++
			args, err := c.args(scanner.Bytes())
			if err != nil {
				yield(line{}, badLine(number, err))
				return
			}
			if args != nil && !yield(line{number, args}, nil) {
				return
			}
		}
		switch err := scanner.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			yield(line{}, badLine(number+1, fmt.Errorf("is longer than %d bytes", lineMost)))
		case err != nil && ctx.Err() == nil:
			yield(line{}, fmt.Errorf("read standard input: %w", err))
		}
	}
}

// args makes the args of a job out of its line; nil: there is no job in it.
func (c *enqueueCmd) args(text []byte) (json.RawMessage, error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("is not UTF-8, which is all that JSON can hold (%q)", cell(string(text)))
	}
	if c.JSONL {
		text = bytes.TrimSpace(text)
		if len(text) == 0 {
			return nil, nil
		}
		if err := checkObject(text); err != nil {
			return nil, fmt.Errorf("%w: %s", err, printable(cell(string(text))))
		}
		return bytes.Clone(text), nil
	}
	if bytes.IndexByte(text, 0) >= 0 {
		return nil, errors.New("contains NUL: add --null if NUL ends each line")
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(map[string]string{c.Field: string(text)}); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// checkObject tells why a text is no JSON object.
func checkObject(text []byte) error {
	var object map[string]json.RawMessage
	err := json.Unmarshal(text, &object)
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		return fmt.Errorf("must be a JSON object, got a JSON %s", kind.Value)
	case err != nil:
		return fmt.Errorf("is not JSON (%w)", err)
	case object == nil:
		return errors.New("must be a JSON object, got null")
	}
	return nil
}

func splitNUL(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// contextReader gives up reading when ctx ends. The read in progress is left behind; the process ends soon.
type contextReader struct {
	ctx context.Context
	in  io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	type answer struct {
		n   int
		err error
	}
	read := make(chan answer, 1)
	buffer := make([]byte, len(p)) // p is the caller's again when this returns
	go func() {
		n, err := r.in.Read(buffer)
		read <- answer{n, err}
	}()
	select {
	case a := <-read:
		return copy(p, buffer[:a.n]), a.err
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
}
