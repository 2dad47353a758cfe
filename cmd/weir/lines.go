package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"unicode/utf8"
)

// lineLimit is the maximum length of a line, more than the server accepts as args.
const lineLimit = 2 << 20

// line is the args of a job and its line number, from 1.
type line struct {
	number int64
	args   json.RawMessage
}

// read yields the args of each line of in. With --jsonl empty lines are skipped; with --lines an empty line is a job.
func (c *enqueueCmd) read(ctx context.Context, in io.Reader) iter.Seq2[line, error] {
	return func(yield func(line, error) bool) {
		scanner := bufio.NewScanner(&contextReader{ctx: ctx, in: in})
		scanner.Buffer(make([]byte, 0, 64<<10), lineLimit)
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
			yield(line{}, badLine(number+1, fmt.Errorf("is longer than %d bytes", lineLimit)))
		case err != nil && ctx.Err() == nil:
			yield(line{}, fmt.Errorf("read standard input: %w", err))
		}
	}
}

// args returns the args of a line's job, or nil if the line contains none.
func (c *enqueueCmd) args(text []byte) (json.RawMessage, error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("is not UTF-8, which JSON requires (%q)", cell(string(text)))
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
	if err := encoder.Encode(map[string]string{cmp.Or(c.Field, "line"): string(text)}); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// checkObject returns an error if the text is not a JSON object.
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

// contextReader stops reading when ctx ends. A read in progress is abandoned; the process ends soon.
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
	buffer := make([]byte, len(p)) // p belongs to the caller again after this returns
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
