//go:build !unix

package lab

// mayOpen does not know the limit on this system.
func mayOpen(int) error { return nil }
