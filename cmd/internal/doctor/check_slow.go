package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/adverse"
)

// quickCall matches calls of Weir that normally take milliseconds, whatever the log contains. Calls that wait on purpose are excluded.
var quickCall = regexp.MustCompile(`(?i)\bweir\.(_claim|heartbeat|_promote|_?record)\s*\(`)

const (
	slowCall   = 250 * time.Millisecond
	slowSeen   = 2        // calls, or more: a single one may be a coincidence
	slowShare  = 0.1      // of the samples
	slowQueues = slowCall // of weir.queues(), which the doctor calls itself
)

// checkSlow detects calls of Weir that are slow on this server, whatever the reason, and the settings that may cause it.
func checkSlow(ctx context.Context, l *inspection) (result, error) {
	if !l.server.Weir {
		return absent, nil
	}
	type call struct {
		function string
		longest  float64
	}
	calls := map[string]call{} // by session and start
	waits := map[string]int{}
	lost, samples := 0.0, 0
	for _, sample := range l.view.samples {
		seen := false
		for _, s := range sample.Sessions {
			m := quickCall.FindStringSubmatch(s.Query)
			if m == nil || s.State != "active" || seconds(s.Running) < slowCall {
				continue
			}
			seen = true
			lost += sample.Weight.Seconds()
			// Starts within the same tenth of a second belong to the same call, because a slow call lasts longer than that.
			start := sample.At.Add(-seconds(s.Running)).Round(100 * time.Millisecond)
			key := fmt.Sprint(s.PID, start.UnixMilli())
			calls[key] = call{m[1], max(calls[key].longest, s.Running)}
			waits[Event{s.WaitType, s.Wait}.String()]++
		}
		if seen {
			samples++
		}
	}
	took, err := time.Duration(0), error(nil)
	for range slowSeen {
		begin := l.session.now()
		_, err = readQueues(ctx, l.session)
		if took = l.session.now().Sub(begin); took < slowQueues {
			break
		}
	}
	r, permitted, err := unless(err, "how long weir.queues() takes", "the role weir_operate")
	if err != nil {
		return r, err
	}
	slowList := permitted && took >= slowQueues
	slowCalls := len(calls) >= slowSeen && float64(samples) >= slowShare*float64(len(l.view.samples))
	if !slowCalls && !slowList {
		r.healthy = fmt.Sprintf("Weir's own calls are fast: %s of claims, heartbeats and records took %s or longer.", many(int64(len(calls)), "call"), span(slowCall))
		return r, nil
	}
	severity := Info
	if slowCalls {
		severity = Warning
	}
	f := l.finding(WeirSlow, severity, per(lost, l.view.duration()), samples)
	f.Summary = fmt.Sprintf("weir.queues() takes %s; it normally takes milliseconds.", span(took))
	if slowCalls {
		counts, longest := map[string]int{}, 0.0
		for _, c := range calls {
			counts["weir."+c.function]++
			longest = max(longest, c.longest)
		}
		f.Summary = fmt.Sprintf("Weir's own calls are slow on this server: up to %s or more; they normally take milliseconds.", span(seconds(longest)))
		f.add(`SELECT pid, clock_timestamp() - query_start, wait_event_type, wait_event, query FROM pg_stat_activity WHERE state = 'active' AND query ~ 'weir\.(_claim|heartbeat|_promote|_?record)'`,
			"%s seen running for %s or longer: %s", many(int64(len(calls)), "call"), span(slowCall), ranked(counts, total(counts), func(s string) string { return s }))
		f.add("", "what they were doing: %s", ranked(waits, total(waits), func(s string) string { return s }))
	}
	if permitted {
		f.add("SELECT * FROM weir.queues()", "weir.queues() took %s", span(took))
	}
	if err := addAdverse(ctx, l, &f); err != nil {
		r.unseen = append(r.unseen, fmt.Sprintf("which settings make Weir's calls slow: %v", err))
	}
	f.Now = "Reset the settings that the evidence names for the role of Weir's workers: ALTER ROLE … RESET …; otherwise check what the calls wait for."
	f.ForGood = "Run weir migrate up after an upgrade of Weir: its functions set what they need. Give the server dedicated CPUs and a dedicated disk."
	r.findings = append(r.findings, f)
	return r, nil
}

// addAdverse adds the settings of the server, its databases, its roles and Weir's functions that make calls slow. Settings of the doctor's own
// session are excluded.
func addAdverse(ctx context.Context, l *inspection, f *Finding) error {
	type row struct{ Name, Value, Of string }
	rows, err := list[row](ctx, l.session, `
SELECT s.name, s.setting, 'the server'::text FROM pg_settings s WHERE s.source NOT IN ('client', 'session', 'user', 'database', 'database user')
UNION ALL
SELECT split_part(c.text, '=', 1), substr(c.text, strpos(c.text, '=') + 1), coalesce('role ' || r.setrole::regrole::text, 'the database')
FROM pg_db_role_setting r CROSS JOIN LATERAL unnest(r.setconfig) c(text)
WHERE r.setdatabase IN (0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
LIMIT 5000`)
	if err != nil {
		return err
	}
	for _, r := range rows {
		for _, s := range adverse.Judge(map[string]string{r.Name: r.Value}) {
			if s.Slows() {
				f.add("SHOW "+r.Name, "%s has %s", r.Of, s)
			}
		}
	}
	// A function that can be inlined has no settings on purpose: it becomes part of statements of its callers, which have theirs.
	open, err := scalars[string](ctx, l.session, `SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language g ON g.oid = p.prolang
WHERE n.nspname = 'weir' AND p.prokind = 'f' AND NOT coalesce(p.proconfig @> ARRAY['jit=off'], false)
  AND NOT (g.lanname = 'sql' AND p.proconfig IS NULL AND p.provolatile <> 'v' AND NOT p.prosecdef AND NOT p.proretset) ORDER BY 1 LIMIT 100`)
	if err == nil && len(open) > 0 {
		f.add(`SELECT oid::regprocedure, proconfig FROM pg_proc WHERE pronamespace = 'weir'::regnamespace`,
			"statements of %s may be compiled on each call, for want of SET jit = off: %s", many(int64(len(open)), "function"), strings.Join(open[:min(3, len(open))], ", "))
	}
	return err
}
