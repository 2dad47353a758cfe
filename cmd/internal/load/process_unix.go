//go:build unix

package load

import (
	"runtime"
	"syscall"
	"time"
)

// OwnCPU returns the CPU time of this process.
func OwnCPU() (time.Duration, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}

func mostRSS() (int64, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	unit := int64(1024)
	if runtime.GOOS == "darwin" {
		unit = 1
	}
	return int64(u.Maxrss) * unit, true
}
