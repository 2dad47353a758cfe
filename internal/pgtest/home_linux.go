package pgtest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// inMemory returns a directory in memory, if this machine can spare that much of it.
func inMemory(needed uint64) (dir string, ok bool) {
	const dev = "/dev/shm"
	var fs syscall.Statfs_t
	if syscall.Statfs(dev, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < needed {
		return "", false
	}
	return dev, available() >= needed
}

// available returns the bytes of memory that programs can still use; 0 if that is unknown.
func available() uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		var kB uint64
		if _, err := fmt.Sscanf(string(line), "MemAvailable: %d kB", &kB); err == nil {
			return kB << 10
		}
	}
	return 0
}
