//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup puts the command into a process group of its own: Ctrl-C at the terminal does not reach it, and it is
// stopped with all that it has started.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
}

// A group that is gone already needs nothing, so errors don't matter.
func terminateGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGTERM) }
func killGroup(p *os.Process)      { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }
