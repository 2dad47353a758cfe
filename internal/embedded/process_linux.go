package embedded

import "syscall"

// dieWithParent has the kernel shut the server down, in fast mode, when this process is gone by whatever cause.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }
