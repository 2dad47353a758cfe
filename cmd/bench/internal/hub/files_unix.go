//go:build unix

package hub

import "syscall"

// openFiles returns how many files a process may open, since Go raises the limit to the maximum. 0: unknown.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	const enough = 1 << 30
	return int(min(limit.Cur, enough))
}
