package main

import (
	"os"
	"os/exec"
)

// Windows has no process groups or SIGTERM of this kind: only the command is ended, immediately.
func ownGroup(*exec.Cmd)           {}
func terminateGroup(p *os.Process) { _ = p.Kill() }
func killGroup(p *os.Process)      { _ = p.Kill() }
