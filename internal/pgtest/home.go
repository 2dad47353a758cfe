package pgtest

import (
	"os"
	"sync"
)

// Home is the directory for the data of servers: in memory, where there is plenty, or that of TMPDIR. Nothing is flushed, and yet to make a
// database and drop it takes a good part of a second on a disk, and 25 ms in memory.
func Home() string { return home() }

var home = sync.OnceValue(func() string {
	const plenty = 4 << 30 // all tests take a quarter of that
	if os.Getenv("TMPDIR") == "" {
		if dir, ok := inMemory(plenty); ok {
			return dir
		}
	}
	return os.TempDir()
})
