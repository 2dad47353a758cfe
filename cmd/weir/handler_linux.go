package main

import "syscall"

// dieWithParent makes the kernel kill the command when this process is killed, because another worker then takes over the job.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
