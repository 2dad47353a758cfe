//go:build !unix

package lab

// mayOpen can't tell on this system.
func mayOpen(int) error { return nil }
