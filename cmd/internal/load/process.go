package load

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// ServerCPU returns the CPU time of a private server's processes, including those that have ended; false if there is no /proc or the server is
// not a private one.
func (d *Database) ServerCPU() (time.Duration, bool) {
	if d.Server == nil {
		return 0, false
	}
	return CPUOf(d.Server.PID())
}

// CPUOf returns the CPU time of a postmaster and its children, including those that have ended; false if there is no /proc.
func CPUOf(postmaster int) (time.Duration, bool) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(files) == 0 {
		return 0, false
	}
	var ticks int64
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid …; the name may contain anything.
		end := bytes.LastIndexByte(text, ')')
		if end < 0 {
			continue
		}
		fields := bytes.Fields(text[end+1:])
		if len(fields) < 15 {
			continue
		}
		number := func(i int) int64 { // field i of proc(5), from 1
			n, _ := strconv.ParseInt(string(fields[i-3]), 10, 64)
			return n
		}
		switch {
		case filepath.Base(filepath.Dir(file)) == strconv.Itoa(postmaster):
			ticks += number(14) + number(15) + number(16) + number(17) // including its ended children
		case number(4) == int64(postmaster):
			ticks += number(14) + number(15)
		}
	}
	const perSecond = 100 // USER_HZ, the same on every Linux
	return time.Duration(ticks) * time.Second / perSecond, true
}

// OwnRSS returns the resident memory of this process: the current value from /proc, or else its maximum.
func OwnRSS() (int64, bool) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return mostRSS()
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err == nil
}
