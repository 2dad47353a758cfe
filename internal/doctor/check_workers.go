package doctor

import (
	"context"
	"fmt"
	"time"
)

// checkWorkers looks for workers that are silent past their lease, and whose jobs nobody has rescued yet.
func checkWorkers(ctx context.Context, l *look) (result, error) {
	if !l.server.Weir {
		return absent, nil
	}
	workers, err := readWorkers(ctx, l.session)
	if r, ok, err := unless(err, "Weir's workers", "the role weir_operate"); !ok {
		return r, err
	}
	var silent []workerCount
	alive, running := 0, int32(0)
	for _, w := range workers {
		if w.State == "silent" {
			silent = append(silent, w)
			running += w.Running
		} else {
			alive++
		}
	}
	if len(silent) == 0 {
		return well("Weir's %s: all alive.", many(alive, "worker"))
	}
	severity := Warning
	rescue := "another worker gives their jobs to others within seconds"
	if alive == 0 {
		severity, rescue = Critical, "no worker is alive to give their jobs to others"
	}
	f := l.finding(WorkerDead, severity, 0, 1)
	f.Samples = 1
	f.Summary = fmt.Sprintf("%s silent past the lease, with %s in hand: %s.", isAre(len(silent), "worker"), many(int64(running), "job"), rescue)
	const most = 5
	for _, w := range silent[:min(len(silent), most)] {
		f.add("SELECT * FROM weir.workers() WHERE state = 'silent'", "worker %d (%s): last heard of %s ago, %s in hand", w.ID, w.Name, span(time.Since(w.SeenAt)), many(int64(w.Running), "job"))
	}
	f.Now = "See whether the process still runs, and start a worker; SELECT weir.rescue() gives the jobs to others without one."
	f.ForGood = "Let a supervisor restart workers, and give a worker a lease longer than its longest pause."
	return found(f)
}

func isAre(n int, word string) string {
	if n == 1 {
		return "1 " + word + " is"
	}
	return many(n, word) + " are"
}
