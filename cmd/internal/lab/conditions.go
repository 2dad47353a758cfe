package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
)

// Conditions say what else the machine had to do while a scenario ran. What the system does not tell is left out.
type Conditions struct {
	LoadBefore *float64 `json:"load_average_before,omitempty"`
	LoadDuring *float64 `json:"load_average_during,omitempty"` // the highest, which includes the lab's own load
	// Others is how many cores other programs used on average, and OthersMost at most, over a few seconds. Time that a hypervisor gave to other
	// machines counts. They are left out if the server was not a private one, because its processes can't be told from others.
	Others     *float64 `json:"cores_used_by_others,omitempty"`
	OthersMost *float64 `json:"cores_used_by_others_at_most,omitempty"`
	Disturbed  bool     `json:"disturbed"`     // other load has probably made the figures worse
	Why        string   `json:"why,omitempty"` // it is disturbed
}

const (
	disturbedFrom     = 0.1 // of the cores, on average
	disturbedMostFrom = 0.5 // of the cores, over conditionsEvery
	conditionsEvery   = 5 * time.Second
)

// judge says whether the figures can be trusted. The load average looks back: it only counts where it is not known what others have used. rested is false if the load
// average before may be that of an earlier scenario.
func (c *Conditions) judge(cores int, rested bool) {
	all := float64(cores)
	switch {
	case c.Others == nil && rested && c.LoadBefore != nil && *c.LoadBefore > all:
		c.Why = fmt.Sprintf("the load average was %s before it started, on %d cores", Number(*c.LoadBefore), cores)
	case c.Others != nil && *c.Others > disturbedFrom*all:
		c.Why = fmt.Sprintf("other programs used %s of %d cores meanwhile", Number(*c.Others), cores)
	case c.OthersMost != nil && *c.OthersMost > disturbedMostFrom*all:
		c.Why = fmt.Sprintf("other programs used %s of %d cores for some seconds", Number(*c.OthersMost), cores)
	}
	c.Disturbed = c.Why != ""
}

// Busy says that the machine is busy before a run starts, or returns "".
func Busy() string {
	c := Conditions{LoadBefore: loadAverage()}
	c.judge(runtime.NumCPU(), true)
	return c.Why
}

// watchConditions observes the machine until the returned function is called, which returns what it has seen. It may be called again.
func watchConditions(ctx context.Context, private, rested bool) (end func() Conditions) {
	var c Conditions
	c.LoadBefore = loadAverage()
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with watching; end waits for it
		defer close(done)
		begun := time.Now()
		first, ok := foreignTime()
		last, at := first, begun
		note := func() {
			if now := loadAverage(); now != nil && (c.LoadDuring == nil || *now > *c.LoadDuring) {
				c.LoadDuring = now
			}
			now, known := foreignTime()
			if ok = ok && known; !ok || !private {
				return
			}
			cores := func(used, passed time.Duration) *float64 {
				v := round(max(used, 0).Seconds() / max(passed, time.Millisecond).Seconds())
				return &v
			}
			c.Others = cores(now-first, time.Since(begun))
			if passed := time.Since(at); passed >= conditionsEvery/2 { // less would say nothing
				if most := cores(now-last, passed); c.OthersMost == nil || *most > *c.OthersMost {
					c.OthersMost = most
				}
				last, at = now, time.Now()
			}
		}
		for sleep.For(watching, conditionsEvery) {
			note()
		}
		note()
	}()
	return func() Conditions {
		stop()
		<-done
		c.judge(runtime.NumCPU(), rested)
		return c
	}
}

// loadAverage returns the load average of the last minute.
func loadAverage() *float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	fields := strings.Fields(string(text))
	if len(fields) == 0 {
		return nil
	}
	v, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return nil
	}
	return &v
}

// foreignTime returns the CPU time that programs other than this process and its descendants have used, and that a hypervisor has given to other
// machines. It counts time in user mode only: what the kernel does, for example for the network, can't be told apart. It is the machine's total less
// this process's part, because programs in other containers may be invisible.
func foreignTime() (time.Duration, bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(first) // cpu user nice system idle iowait irq softirq steal …
	if len(fields) < 9 {
		return 0, false
	}
	var ticks int64
	for _, i := range []int{1, 2, 8} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, false
		}
		ticks += n
	}
	own, ok := ownUserTicks()
	const perSecond = 100 // USER_HZ, the same on every Linux
	return time.Duration(ticks-own) * time.Second / perSecond, ok
}

// ownUserTicks returns the time in user mode of this process, its descendants, and those that have ended.
func ownUserTicks() (ticks int64, ok bool) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, false
	}
	type process struct{ parent, ticks int64 }
	all := make(map[int64]process, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended, and its parent has its time
		}
		pid, err := strconv.ParseInt(filepath.Base(filepath.Dir(file)), 10, 64)
		end := bytes.LastIndexByte(text, ')') // pid (name) state ppid …; the name may contain anything
		if err != nil || end < 0 {
			continue
		}
		fields := strings.Fields(string(text[end+1:]))
		if len(fields) < 15 {
			continue
		}
		number := func(i int) int64 { // field i of proc(5), from 1
			n, _ := strconv.ParseInt(fields[i-3], 10, 64)
			return n
		}
		all[pid] = process{number(4), number(14) + number(16)}
	}
	self := int64(os.Getpid())
	for pid, p := range all {
		for up, steps := pid, 0; up > 1 && steps < 64; up, steps = all[up].parent, steps+1 {
			if up == self {
				ticks += p.ticks
				break
			}
		}
	}
	_, ok = all[self]
	return ticks, ok
}
