package embedded

import "syscall"

// dieWithParent does nothing, since macOS has no such signal. If a server outlives a killed process, the next Start in its directory
// reports it, and how to stop it.
func dieWithParent(*syscall.SysProcAttr) {}
