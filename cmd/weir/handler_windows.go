package main

import (
	"os"
	"os/exec"
)

// Windows has neither process groups nor SIGTERM of this kind: the command is ended by itself, at once.
func ownGroup(*exec.Cmd)           {}
func terminateGroup(p *os.Process) { _ = p.Kill() }
func killGroup(p *os.Process)      { _ = p.Kill() }
