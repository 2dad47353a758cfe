package policy

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// File is a file of policies that is read again when it changes. Its methods may be called concurrently. A nil File contains nothing.
type File struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	set     *Set
	text    []byte
	failed  string // the last error logged
	read    time.Time
	version uint64
}

// lookEvery is how long after a change the file is read again, at most.
const lookEvery = time.Second

// Open reads a file.
func Open(path string, log *slog.Logger) (*File, error) {
	f := &File{path: path, log: log, read: time.Now()}
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	if f.set, err = Parse(text); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.text = text
	return f, nil
}

// Again returns another File of the same file, which begins with what f contains, also while the file itself can't be read or has a mistake. They share no rates.
func (f *File) Again(log *slog.Logger) *File {
	if f == nil {
		return nil
	}
	f.current()
	f.mu.Lock()
	defer f.mu.Unlock()
	set, _ := Parse(f.text) // it was parsed before
	return &File{path: f.path, log: log, set: set, text: f.text, failed: f.failed, read: f.read}
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxBytes {
		return nil, fmt.Errorf("%s has %d bytes; the limit is %d", path, info.Size(), maxBytes)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// Set returns what the file contains. While the file can't be read or has a mistake, that is what it contained before.
func (f *File) Set() *Set {
	set, _ := f.current()
	return set
}

// Version changes whenever the contents do.
func (f *File) Version() uint64 {
	_, version := f.current()
	return version
}

func (f *File) current() (*Set, uint64) {
	if f == nil {
		return nil, 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.read) < lookEvery {
		return f.set, f.version
	}
	f.read = time.Now()
	text, err := readFile(f.path)
	var set *Set
	if err == nil && !bytes.Equal(text, f.text) {
		set, err = Parse(text)
	}
	switch {
	case err != nil && err.Error() != f.failed:
		f.log.Error("weir: the channels file can't be used: what it contained before stays in force", "file", f.path, "error", err)
		f.failed = err.Error()
	case err == nil:
		f.failed = ""
	}
	if set != nil {
		f.set, f.text = set, text
		f.version++
		f.log.Info("weir: the channels file has changed", "file", f.path, "entries", len(set.rules))
	}
	return f.set, f.version
}
