package lab

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// budgetPeriod is how often a budget is granted anew.
const budgetPeriod = 50 * time.Millisecond

// setBudget grants a process a share of a core: no more, even if CPUs are idle, and no less, even if others want them. Its children have no part
// in that, so of a server it binds the postmaster alone. It needs root.
func setBudget(pid int, share float64) error {
	runtime := uint64(max(float64(budgetPeriod)*share, float64(100*time.Microsecond)))
	attr := &unix.SchedAttr{
		Policy: unix.SCHED_DEADLINE, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Runtime: runtime, Deadline: uint64(budgetPeriod), Period: uint64(budgetPeriod),
	}
	if err := unix.SchedSetAttr(pid, attr, 0); err != nil {
		return fmt.Errorf("give process %d a budget of CPU time: %w", pid, err)
	}
	return nil
}

// lift ends the budget of a process.
func lift(pid int) error {
	if err := unix.SchedSetAttr(pid, &unix.SchedAttr{Policy: unix.SCHED_NORMAL}, 0); err != nil {
		return fmt.Errorf("lift the budget of process %d: %w", pid, err)
	}
	return nil
}
