package doctor

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Limits for the unread part of the notification queue.
const (
	queueNotable = 0.01
	queueFilling = 0.1
	queueNearEnd = 0.5
	queueSome    = 0.0005
)

// Limits for the time until it is full.
const (
	queueFullSoon  = 10 * time.Minute
	queueFullLater = 2 * time.Hour
	centuries      = 1e9 // seconds
)

// tailSuspect is a session that may not read its notifications.
type tailSuspect struct {
	PID                                int32
	Database, Application, State, Wait string
	Age                                float64
	Query                              string `text:"statement"`
	Sure                               bool
}

const tailSQL = `
SELECT a.pid, coalesce(d.datname::text, ''), coalesce(a.application_name, ''), coalesce(a.state, ''), coalesce(a.wait_event, ''), coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8,
       coalesce(left(a.query, 200), ''), a.query ~* '^\s*(un)?listen\M' OR a.wait_event = 'ClientWrite'
FROM pg_stat_get_activity(NULL) a LEFT JOIN pg_database d ON d.oid = a.datid
WHERE a.backend_type = 'client backend' AND a.application_name IS DISTINCT FROM '` + ApplicationName + `'
  AND (a.xact_start < clock_timestamp() - interval '1 second' OR a.wait_event = 'ClientWrite')
ORDER BY 8 DESC, a.xact_start LIMIT 5`

// checkNotifyQueue reports how much of the notification queue is unread. A listener reads only between transactions, and the
// queue's tail is the slowest listener's position. When the queue is full, commits that notify fail.
func checkNotifyQueue(ctx context.Context, l *inspection) (result, error) {
	usage := l.last.NotifyUsage
	grown := usage - l.first.NotifyUsage
	if usage < queueSome {
		return healthy("The notification queue is %s full.", percent(usage))
	}
	suspects, err := list[tailSuspect](ctx, l.session, tailSQL)
	if err != nil {
		return result{}, err
	}
	// Below a hundredth, a burst that is being read looks the same, unless there is somebody who may not read it.
	if usage < queueNotable && (grown <= 0 || len(suspects) == 0) {
		return healthy("The notification queue is %s full.", percent(usage))
	}
	left := time.Duration(math.MaxInt64)
	if grown > 0 {
		left = seconds(min((1-usage)/grown*l.span().Seconds(), centuries))
	}
	severity := Info
	switch {
	case usage >= queueNearEnd, left <= queueFullSoon:
		severity = Critical
	case usage >= queueFilling, left <= queueFullLater:
		severity = Warning
	case usage < queueNotable:
		return healthy("The notification queue is %s full.", percent(usage))
	}
	f := l.finding(NotifyQueueFilling, severity, 0, len(l.view.samples))
	f.Summary = fmt.Sprintf("The notification queue is %s full because a listener does not read it; once it is full, every commit that notifies fails.", percent(usage))
	f.add("SELECT pg_notification_queue_usage()", "%s full, %s more than %s before", percent(usage), percent(max(0, grown)), span(l.span()))
	if grown > 0 {
		f.add("", "at this rate it is full in %s", span(left))
	}
	for _, s := range suspects {
		how := "may hold the tail if it listens, which can't be seen from outside"
		if s.Sure {
			how = "most likely holds the tail"
		}
		f.add(`SELECT pid, state, xact_start, wait_event, query FROM pg_stat_activity WHERE xact_start < now() - interval '1 second' ORDER BY xact_start`,
			"pid %d (%s, database %s, %s for %s, last statement %q) %s", s.PID, orUnnamed(s.Application), s.Database, s.State, span(seconds(s.Age)), shape(s.Query), how)
		f.names(HoldsIt, s.Query)
	}
	f.Now = "End the transaction of the listener that does not read; SELECT pg_terminate_backend(pid) where its owner cannot."
	f.ForGood = "Keep listening sessions out of transactions, and set idle_in_transaction_session_timeout for their role. " +
		"Weir's hub disconnects a slow subscriber without slowing others."
	f.Lab = "weir lab listeners"
	return found(f)
}

func orUnnamed(application string) string {
	if application == "" {
		return "no application name"
	}
	return application
}
