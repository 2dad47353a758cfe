package embedded

import "syscall"

// dieWithParent does nothing: macOS has no such signal. A server that outlives a killed process is named, with the way to stop
// it, by the next Start on its directory.
func dieWithParent(*syscall.SysProcAttr) {}
