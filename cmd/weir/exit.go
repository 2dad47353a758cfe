package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Exit codes. They are part of the command's interface: top-level help lists them.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3   // no such job or queue
	exitUnreachable = 4   // no connection to the database
	exitInterrupted = 130 // stopped by a signal before the work was done
)

// failure is an error with an exit code of its own; any other error exits with exitFailure.
type failure struct {
	code int
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func usagef(format string, args ...any) error {
	return &failure{exitUsage, fmt.Errorf(format, args...)}
}

func notFoundf(format string, args ...any) error {
	return &failure{exitNotFound, fmt.Errorf(format, args...)}
}

// exitCode tells how the process ends on an error. ctx is the one that the first signal ends.
func exitCode(ctx context.Context, err error) int {
	var f *failure
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &f):
		return f.code
	}
	return exitFailure
}

// oneLine words an error for people: one line, with one prefix, whatever packages it went through.
func oneLine(err error) string {
	text := err.Error()
	// What the server says is shown in its words, with its hint, but without its code.
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		words := strings.TrimPrefix(refused.Message, "weir: ")
		if refused.Hint != "" {
			words += ": " + refused.Hint
		}
		text = strings.ReplaceAll(text, refused.Error(), words)
	}
	text = strings.TrimPrefix(text, "weir: ")
	return "weir: " + printable(strings.Join(strings.Fields(text), " "))
}
