package store

import (
	"errors"
	"fmt"
)

// ErrNotInstalled means that the schema is missing, or older than this build.
var ErrNotInstalled = errors.New("weir is not installed in this database, or an older version of it: run `weir migrate up`")

// Explain adds what to do about an error: install the schema, or grant the role that the call needs.
func Explain(err error, role string) error {
	switch {
	case IsNotInstalled(err):
		return fmt.Errorf("%w (%w)", ErrNotInstalled, err)
	case IsDenied(err) && !errors.As(err, new(denied)): // the call within this one knows best
		return denied{fmt.Errorf("%w: grant this user the role %s", err, role)}
	}
	return err
}

// denied is an error that says which role to grant.
type denied struct{ error }

func (d denied) Unwrap() error { return d.error }
