package lab

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// canConfine says whether this system can keep a process to some of the cores.
const canConfine = true

// confine keeps a process, and the children that it starts from now on, to some of the cores, until undo.
func confine(pid, cores int) (undo func() error, err error) {
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &all); err != nil {
		return nil, fmt.Errorf("read the cores of process %d: %w", pid, err)
	}
	for cpu := 0; cpu < len(all)*64 && some.Count() < cores; cpu++ {
		if all.IsSet(cpu) {
			some.Set(cpu)
		}
	}
	if some.Count() < cores {
		return nil, errors.New("this process may not use so many cores")
	}
	if err := unix.SchedSetaffinity(pid, &some); err != nil {
		return nil, fmt.Errorf("keep process %d to %d cores: %w", pid, cores, err)
	}
	return func() error { return unix.SchedSetaffinity(pid, &all) }, nil
}
