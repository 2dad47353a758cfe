// Package connstring says what is wrong with a connection string without repeating any of its values: it may contain a password, and what pgx
// masks of one that it can't read may be too little.
package connstring

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Invalid returns the error for a connection string that pgx can't read.
func Invalid(err error) error {
	return fmt.Errorf("the connection string is not valid: %s: write it as postgres://user:password@host:port/database", Misread(err))
}

// Misread says what is wrong with a connection string that pgx can't read.
func Misread(err error) string {
	var bad *pgconn.ParseConfigError
	if errors.As(err, &bad) {
		scheme, _, url := strings.Cut(bad.ConnString, "://")
		url = url && isScheme(scheme)
		switch {
		case url && scheme != "postgres" && scheme != "postgresql":
			return fmt.Sprintf("it begins with %q, and must begin with postgres:// or postgresql://", scheme+"://")
		case !url && !strings.Contains(bad.ConnString, "="):
			return "it is neither a URL nor a list of keyword=value"
		}
		text := bad.Error()
		detail := text[strings.LastIndex(text, "`: ")+len("`: "):]
		switch {
		case strings.Contains(detail, `missing "=" after`): // it repeats what follows a space, which may be a part of a password
			return "a value that contains spaces must be in single quotes"
		case !strings.Contains(detail, "://"): // parsers of URLs repeat theirs
			return detail
		}
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) { // the innermost error does not repeat it
		err = inner
	}
	return err.Error()
}

// isScheme reports whether a text can be the scheme of a URL, rather than some of what else connection strings contain.
var isScheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`).MatchString
