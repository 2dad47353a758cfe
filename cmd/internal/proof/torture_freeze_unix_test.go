//go:build unix

package proof

import (
	"os"
	"syscall"
)

// freeze suspends a process; thaw resumes it.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func thaw(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }
