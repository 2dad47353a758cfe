package doctor

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

// local reads the postmaster's figures in /proc if the server runs on this machine. Otherwise, and on systems without /proc, it knows
// nothing, which is not an error.
type local struct {
	postmaster int // its pid; 0 if not on this machine
	tape       *tape
}

// findLocal takes a backend's parent for the postmaster, after checking that the backend's pid belongs to this machine.
func findLocal(server Server, t *tape) *local {
	return &local{recall(t, "postmaster", func() int { return findPostmaster(server) }), t}
}

func findPostmaster(server Server) int {
	if server.address != nil {
		at, err := netip.ParseAddr(*server.address)
		if err != nil || !at.IsLoopback() {
			return 0
		}
	}
	name, err := os.ReadFile("/proc/" + strconv.Itoa(int(server.backend)) + "/cmdline")
	if err != nil || !strings.HasPrefix(string(name), "postgres: ") || !strings.Contains(string(name), server.User) {
		return 0
	}
	stat, ok := processStat(int(server.backend))
	if !ok || stat.parent <= 1 {
		return 0
	}
	return stat.parent
}

// clockTicks is the kernel's unit of CPU time, the same on every Linux that Go runs on.
const clockTicks = 100

type procStat struct {
	parent int
	cpu    time.Duration
}

// processStat reads /proc/pid/stat. The process name is in parentheses and may contain any character, so fields are counted from the last parenthesis.
func processStat(pid int) (procStat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	fields := strings.Fields(rest) // field 3, the state, is the first
	if len(fields) < 13 {
		return procStat{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	user, err2 := strconv.Atoi(fields[11])
	system, err3 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil || err3 != nil {
		return procStat{}, false
	}
	return procStat{parent: parent, cpu: time.Duration(user+system) * time.Second / clockTicks}, true
}

// cpu returns the postmaster's CPU time so far; false if it is not on this machine.
func (l *local) cpu() (time.Duration, bool) {
	cpu := recall(l.tape, "CPU time of the postmaster", func() *time.Duration {
		stat, ok := processStat(l.postmaster)
		if l.postmaster == 0 || !ok {
			return nil
		}
		return &stat.cpu
	})
	if cpu == nil {
		return 0, false
	}
	return *cpu, true
}

// busy returns for how long the postmaster has had something to do so far: its CPU time, and for how long it waited for a CPU; false if it is not on this machine, or the
// kernel does not count the second.
func (l *local) busy() (time.Duration, bool) {
	busy := recall(l.tape, "time in which the postmaster was not idle", func() *time.Duration {
		if l.postmaster == 0 {
			return nil
		}
		text, err := os.ReadFile("/proc/" + strconv.Itoa(l.postmaster) + "/schedstat")
		fields := strings.Fields(string(text))
		if err != nil || len(fields) < 2 {
			return nil
		}
		ran, err1 := strconv.ParseInt(fields[0], 10, 64)
		waited, err2 := strconv.ParseInt(fields[1], 10, 64)
		if err1 != nil || err2 != nil || ran == 0 {
			return nil
		}
		busy := time.Duration(ran + waited)
		return &busy
	})
	if busy == nil {
		return 0, false
	}
	return *busy, true
}

// pageTables returns the size of the postmaster's page tables, which every fork copies, in bytes.
func (l *local) pageTables() (int64, bool) {
	size := recall(l.tape, "page tables of the postmaster", func() int64 { size, _ := l.readPageTables(); return size })
	return size, size > 0
}

func (l *local) readPageTables() (int64, bool) {
	if l.postmaster == 0 {
		return 0, false
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(l.postmaster) + "/status")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmPTE:"); ok {
			kB, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kB * 1024, err == nil
		}
	}
	return 0, false
}
