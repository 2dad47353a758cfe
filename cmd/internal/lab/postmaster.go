package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Figures of a postmaster at work. Its user and system time are counted in hundredths of a second, and so are coarse over a short time.
const (
	postmasterCPU    = "CPU of the postmaster"
	postmasterUser   = "of it in user mode"
	postmasterSystem = "of it in the kernel"
	postmasterReady  = "postmaster ready, but without a CPU"
	machineCPU       = "CPU of the machine"
)

// postmasterGauge reads how much of a core the process uses, where the system reports it.
func postmasterGauge(pid int) []gauge {
	if _, ok := effortOf(pid); !ok {
		return nil
	}
	return []gauge{rateOf(postmasterCPU, func(context.Context) (float64, error) {
		e, ok := effortOf(pid)
		if !ok {
			return 0, errors.New("the postmaster's CPU time can't be read")
		}
		return 100 * e.ran.Seconds(), nil
	})}
}

// effort is what a process and the machine have done up to a moment. A process with one thread, like a postmaster, can at most run all the time.
type effort struct {
	at           time.Time
	user, system time.Duration // of its CPU time
	ran          time.Duration // it had a CPU
	ready        time.Duration // it had work, but others had the CPUs
	busy, all    time.Duration // the machine's CPUs: not idle, and all of their time
}

// effortOf reads the effort of a process, without its children; false where the system does not tell.
func effortOf(pid int) (e effort, ok bool) {
	e.at = time.Now()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if pid == 0 || err != nil {
		return e, false
	}
	// pid (name) state ppid …; the name may contain anything. Fields 14 and 15 of proc(5) are user and system time.
	own := ticks(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(own) < 13 {
		return e, false
	}
	e.user, e.system = own[11], own[12]
	e.ran = e.user + e.system
	if text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/schedstat"); err == nil {
		// Nanoseconds on a CPU, and nanoseconds in its queue.
		if n, err := fmt.Sscan(string(text), (*int64)(&e.ran), (*int64)(&e.ready)); n < 2 || err != nil {
			return e, false
		}
	}
	total, err := os.ReadFile("/proc/stat")
	if err != nil {
		return e, false
	}
	first, _, _ := bytes.Cut(total, []byte("\n"))
	for i, t := range ticks(first) { // cpu user nice system idle iowait irq softirq steal; what follows is contained in these
		if i >= 1 && i <= 8 {
			e.all += t
			if i != 4 && i != 5 {
				e.busy += t
			}
		}
	}
	return e, true
}

// ticks reads fields as counts of hundredths of seconds, USER_HZ on every Linux. What is no number counts as 0.
func ticks(text []byte) []time.Duration {
	fields := bytes.Fields(text)
	out := make([]time.Duration, len(fields))
	for i, f := range fields {
		n, _ := strconv.ParseInt(string(f), 10, 64)
		out[i] = time.Duration(n) * 10 * time.Millisecond
	}
	return out
}

// toil adds up the effort of a postmaster over some periods.
type toil struct {
	lasted time.Duration
	effort // of which at is unused
}

func (t *toil) add(before, after effort) {
	t.lasted += after.at.Sub(before.at)
	t.user += after.user - before.user
	t.system += after.system - before.system
	t.ran += after.ran - before.ran
	t.ready += after.ready - before.ready
	t.busy += after.busy - before.busy
	t.all += after.all - before.all
}

// figures returns the shares of the time; none if it could not be read.
func (t *toil) figures() []Figure {
	if t.lasted == 0 || t.all == 0 {
		return nil
	}
	of := func(d time.Duration) float64 { return round(100 * ratio(d.Seconds(), t.lasted.Seconds())) }
	return []Figure{
		{postmasterCPU, of(t.ran), "% of a core"}, {postmasterUser, of(t.user), "%"}, {postmasterSystem, of(t.system), "%"},
		{postmasterReady, of(t.ready), "% of the time"}, {machineCPU, round(100 * ratio(float64(t.busy), float64(t.all))), "%"},
	}
}

// judgePostmaster says which it is that clients of a way wait for: the postmaster's one thread, or a turn on the machine's CPUs. It returns
// "" if the figures are missing.
func judgePostmaster(w *Way) string {
	ran, ok := w.Figure(postmasterCPU)
	if !ok {
		return ""
	}
	ready, _ := w.Figure(postmasterReady)
	machine, _ := w.Figure(machineCPU)
	user, _ := w.Figure(postmasterUser)
	system, _ := w.Figure(postmasterSystem)
	had := fmt.Sprintf("the postmaster ran %.0f%% of the time (%.0f%% in user mode, %.0f%% in the kernel), had work but no CPU for %.0f%%, and nothing to do for %.0f%%",
		ran, user, system, ready, max(100-ran-ready, 0))
	busy := fmt.Sprintf("the machine's CPUs were %.0f%% busy", machine)
	switch {
	case ran >= 90:
		return had + ": its one thread is saturated"
	case ran+ready >= 90:
		return had + ", and " + busy + ": the machine is saturated, and the postmaster only with it"
	case machine >= 90:
		return had + ", and " + busy + ": clients and backends wait for their own turn on a CPU more than for the postmaster"
	default:
		return had + ", and " + busy + ": neither is saturated"
	}
}

// pageTables returns the size of a process's page tables in kB.
func pageTables(pid int) (float64, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmPTE:"); ok {
			kB, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kB, err == nil
		}
	}
	return 0, false
}
