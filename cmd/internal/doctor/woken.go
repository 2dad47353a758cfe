package doctor

import (
	"context"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	wokenPause  = 100 * time.Millisecond
	wokenRounds = 10
	wokenLeast  = 100.0 // notifications per second, below which nobody is looked for
	wokenTwice  = 3     // times a process must have slept again, to have been woken again and again
)

// idleSQL lists sessions that have been idle for a while and are no listeners by name, and whether they are awake now.
const idleSQL = `
SELECT a.pid, a.wait_event_type IS DISTINCT FROM 'Client' FROM pg_stat_get_activity(NULL) a
WHERE a.state = 'idle' AND a.backend_type = 'client backend' AND a.state_change < clock_timestamp() - interval '1 second' AND a.datid = $1
  AND a.query !~* '^\s*(un)?listen\M' AND a.application_name IS DISTINCT FROM '` + ApplicationName + `' LIMIT 2000`

// findWoken adds idle sessions that something wakes although their last statement is no LISTEN. On the server's own machine the kernel counts how
// often each process has gone to sleep. From elsewhere only those are found that happen to be awake when they are looked at.
func findWoken(ctx context.Context, l *inspection, into map[uint32]bool) error {
	woken, err := asked(l.session.tape, "woken sessions", func() (map[uint32]bool, error) {
		woken := map[uint32]bool{}
		return woken, lookForWoken(ctx, l, woken)
	})
	maps.Copy(into, woken)
	return err
}

func lookForWoken(ctx context.Context, l *inspection, into map[uint32]bool) error {
	type row struct {
		PID   int32
		Awake bool
	}
	var slept map[int32]int64
	for range wokenRounds {
		rows, err := list[row](ctx, l.session, idleSQL, l.server.databaseOID)
		if err != nil {
			return err
		}
		now := map[int32]int64{}
		for _, r := range rows {
			if r.Awake {
				into[uint32(r.PID)] = true
			}
			if times, ok := l.local.slept(int(r.PID)); ok {
				now[r.PID] = times
				if before, known := slept[r.PID]; known && times-before >= wokenTwice {
					into[uint32(r.PID)] = true
				}
			}
		}
		if slept == nil {
			slept = now
		}
		if err := l.session.pause(ctx, wokenPause); err != nil {
			return err
		}
	}
	return nil
}

// slept returns how often a process of the server has gone to sleep; false if it is not on this machine.
func (l *local) slept(pid int) (int64, bool) {
	if l.postmaster == 0 {
		return 0, false
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
