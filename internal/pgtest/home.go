package pgtest

import (
	"os"
	"sync"
)

// Home returns the directory for the servers' data: in memory if there is plenty, or else that of TMPDIR. Although nothing is flushed,
// creating and dropping a database takes a good part of a second on a disk, but 25 ms in memory.
func Home() string { return home() }

var home = sync.OnceValue(func() string {
	const plenty = 4 << 30 // all tests together use a quarter of that
	if os.Getenv("TMPDIR") == "" {
		if dir, ok := inMemory(plenty); ok {
			return dir
		}
	}
	return os.TempDir()
})
