package doctor

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

// local reads the postmaster in /proc, where the server runs on this machine. Elsewhere it knows nothing, which is not
// an error. Only Linux has such files; on other systems they are simply not found.
type local struct {
	postmaster int // its pid; 0: not here
}

// findLocal takes the parent of a backend for the postmaster, once it is sure that the pid means the same here as there.
func findLocal(server Server) *local {
	if server.address != nil {
		at, err := netip.ParseAddr(*server.address)
		if err != nil || !at.IsLoopback() {
			return &local{}
		}
	}
	name, err := os.ReadFile("/proc/" + strconv.Itoa(int(server.backend)) + "/cmdline")
	if err != nil || !strings.HasPrefix(string(name), "postgres: ") || !strings.Contains(string(name), server.User) {
		return &local{}
	}
	stat, ok := processStat(int(server.backend))
	if !ok || stat.parent <= 1 {
		return &local{}
	}
	return &local{postmaster: stat.parent}
}

// clockTicks is the kernel's unit of processor time, the same on every Linux that Go runs on.
const clockTicks = 100

type procStat struct {
	parent int
	cpu    time.Duration
}

// processStat reads /proc/pid/stat. The name is in parentheses and may hold anything, so fields count from the last one.
func processStat(pid int) (procStat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	fields := strings.Fields(rest) // from field 3, the state, on
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

// cpu is what the postmaster has computed so far; false when it is not here.
func (l *local) cpu() (time.Duration, bool) {
	if l.postmaster == 0 {
		return 0, false
	}
	stat, ok := processStat(l.postmaster)
	return stat.cpu, ok
}

// pageTables is the size of its page tables, which every fork copies, in bytes.
func (l *local) pageTables() (int64, bool) {
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
