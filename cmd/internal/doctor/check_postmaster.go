package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Limits for the postmaster's answer, and for sessions per second. On a busy machine the child that answers waits for a CPU, so a late answer
// alone does not prove that the postmaster is saturated.
const (
	answerLate      = 20 * time.Millisecond
	answerTooLate   = 100 * time.Millisecond
	answerVeryLate  = time.Second
	stormSessions   = 20.0 // started per second
	stormForks      = 50.0
	busyPostmaster  = 0.03    // of a core: about 100 forks a second
	busyLoop        = 0.6     // of the time, in which the postmaster works or waits for a CPU: in storms it is nearly all of the time, below them less than half
	hardAtWork      = 0.15    // of a core, with which it is the postmaster that takes the machine's time, and not others
	largePageTables = 1 << 20 // bytes
	fewAtWork       = 2.0     // active sessions, which leave a CPU free for the child that answers
)

const seeSessions = `SELECT sum(sessions) FROM pg_stat_database -- twice, a few seconds apart`

// checkPostmaster detects a postmaster that cannot fork as fast as clients connect. It accepts, forks and reaps in one
// loop. No view shows this; only a new connection's wait does.
func checkPostmaster(ctx context.Context, l *inspection) (result, error) {
	if l.server.relayed {
		return result{unseen: []string{"how fast the postmaster answers, and which clients wait at the pooler that answers in its place: connect to the server itself"}, blind: true}, nil
	}
	answers := l.view.probes
	if len(answers) == 0 {
		return result{unseen: []string{"how fast the postmaster answers: no probe has completed"}}, nil
	}
	var took []time.Duration
	late, failed := 0, ""
	for _, p := range answers {
		if p.Failed != "" {
			failed = p.Failed
			if p.Took < answerVeryLate {
				continue // refused immediately: unreachable, not slow
			}
		}
		took = append(took, p.Took)
		if p.Took >= answerLate {
			late++
		}
	}
	if len(took) == 0 {
		return result{unseen: []string{"how fast the postmaster answers: " + failed}}, nil
	}
	slices.Sort(took)
	median, slowest := took[len(took)/2], took[len(took)-1]
	sessions := max(0, l.rate(func(c *counters) int64 { return c.Sessions }))
	forks, forksKnown := forkRate(l.view.samples)
	cpu, cpuKnown := l.shareOfTime(func(c *counters) *time.Duration { return c.postmasterCPU })
	parallel, parallelHow, _ := parallelRate(l)
	busy, busyKnown := l.shareOfTime(func(c *counters) *time.Duration { return c.postmasterBusy })

	// Clients that never log in are not counted. Then the evidence is the postmaster's own CPU time, or that no other session is active.
	storm := sessions >= stormSessions || parallel >= stormSessions || cpuKnown && cpu >= hardAtWork
	if !storm && median >= answerTooLate {
		if why, err := l.starved(ctx, median); err != nil || why != "" {
			return result{unseen: []string{"whether the postmaster keeps up with new connections: " + why}}, err
		}
	}
	if cpuKnown {
		storm = storm || cpu >= busyPostmaster
	} else {
		storm = storm || forksKnown && forks >= stormForks || median >= answerTooLate && l.waits.Rate(CPU) < fewAtWork
	}
	tooLate := answerTooLate
	if !busyKnown { // then a single late answer may be the machine's
		tooLate = answerVeryLate
	}
	onTime := slowest < tooLate && median < answerLate
	idle := busyKnown && busy < busyLoop
	if onTime || !storm || idle {
		loop := ""
		if !onTime && storm {
			loop = fmt.Sprintf(" It has nothing to do for %s of the time: late answers wait for a CPU, not for the postmaster.", shareOf(1-busy, 1))
		}
		return healthy("The postmaster answers in %s (median of %s, slowest %s), at %s new sessions/s.%s",
			span(median), many(len(took), "probe"), span(slowest), figure(sessions), loop)
	}
	// By Little's law, the average number of waiting connections is rate times wait.
	var sum time.Duration
	for _, t := range took {
		sum += t
	}
	mean := sum / time.Duration(len(took))
	begun, what := sessions, "new sessions"
	if sessions < stormSessions && forksKnown {
		begun, what = forks, "new processes"
	}
	queued := begun * mean.Seconds()
	pace := ""
	if begun >= 1 {
		pace = fmt.Sprintf(", at %s %s/s", figure(begun), what)
	}
	severity := Warning
	if slowest >= answerVeryLate || median >= answerTooLate && queued >= crippling {
		severity = Critical
	}
	f := l.finding(PostmasterSaturated, severity, queued, late)
	f.Samples = len(took)
	f.Summary = fmt.Sprintf("New connections wait for the postmaster, which forks one backend after another: its first byte takes %s (at worst %s)%s.",
		span(mean), span(slowest), pace)
	f.add("", "answer to an SSLRequest: median %s, mean %s, slowest %s, of %s; %d later than %s",
		span(median), span(mean), span(slowest), many(len(took), "probe"), late, span(answerLate))
	if failed != "" {
		f.add("", "a probe got no answer: %s", failed)
	}
	f.add(seeSessions, "%s sessions logged in per second, all databases", figure(sessions))
	if pace != "" {
		f.add("", "at %s %s/s and %s each, about %s wait on average", figure(begun), what, span(mean), figure(queued))
	} else {
		f.add("", "no new client gets to log in, so their number can't be counted")
	}
	if forksKnown {
		f.add(`SELECT pid, backend_start FROM pg_stat_activity ORDER BY backend_start DESC LIMIT 2`,
			"process ids of new sessions grow by %s/s, the number of processes and threads started on the machine", figure(forks))
	}
	f.add(parallelHow, "parallel workers launched: %s/s", figure(parallel))
	huge := !cpuKnown
	if cpuKnown {
		f.add(fmt.Sprintf("-- in a shell: pidstat -p %d 1", l.local.postmaster), "the postmaster (pid %d) uses %s of a core", l.local.postmaster, shareOf(cpu, 1))
		if busyKnown {
			f.add(fmt.Sprintf("-- in a shell: cat /proc/%d/schedstat -- twice: nanoseconds at work, and waiting for a CPU", l.local.postmaster), "it works, or waits for a CPU, %s of the time", shareOf(min(busy, 1), 1))
		}
		if size, ok := l.local.pageTables(); ok {
			f.add(fmt.Sprintf("-- in a shell: grep VmPTE /proc/%d/status", l.local.postmaster), "its page tables have %s MB", figure(float64(size)/1e6))
			huge = size >= largePageTables
		}
	} else {
		f.add("", "the postmaster's CPU time and page tables can be read only on its own machine")
	}
	f.Now = "Let clients wait for a random time before they reconnect, and keep existing connections open."
	f.ForGood = "Put a connection pooler in front, start fleets with jitter, and keep parallel queries out of peak times (max_parallel_workers_per_gather). "
	if huge {
		f.ForGood += "With large shared_buffers, huge_pages make a fork cheaper. "
	}
	f.ForGood += "Weir's hub serves any number of subscribers over its few connections."
	f.Lab = "weir lab storm"
	return found(f)
}

