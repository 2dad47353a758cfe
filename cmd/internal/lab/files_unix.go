//go:build unix

package lab

import (
	"fmt"
	"syscall"
)

// mayOpen returns an error where this process may not open so many files. Go's runtime has already raised the soft limit to
// the hard one.
func mayOpen(files int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return nil // it will be seen
	}
	if uint64(limit.Cur) < uint64(files) {
		return fmt.Errorf("this needs %d open files and this process may have %d: ask for fewer clients, or raise it with ulimit -n", files, limit.Cur)
	}
	return nil
}
