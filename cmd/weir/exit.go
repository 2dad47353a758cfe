package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir"
)

// Exit codes. They are part of the command's interface: top-level help lists them.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3   // no such job, queue, flow or schedule
	exitUnreachable = 4   // the database can't be reached
	exitInterrupted = 130 // stopped by a signal before it was done
)

// failure is an error with its own exit code; all other errors exit with exitFailure.
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

// exitCode returns the exit code for an error. ctx is the context that the first signal ends.
func exitCode(ctx context.Context, err error) int {
	var f *failure
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &f):
		return f.code
	case errors.Is(err, weir.ErrNotFound):
		return exitNotFound
	}
	return exitFailure
}

// oneLine formats an error as one line with one prefix, whatever packages have wrapped it.
func oneLine(err error) string {
	text := err.Error()
	// Errors of the server are shown with their hint, but without their code.
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		words := strings.TrimPrefix(refused.Message, "weir: ")
		if refused.Hint != "" && !strings.Contains(text, refused.Hint) { // the library may have added it already
			words += ": " + refused.Hint
		}
		text = strings.ReplaceAll(text, refused.Error(), words)
	}
	text = strings.TrimPrefix(text, "weir: ")
	return "weir: " + printable(strings.Join(strings.Fields(text), " "))
}
