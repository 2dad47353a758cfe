package store

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs that Weir's functions raise (class WR), which the comments on the functions list.
const (
	codeFenced = "WR001"
	codeLost   = "WR002"
	codeMoved  = "WR003"

	codeTruncated = "WR005"

	codeKeyUsed  = "WR007"
	codePassedOn = "WR008"
	codeNotOwner = "WR009"
)

func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// Hint returns the server's hint for an error, or "".
func Hint(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		if pg.Code == "22P05" && pg.Hint == "" { // PostgreSQL says only "unsupported Unicode escape sequence"
			return `It has the character NUL (\u0000), which PostgreSQL can't store: leave it out, or encode the text, for example in base64.`
		}
		return pg.Hint
	}
	return ""
}

// Reason returns the server's message for an error, or "".
func Reason(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Message
	}
	return ""
}

// IsFenced reports whether the worker was fenced or is unknown: its jobs were given to others.
func IsFenced(err error) bool { return code(err) == codeFenced }

// IsClaimLost reports whether a batch is not this worker's, because its claim was lost in a crash of the server.
func IsClaimLost(err error) bool { return code(err) == codeLost }

// IsMoved reports whether the log comes from another cluster and needs Rebase.
func IsMoved(err error) bool { return code(err) == codeMoved }

// IsNotInstalled reports whether the schema is missing or older than this code.
func IsNotInstalled(err error) bool {
	switch code(err) {
	case "3F000", "42883", "42P01": // no such schema, function, table
		return true
	}
	return false
}

// IsDenied reports whether the role lacks a privilege.
func IsDenied(err error) bool { return code(err) == "42501" }

// IsRefused reports whether the server answered with an error of the statement itself, so that repeating it is useless. The following are
// not refusals: errors of the connection; of a server that is starting, stopping, read-only or short of a resource; of a lock; of a plan
// that a migration made stale; and internal errors of the server.
func IsRefused(err error) bool {
	c := code(err)
	if len(c) != 5 {
		return false
	}
	switch c[:2] {
	case "08", "0A", "25", "40", "53", "55", "57", "58", "XX":
		return false
	}
	return true
}

// IsUnanswered reports whether the call was sent, or may have been, and its result is unknown.
func IsUnanswered(err error) bool { return err != nil && code(err) == "" && !pgconn.SafeToRetry(err) }

// IsDown reports whether every address that was tried has no server, or one that is starting or stopping. If one of several hosts or
// addresses fails in another way, a server may be up.
func IsDown(err error) bool {
	if err == nil {
		return false
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		all := several.Unwrap()
		return len(all) > 0 && !slices.ContainsFunc(all, func(one error) bool { return !IsDown(one) })
	}
	if cause := errors.Unwrap(err); cause != nil {
		return IsDown(cause)
	}
	return code(err) == "57P03" || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

// IsStatementLost reports whether a prepared statement was missing, or existed already: a pooler has changed the connection behind this
// one, and nothing was executed.
func IsStatementLost(err error) bool {
	c := code(err)
	return c == "26000" || c == "42P05"
}

// isIdleEnded reports whether the server ended the session for being idle (idle_session_timeout) before the statement reached it. If that happens while
// PgBouncer prepares the session for a client (varcache_apply), it tells the client that a parameter is invalid.
func isIdleEnded(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && (refused.Code == "57P05" || refused.Code == "08P01" && refused.Message == "invalid server parameter")
}

// IsBadArgument reports whether the function refused an argument.
func IsBadArgument(err error) bool { return code(err) == "22023" }

// IsBadData reports whether the server will never take what was passed to it: an argument, or something that PostgreSQL's text or JSON does not have,
// such as NUL, or that is nested too deeply.
func IsBadData(err error) bool {
	c := code(err)
	return strings.HasPrefix(c, "22") || strings.HasPrefix(c, "54") || errors.As(err, new(*badData))
}

// BadData makes an error one that IsBadData knows, of what was found before the server was asked.
func BadData(err error) error { return &badData{err} }

type badData struct{ error }

func (b *badData) Unwrap() error { return b.error }

// IsUnknownFlow reports whether there is no flow with the id that was passed.
func IsUnknownFlow(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "22023" && refused.TableName == "flow"
}

// IsRequestKeyUsed reports whether another request was made with the same key.
func IsRequestKeyUsed(err error) bool { return code(err) == codeKeyUsed }

// IsNotOwner reports whether the database does not own the slot of a key.
func IsNotOwner(err error) bool { return code(err) == codeNotOwner }

// IsLockTimeout reports whether a lock was not available within the time that the function allows itself.
func IsLockTimeout(err error) bool { return code(err) == "55P03" }

// IsFlowEnded reports whether a flow takes no more jobs.
func IsFlowEnded(err error) bool { return code(err) == "55000" }

// IsBadInput reports whether the server could not accept a value: an argument that a function refused, a text that can't be converted, or one that exceeds a
// limit of the server.
func IsBadInput(err error) bool {
	c := code(err)
	return len(c) == 5 && (c[:2] == "22" || c[:2] == "54")
}
