package doctor

import (
	"context"
	"fmt"
	"time"
)

// Whoever rescues has fenced a silent worker by then.
const silentLong = 5 * time.Second

// checkWorkers looks for workers that are silent past their lease, and whose jobs nobody rescues.
func checkWorkers(ctx context.Context, l *look) (result, error) {
	if !l.server.Weir {
		return absent, nil
	}
	workers, err := readWorkers(ctx, l.session)
	if r, ok, err := unless(err, "Weir's workers", "the role weir_operate"); !ok {
		return r, err
	}
	silent, alive := silentOf(workers)
	for until := time.Now().Add(silentLong); len(silent) > 0 && time.Now().Before(until); {
		select {
		case <-time.After(silentLong / 10):
		case <-ctx.Done():
			return result{}, ctx.Err()
		}
		if workers, err = readWorkers(ctx, l.session); err != nil {
			return result{}, err
		}
		silent, alive = silentOf(workers)
	}
	if len(silent) == 0 {
		return well("Weir's %s: all alive.", many(alive, "worker"))
	}
	running, kept := int32(0), (*string)(nil)
	for _, w := range silent {
		running += w.Running
		if kept == nil {
			kept = w.Reason
		}
	}
	severity := Warning
	rescue := "those that are alive did not give their jobs to others while the doctor looked"
	if alive == 0 {
		severity, rescue = Critical, "no worker is alive to give their jobs to others"
	}
	f := l.finding(WorkerDead, severity, 0, 1)
	f.Samples = 1
	f.Summary = fmt.Sprintf("%s silent past the lease, with %s in hand: %s.", isAre(len(silent), "worker"), many(int64(running), "job"), rescue)
	const most = 5
	for _, w := range silent[:min(len(silent), most)] {
		fact := fmt.Sprintf("worker %d (%s): last heard of at %s, %s in hand", w.ID, w.Name, w.SeenAt.UTC().Format(time.RFC3339), many(int64(w.Running), "job"))
		if w.Reason != nil {
			fact += "; " + *w.Reason
		}
		f.add("SELECT * FROM weir.workers() WHERE state = 'silent'", "%s", fact)
	}
	f.Now = "See whether the process still runs, and start a worker, which gives the jobs to others; without one, CALL weir.chores() twice a second for as long as the lease was."
	if kept != nil {
		f.Now = "Of a worker that is kept by a prepared transaction nobody can say what it has recorded: " + *kept + "."
	}
	f.ForGood = "Let a supervisor restart workers, and give a worker a lease longer than its longest pause. No transaction that calls weir._record or weir.heartbeat is for preparing."
	return found(f)
}

// silentOf returns the silent ones, and how many are alive.
func silentOf(workers []workerCount) (silent []workerCount, alive int) {
	for _, w := range workers {
		if w.State == "silent" {
			silent = append(silent, w)
		} else {
			alive++
		}
	}
	return silent, alive
}

func isAre(n int, word string) string {
	if n == 1 {
		return "1 " + word + " is"
	}
	return many(n, word) + " are"
}