// forkRate returns the growth of process ids per second, from the newest session of one sample to that of a later one. The kernel assigns ids
// in order, to threads too, and wraps around at the maximum: a negative or absurd difference is ignored.
func forkRate(samples []Sample) (float64, bool) {
	var sum, seconds float64
	for i := 1; i < len(samples); i++ {
		a, b := samples[i-1], samples[i]
		if a.NewestPID == 0 || b.NewestPID == a.NewestPID || !b.NewestFrom.After(a.NewestFrom) {
			continue
		}
		stride, took := float64(b.NewestPID)-float64(a.NewestPID), b.NewestFrom.Sub(a.NewestFrom).Seconds()
		const absurd = 100_000 // per second
		if stride <= 0 || stride/took > absurd {
			continue
		}
		sum, seconds = sum+stride, seconds+took
	}
	const least = 0.2 // a shorter time says little
	if seconds < least {
		return 0, false
	}
	return sum / seconds, true
}

// shareOfTime returns for which share of the time between the two readings a duration has grown; false if it was not read.
func (l *inspection) shareOfTime(get func(*counters) *time.Duration) (float64, bool) {
	first, last := get(l.first), get(l.last)
	if first == nil || last == nil {
		return 0, false
	}
	return per((*last - *first).Seconds(), l.span()), true
}

// parallelRate returns the parallel workers started per second: counted from PostgreSQL 18 on, before that those that samples show.
func parallelRate(l *inspection) (rate float64, query string, counted bool) {
	if l.first.Parallel != nil && l.last.Parallel != nil {
		return l.rate(func(c *counters) int64 { return *c.Parallel }), "SELECT sum(parallel_workers_launched) FROM pg_stat_database -- twice", true
	}
	seen := map[uint32]bool{}
	l.view.each(func(s Session, _ float64) {
		if s.Kind == "parallel worker" {
			seen[s.PID] = true
		}
	})
	return per(float64(len(seen)), l.view.duration()), "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker' -- a lower bound", false
}
