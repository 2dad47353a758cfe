package lab

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"time"
)

const postmasterCPU = "CPU of the postmaster"

// postmasterGauge reads how much of a core the process uses, where the system reports it.
func postmasterGauge(pid int) []gauge {
	last, ok := cpuTime(pid)
	if !ok {
		return nil
	}
	at, share := time.Now(), 0.0
	return []gauge{{postmasterCPU, func(context.Context) (float64, error) {
		// The system counts in hundredths of a second, which would be mostly rounding over less than half a second.
		if time.Since(at) < 500*time.Millisecond {
			return share, nil
		}
		now, ok := cpuTime(pid)
		if !ok {
			return 0, errors.New("the postmaster's CPU time can't be read")
		}
		spent, passed := now-last, time.Since(at)
		last, at = now, time.Now()
		share = 100 * spent.Seconds() / passed.Seconds()
		return share, nil
	}}}
}

// cpuTime returns the CPU time of a process, without its children.
func cpuTime(pid int) (time.Duration, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// pid (name) state ppid …; the name may contain anything. Fields 14 and 15 of proc(5) are user and system time.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, false
	}
	user, err1 := strconv.ParseInt(string(fields[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(fields[12]), 10, 64)
	const perSecond = 100 // USER_HZ, the same on every Linux
	return time.Duration(user+system) * time.Second / perSecond, err1 == nil && err2 == nil
}
