//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup puts the command into its own process group, so that Ctrl-C at the terminal does not reach it, and it can be stopped together
// with its child processes.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
}

// Errors are ignored: the group has already ended.
func terminateGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGTERM) }
func killGroup(p *os.Process)      { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }
