//go:build !unix

package lab

// mayOpen can't tell.
func mayOpen(int) error { return nil }
