//go:build unix

package lab

import (
	"fmt"
	"syscall"
)

// mayOpen returns an error if this process may not open that many files. Go's runtime has already raised the soft limit to the hard one.
func mayOpen(files int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return nil // unknown: opening will fail if there are too many
	}
	if uint64(limit.Cur) < uint64(files) {
		return fmt.Errorf("this needs %d open files, and this process may open %d: use fewer clients, or raise the limit with ulimit -n", files, limit.Cur)
	}
	return nil
}
