package doctor

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// trend describes how busy sessions are with one table, in the first and in the second half of a view.
type trend struct {
	sessions      int     // that used it
	before, after float64 // average number of busy ones
	half          time.Duration
}

// busyTrend counts the sessions whose statement names the table. If claims get slower, a queue's consumers spend
// more of their time in them; once all of them are always busy, the queue no longer keeps up.
func busyTrend(v view, table string) trend {
	var t trend
	const least = 20 // fewer samples may be coincidence
	if len(v.samples) < least || table == "" {
		return t
	}
	names := regexp.MustCompile(`(?i)(^|[^\w$])` + regexp.QuoteMeta(table) + `($|[^\w$])`)
	first, last := v.samples[0].At, v.samples[len(v.samples)-1].At
	middle := first.Add(last.Sub(first) / 2)
	pids := map[uint32]bool{}
	var halves [2]struct{ busy, seconds float64 }
	for _, s := range v.samples {
		half := &halves[0]
		if s.At.After(middle) {
			half = &halves[1]
		}
		half.seconds += s.Weight.Seconds()
		for _, session := range s.Sessions {
			if session.State == "active" && session.Kind == "client backend" && names.MatchString(session.Query) {
				half.busy += s.Weight.Seconds()
				pids[session.PID] = true
			}
		}
	}
	if halves[0].seconds == 0 || halves[1].seconds == 0 {
		return t
	}
	return trend{len(pids), halves[0].busy / halves[0].seconds, halves[1].busy / halves[1].seconds, last.Sub(first) / 2}
}

func (t trend) text() string {
	if t.sessions == 0 || t.after == 0 {
		return ""
	}
	change := "as before"
	switch {
	case t.after > t.before*1.2:
		change = "up from " + figure(t.before)
	case t.after < t.before*0.8:
		change = "down from " + figure(t.before)
	}
	return fmt.Sprintf("%s of %s that use it are in such a statement on average, %s %s ago", figure(t.after), many(t.sessions, "session"), change, span(t.half))
}

// saturated reports whether nearly all sessions are busy nearly all the time, and were less busy before.
func (t trend) saturated() bool {
	return t.sessions > 0 && t.after >= 0.8*float64(t.sessions) && t.after > t.before*1.2
}

// full returns how long it takes until all sessions are always busy, if the trend continues; false if there is no such trend.
func (t trend) full() (time.Duration, bool) {
	slope := per(t.after-t.before, t.half)
	if t.sessions == 0 || t.before < noticeable || t.after <= t.before*1.1 || slope <= 0 {
		return 0, false
	}
	return seconds(max(0, float64(t.sessions)-t.after) / slope), true
}

// outlook predicts when a table that serves as a queue will no longer keep up.
func outlook(t sufferer) string {
	// A queue that deletes finished rows shows its backlog; one that keeps them in another state does not.
	if t.outPerSecond > 0 && t.inPerSecond > t.outPerSecond*1.05 {
		return fmt.Sprintf("%s can't keep up: %s rows are inserted per second, and %s deleted", t.qualified(), figure(t.inPerSecond), figure(t.outPerSecond))
	}
	if left, ok := t.busy.full(); ok {
		return fmt.Sprintf("%s keeps up for about %s more if nothing changes: by then all %s are busy with it all the time",
			t.qualified(), span(max(left, time.Second)), many(t.busy.sessions, "session"))
	}
	if t.deadPerSecond > 0 {
		return fmt.Sprintf("%s keeps up for now; its dead rows double in %s", t.qualified(), span(seconds(float64(t.Dead)/t.deadPerSecond)))
	}
	return t.qualified() + " keeps up for now"
}

// slower compares the mean time of the statements that name the suffering tables: now, and over the whole time that
// pg_stat_statements covers. It returns also the statement of which it says that.
func slower(ctx context.Context, l *inspection, sick []sufferer) (fact, text string) {
	if !l.server.Statements {
		return "", ""
	}
	names := make([]string, len(sick))
	for i, t := range sick {
		names[i] = regexp.QuoteMeta(t.Name)
	}
	type row struct {
		ID   int64
		Text string `text:"statement"`
	}
	rows, err := list[row](ctx, l.session, "SELECT s.queryid, min(left(s.query, 300)) FROM "+l.server.statementsSchema+
		".pg_stat_statements s WHERE s.dbid = $1 AND s.query ~* $2 GROUP BY 1 LIMIT 100", l.server.databaseOID, `\m(`+strings.Join(names, "|")+`)\M`)
	if err != nil {
		return "", ""
	}
	type change struct {
		text         string
		before, then float64
		time         float64
	}
	var changes []change
	for _, r := range rows {
		var before, after statementCount
		for key, c := range l.last.Statements {
			if key.Query != r.ID {
				continue
			}
			first := l.first.Statements[key]
			before.Calls, before.Time = before.Calls+first.Calls, before.Time+first.Time
			after.Calls, after.Time = after.Calls+c.Calls-first.Calls, after.Time+c.Time-first.Time
		}
		if before.Calls == 0 || after.Calls == 0 {
			continue
		}
		changes = append(changes, change{shape(r.Text), before.Time / float64(before.Calls), after.Time / float64(after.Calls), after.Time})
	}
	if len(changes) == 0 {
		return "", ""
	}
	worst := slices.MaxFunc(changes, func(a, b change) int { return cmp.Compare(a.time, b.time) })
	return fmt.Sprintf("%s ms a call in these %s, %s ms over all the time before: %s", figure(worst.then), span(l.span()), figure(worst.before), worst.text), worst.text
}
