package pgtest

import (
	"os"
	"sync"
)

// home is the directory for the data of servers: in memory, where there is plenty, or that of TMPDIR. What is dropped is never flushed, and yet
// a database is made and dropped in a good part of a second on a disk, and in 25 ms in memory.
var home = sync.OnceValue(func() string {
	const plenty = 4 << 30 // all tests take a quarter of that
	if os.Getenv("TMPDIR") == "" {
		if dir, ok := inMemory(plenty); ok {
			return dir
		}
	}
	return os.TempDir()
})
