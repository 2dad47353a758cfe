package embedded

import "syscall"

// dieWithParent makes the kernel shut the server down, in fast mode, when this process ends for any reason.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }
