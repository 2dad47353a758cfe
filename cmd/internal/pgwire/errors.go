package pgwire

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"
)

// SQLSTATEs, from the manual's appendix "PostgreSQL Error Codes".
const (
	unsupported        = "0A000"
	protocolViolation  = "08P01"
	badValue           = "22023"
	badEncoding        = "22021"
	badText            = "22P02"
	badBinary          = "22P03"
	activeTransaction  = "25001"
	noTransaction      = "25P01"
	failedTransaction  = "25P02"
	noSuchStatement    = "26000"
	badAuthorization   = "28000"
	badPassword        = "28P01"
	denied             = "42501"
	noSuchSavepoint    = "3B001"
	noSuchPortal       = "34000"
	noSuchDatabase     = "3D000"
	syntaxError        = "42601"
	nameTooLong        = "42622"
	noSuchObject       = "42704"
	noSuchParameter    = "42P02"
	indeterminateType  = "42P18"
	duplicateStatement = "42P05"
	tooManyConnections = "53300"
	outOfMemory        = "53200"
	overLimit          = "53400"
	tooLarge           = "54000"
	tooComplex         = "54001"
	tooManyColumns     = "54011"
	shuttingDown       = "57P01"
	cannotConnect      = "57P03"
	ioError            = "58030"
	internalError      = "XX000"
)

// Error is an error as sent to a client: a SQLSTATE, a message, and a hint.
type Error struct {
	Code, Message, Hint string
}

func (e *Error) Error() string { return e.Message }

func errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (e *Error) hint(text string) *Error {
	e.Hint = text
	return e
}

// asError converts an error to one that can be sent to a client.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return errorf(internalError, "%v", err)
}

func (e *Error) response(severity string) *pgproto3.ErrorResponse {
	return &pgproto3.ErrorResponse{Severity: severity, SeverityUnlocalized: severity, Code: e.Code, Message: e.Message, Hint: e.Hint}
}
