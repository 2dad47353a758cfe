//go:build !linux

package pgtest

func inMemory(uint64) (dir string, ok bool) { return "", false }
