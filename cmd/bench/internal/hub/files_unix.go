//go:build unix

package hub

import "syscall"

// openFiles is how many files a process may open: Go raises the limit as far as it may. 0: unknown.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	const most = 1 << 30
	return int(min(limit.Cur, most))
}
