//go:build unix

package proof

import (
	"os"
	"syscall"
)

// freeze has a process stand still; thaw has it go on.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func thaw(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }
