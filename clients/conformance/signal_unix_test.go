//go:build unix

package conformance

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup gives a driver a process group of its own: the command may be run by a shell, which signals would otherwise end alone.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// signal sends a signal to a driver, and everything that it has started.
func signal(cmd *exec.Cmd, sig os.Signal) { _ = syscall.Kill(-cmd.Process.Pid, sig.(syscall.Signal)) }

var suspend, resume os.Signal = syscall.SIGSTOP, syscall.SIGCONT
