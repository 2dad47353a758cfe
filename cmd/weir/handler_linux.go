package main

import "syscall"

// dieWithParent has the kernel end the command when this process is killed: its job is then given to another.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
