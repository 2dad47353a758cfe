package bouncer

import (
	"os/exec"
	"syscall"
)

// command makes the kernel end PgBouncer when this process ends for any reason. PgBouncer's own -u would undo that.
func command(program, config string, as *owner) *exec.Cmd {
	cmd := exec.Command(program, config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if as != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}
	}
	return cmd
}
