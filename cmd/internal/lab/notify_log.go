package lab

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// notifyInLog is how the server's log names the lock: "database 0" is none, and class 1262 is pg_database.
const notifyInLog = "AccessExclusiveLock on object 0 of class 1262 of database 0"

// quoteNotifyLog lets the writers notify while the server logs waits for locks, and quotes what it logs. A wait is logged once it has lasted
// deadlock_timeout, which is a second by default; here it is half of what a commit takes, because so few writers seldom wait for a second.
func quoteNotifyLog(ctx context.Context, r *run, writers *sessions, flush string, commit *Latency) error {
	if r.site.server == nil {
		r.note("What log_lock_waits shows was not quoted: only the log of a private server can be read.")
		return nil
	}
	before, err := os.Stat(r.site.server.LogPath())
	if err != nil {
		return err
	}
	timeout := 1
	if commit != nil {
		timeout = min(max(int(commit.P50/2), 1), 1000)
	}
	if err := writers.exec(ctx, fmt.Sprintf(`%s; SET log_lock_waits = on; SET deadlock_timeout = %d`, flush, timeout)); err != nil {
		return err
	}
	r.say("reading what log_lock_waits shows")
	lasts := min(r.Duration/5, 2*time.Second)
	until, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	if err := writers.work(ctx, until, load.NewTally(), writeEntry(notifyWays[1].add)); err != nil {
		return err
	}
	if err := writers.exec(ctx, `RESET log_lock_waits; RESET deadlock_timeout`); err != nil {
		return err
	}
	text, err := os.ReadFile(r.site.server.LogPath())
	if err != nil {
		return err
	}
	entry, waits := lockWaits(string(text[min(int(before.Size()), len(text)):]))
	if waits == 0 {
		r.note("The server logged no wait for the lock of NOTIFY in %s, with log_lock_waits = on and deadlock_timeout = %d ms.", lasts, timeout)
		return nil
	}
	r.result.Quotes = append(r.result.Quotes, Quote{
		Of: fmt.Sprintf("The server's log, one of %d waits for this lock that it logged in %s with log_lock_waits = on and deadlock_timeout = %d ms (a wait is logged "+
			"once it has lasted that long)", waits, lasts, timeout),
		Text: entry,
	})
	return nil
}

// lockWaits returns the entry of a log with the longest queue for the lock of NOTIFY, and the number of such entries. An entry is a line that
// says who waits, one with the queue, and one with the statement.
func lockWaits(log string) (entry string, waits int) {
	lines := strings.Split(log, "\n")
	for i, line := range lines {
		if !strings.Contains(line, "still waiting for "+notifyInLog) {
			continue
		}
		waits++
		pid, _, _ := strings.Cut(cmp.Or(after(line, "["), line), "]")
		found := []string{line}
		for _, next := range lines[i+1 : min(i+200, len(lines))] {
			if !strings.Contains(next, "["+pid+"]") {
				continue // another backend's, in between
			}
			if !strings.Contains(next, "DETAIL:") && !strings.Contains(next, "STATEMENT:") {
				break
			}
			found = append(found, next)
		}
		if text := strings.Join(found, "\n"); len(text) > len(entry) {
			entry = text
		}
	}
	return entry, waits
}

// after returns what follows the first separator, or "".
func after(text, separator string) string {
	_, rest, _ := strings.Cut(text, separator)
	return rest
}
