package lab

import (
	"fmt"
	"strings"
)

// fullError is why a run failed whose private server had no space left, whatever its sessions saw of that.
type fullError struct {
	dir string
	err error
}

func (e *fullError) Error() string {
	return fmt.Sprintf("lab: the disk is full, on which the private server had its files (%s): free some space there, or set TMPDIR to a directory on another one: %s",
		e.dir, strings.TrimPrefix(e.err.Error(), "lab: "))
}

func (e *fullError) Unwrap() error { return e.err }

// explain returns an error with the reason that the private server's log gives.
func (s *site) explain(err error) error {
	if err == nil || !s.private.Started() {
		return err
	}
	if dir, full := s.private.Full(); full || strings.Contains(strings.ToLower(err.Error()), "no space left on device") {
		return &fullError{dir, err}
	}
	return err
}
