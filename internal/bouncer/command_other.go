//go:build !linux

package bouncer

import "os/exec"

func command(program, config string, as *owner) *exec.Cmd {
	if as != nil {
		return exec.Command(program, "-u", as.name, config)
	}
	return exec.Command(program, config)
}
