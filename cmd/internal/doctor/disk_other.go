//go:build !linux && !darwin

package doctor

// freeSpace knows nothing on other systems.
func freeSpace(string) (float64, bool) { return 0, false }
