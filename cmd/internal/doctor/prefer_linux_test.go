package doctor_test

import (
	"os"
	"strconv"
	"syscall"
)

// preferClients gives this process priority over others while it is a load's clients, and returns the function that ends this. All clients of a load share
// the process's part of a busy machine, which is as large as that of one of their sessions: the sessions would have little to do, and would not
// meet. Real clients have machines of their own. Without the right to do so, it does nothing.
func preferClients() (end func()) {
	const priority = -15
	set := func(nice int) {
		threads, _ := os.ReadDir("/proc/self/task") // threads that start later inherit it
		for _, thread := range threads {
			if id, err := strconv.Atoi(thread.Name()); err == nil {
				_ = syscall.Setpriority(syscall.PRIO_PROCESS, id, nice)
			}
		}
	}
	before, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		return func() {}
	}
	set(priority)
	return func() { set(20 - before) } // the system call returns 20 less the value
}
