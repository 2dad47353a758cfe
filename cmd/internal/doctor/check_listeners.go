package doctor

import (
	"context"
	"fmt"
	"time"
)

// No view lists the channels of other sessions. A session that only listens has LISTEN as its last statement.
const seeListeners = `SELECT datname, count(*) FROM pg_stat_activity WHERE state = 'idle' AND query ~* '^\s*(un)?listen\M' GROUP BY datname`

const listenersSQL = `
SELECT count(*) FROM pg_stat_get_activity(NULL) a
WHERE a.state = 'idle' AND a.query ~* '^\s*(un)?listen\M' AND a.application_name IS DISTINCT FROM '` + ApplicationName + `'`

// A wake-up costs a signal, a transaction and a read of the queue. weir lab listeners measures 10 to 20 µs of CPU time.
const (
	wakeCost      = 15 * time.Microsecond
	wakesCore     = 1.0 // cores spent on wake-ups
	manyListeners = 5
	wakesFew      = 190000 // from PostgreSQL 19 on, a notification wakes only the listeners of its channel
	pageSize      = 8192
	entrySize     = 40 // bytes of a notification with a short channel and payload
)

// checkListeners detects idle sessions that are awake. Between statements a session sleeps in ClientRead. A listening session is woken by
// every notification in its database, on any channel; it reads the notification and sleeps again.
func checkListeners(ctx context.Context, l *inspection) (result, error) {
	counts, err := scalars[int64](ctx, l.session, listenersSQL)
	if err != nil {
		return result{}, err
	}
	listeners := counts[0]
	others := map[uint32]bool{} // that were woken, although their last statement is another one
	awake := l.waits.Rate(Woken)
	peak, awakeTotal, byName := 0, 0, 0
	for _, s := range l.view.samples {
		n := 0
		for _, session := range s.Sessions {
			if session.Class == Woken {
				n++
				if listens.MatchString(session.Query) {
					byName++
				} else {
					others[session.PID] = true
				}
			}
		}
		peak = max(peak, n)
		awakeTotal += n
	}
	queue := l.waits.Rate(NotifyQueue)
	pages := l.rate(func(c *counters) int64 { return c.NotifyPages })
	notified := pages * pageSize / entrySize
	if notified >= wokenLeast {
		if err := findWoken(ctx, l, others); err != nil {
			return result{}, err
		}
	}
	named := listeners
	listeners += int64(len(others))
	wakes := notified * float64(listeners)
	if l.server.VersionNum >= wakesFew {
		wakes = 0
	}
	spent := wakes * wakeCost.Seconds()
	if max(awake, queue, spent) < noticeable || listeners == 0 && byName == 0 {
		return healthy("Idle listeners are asleep: %s whose last statement is LISTEN, %s others seen awake, %s awake on average.",
			many(named, "session"), figure(float64(len(others))), figure(awake))
	}
	lost := max(awake+queue, spent)
	severity := Info
	switch {
	case lost >= wakesCore && listeners >= manyListeners:
		severity = Critical
	case lost >= wakesCore/4 && listeners >= manyListeners:
		severity = Warning
	}
	f := l.finding(ListenersWoken, severity, lost, l.view.seen(Woken, NotifyQueue))
	f.Summary = fmt.Sprintf("Every notification wakes every listener of the database: about %s notifications/s wake %s each.",
		figure(notified), many(listeners, "idle session"))
	f.add(seeListeners, "%s idle with LISTEN or UNLISTEN as the last statement", many(named, "session"))
	if len(others) > 0 {
		f.add(`SELECT pid, state_change, wait_event, query FROM pg_stat_activity WHERE state = 'idle' AND wait_event_type IS DISTINCT FROM 'Client'`,
			"%s more seen awake that have run another statement since LISTEN", many(len(others), "session"))
	}
	f.add(`SELECT pid, wait_event_type, wait_event FROM pg_stat_activity WHERE state = 'idle' AND wait_event_type IS DISTINCT FROM 'Client'`,
		"idle and awake: %s in %s, %d at most at once", many(awakeTotal, "session"), many(len(l.view.samples), "sample"), peak)
	if queue > 0 {
		f.add("", "%s for the notification queue itself (%s)", sessionsThat(queue, "waits", "wait"), eventsOf(l.waits, NotifyQueue))
	}
	f.add(`SELECT name, blks_zeroed FROM pg_stat_slru WHERE lower(name) = 'notify'`,
		"about %s notifications/s: the queue grows by %s pages of 8 kB/s, of some %d short notifications each; %s transactions/s write",
		figure(notified), figure(pages), pageSize/entrySize, figure(l.writes()))
	f.add("", "that is %s wake-ups/s for %s: about %s of CPU time a second, at %d µs each", figure(wakes), many(listeners, "listener"),
		span(seconds(spent)), wakeCost.Microseconds())
	f.add(`SELECT pg_notification_queue_usage()`, "the queue is %s full", percent(l.last.NotifyUsage))
	f.Now = "End listeners that nobody needs, and let the threads of a process share one connection for all channels."
	f.ForGood = "Listen once per host and distribute notifications inside the application, or connect listeners to Weir's hub, which wakes only those that subscribed."
	f.Lab = "weir lab listeners"
	return found(f)
}

func percent(x float64) string {
	if x > 0 && x < 0.01 {
		return fmt.Sprintf("%.2g%%", 100*x)
	}
	return fmt.Sprintf("%.0f%%", 100*x)
}

// eventsOf lists the events of a class by time.
func eventsOf(w Waits, class Class) string {
	counts, all := map[string]int{}, 0
	for _, e := range w.Top {
		if e.Class == class {
			counts[e.Event] = int(e.Seconds * 1000)
			all += counts[e.Event]
		}
	}
	return ranked(counts, all, func(s string) string { return s })
}
