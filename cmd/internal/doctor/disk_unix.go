//go:build linux || darwin

package doctor

import "syscall"

// freeSpace returns the bytes that are free where a directory is.
func freeSpace(dir string) (float64, bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return float64(s.Bavail) * float64(s.Bsize), true
}
