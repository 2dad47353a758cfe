package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// By then another worker has fenced a silent one.
const silentLong = 5 * time.Second

// checkWorkers detects workers that are silent for longer than their lease, and whose jobs no other worker rescues.
func checkWorkers(ctx context.Context, l *inspection) (result, error) {
	if !l.server.Weir {
		return absent, nil
	}
	workers, err := readWorkers(ctx, l.session)
	if r, ok, err := unless(err, "Weir's workers", "the role weir_operate"); !ok {
		return r, err
	}
	silent, alive := silentOf(workers)
	for until := l.session.now().Add(silentLong); len(silent) > 0 && l.session.now().Before(until); {
		if err := l.session.pause(ctx, silentLong/10); err != nil {
			return result{}, err
		}
		if workers, err = readWorkers(ctx, l.session); err != nil {
			return result{}, err
		}
		silent, alive = silentOf(workers)
	}
	switch {
	case len(silent) == 0 && alive == 0:
		return healthy("No worker of Weir runs, and none is silent.")
	case len(silent) == 0:
		return healthy("Weir's %s: all alive.", many(alive, "worker"))
	}
	var kept *string
	var queues []string
	ids := make([]int32, len(silent))
	for i, w := range silent {
		ids[i] = w.ID
		queues = append(queues, w.Queues...)
		if kept == nil {
			kept = w.Reason
		}
	}
	held, err := readHeld(ctx, l.session, ids)
	if r, ok, err := unless(err, "jobs of silent workers", "the role weir_work"); !ok {
		return r, err
	}
	all := heldCount{}
	for _, h := range held {
		all = heldCount{Jobs: all.Jobs + h.Jobs, AtLeast: h.AtLeast}
	}
	severity := Warning
	rescue := "the workers that are alive have not taken over their jobs during this run"
	if alive == 0 {
		severity, rescue = Critical, "no worker is alive to take over their jobs"
	}
	f := l.finding(WorkerDead, severity, 0, 1)
	f.Samples, f.queues = 1, queues
	f.Summary = fmt.Sprintf("%s silent for longer than the lease, with %s running: %s.", isAre(len(silent), "worker"), all, rescue)
	const limit = 5
	for _, w := range silent[:min(len(silent), limit)] {
		own := heldCount{AtLeast: all.AtLeast}
		if i := slices.IndexFunc(held, func(h heldCount) bool { return h.Worker == w.ID }); i >= 0 {
			own = held[i]
		}
		fact := fmt.Sprintf("worker %d (%s): last heartbeat at %s, %s running", w.ID, w.Name, w.SeenAt.UTC().Format(time.RFC3339), own)
		if w.Reason != nil {
			fact += "; " + *w.Reason
		}
		f.add("SELECT * FROM weir.workers() WHERE state = 'silent'", "%s", fact)
	}
	limits, err := readLimits(ctx, l.session, ids)
	if err != nil {
		return result{}, err
	}
	for _, q := range limits {
		if q.Running > 0 && q.Held > 0 {
			f.add("SELECT * FROM weir.limits() WHERE room = 0", "queue %s is at its limit, %d of %d running, and silent workers hold %d of these slots until they are fenced", q.Queue, q.RunningNow, q.Running, q.Held)
		}
	}
	f.Now = "Check whether the process still runs, and start a worker, which takes over the jobs; without one, run CALL weir.chores() twice a second for the length of the lease."
	if kept != nil {
		f.Now = "A prepared transaction keeps a worker from being fenced, because what it has recorded is undecided: " + *kept + "."
	}
	f.ForGood = "Let a supervisor restart workers, and give a worker a lease longer than its longest pause. Never prepare a transaction that has called weir._record or weir.heartbeat."
	return found(f)
}

// silentOf returns the silent workers, and the number of live ones.
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
