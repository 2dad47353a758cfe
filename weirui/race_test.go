//go:build race

package weirui

// The race detector makes deriving a key fifty times as slow.
func init() { iterations = 10_000 }
