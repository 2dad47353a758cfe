package doctor

import (
	"context"
	"fmt"
	"time"
)

const (
	segmentGrace = 10 * time.Second
	segmentLong  = time.Hour

	carriedAtOnce = 10_000 // waiting jobs
)

// A closed segment's retention starts at its last event. Segments of scheduled jobs are not listed: they have no retention, and wait until
// their jobs are promoted.
const segmentsSQL = `
SELECT s.log, s.segment::integer, extract(epoch FROM clock_timestamp() - s.at)::float8,
       extract(epoch FROM (SELECT max(g.value::interval) FROM weir.setting g WHERE g.name = ANY (l.retention)))::float8,
       (SELECT sum(coalesce(pg_total_relation_size(to_regclass(format('weir.%s_%s', t, s.segment))), 0)) FROM unnest(l.tables) t)::bigint,
       (SELECT g.value::bigint / l.parts FROM weir.setting g WHERE g.name = l.bytes)
FROM (VALUES ('job', ARRAY['completed_retention'], 'retention_bytes', 4, ARRAY['job', 'batch', 'result', 'turn']),
             ('failure', ARRAY['completed_retention', 'failed_retention'], 'retention_bytes', 16, ARRAY['failure']),
             ('message', ARRAY['message_retention'], 'message_retention_bytes', 4, ARRAY['message', 'tick'])) l(log, retention, bytes, parts, tables)
JOIN (SELECT DISTINCT ON (e.log, e.segment) e.log, e.segment, e.event, e.at FROM weir.segment e ORDER BY e.log, e.segment, e.no DESC) s ON s.log = l.log
WHERE s.event <> 'reclaimed' AND s.segment IS DISTINCT FROM pg_sequence_last_value(to_regclass('weir.active_' || s.log))
ORDER BY s.at`

// A segment is reclaimed under ACCESS EXCLUSIVE, which conflicts with every lock, even a reader's. Locks held for a moment do not matter. A
// prepared transaction has no pid.
const segmentHoldersSQL = `
SELECT coalesce(l.pid, 0), coalesce(a.application_name, ''), coalesce(a.state, 'prepared'),
       coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8, coalesce(left(a.query, 200), ''), l.wrote
FROM (SELECT k.pid, bool_or(k.mode NOT IN ('AccessShareLock', 'RowShareLock')) AS wrote
      FROM pg_locks k WHERE k.locktype = 'relation' AND k.granted AND k.pid IS DISTINCT FROM pg_backend_pid()
        AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND k.relation = ANY (ARRAY(SELECT to_regclass(t) FROM unnest($1::text[]) t))
      GROUP BY k.pid) l
LEFT JOIN LATERAL (SELECT s.* FROM pg_stat_get_activity(l.pid) s WHERE l.pid IS NOT NULL) a ON true
WHERE l.pid IS NULL OR clock_timestamp() - a.xact_start > interval '1 second'
ORDER BY 4 DESC LIMIT 5`

// checkSegments detects segments of Weir's log that should have been reclaimed.
func checkSegments(ctx context.Context, l *inspection) (result, error) {
	if !l.server.Weir {
		return absent, nil
	}
	type row struct {
		Log       string
		Segment   int32
		Age       float64
		Retention float64
		Size      int64
		Quarter   int64
	}
	rows, err := list[row](ctx, l.session, segmentsSQL)
	if r, ok, err := unless(err, "Weir's segments", "the schema's owner"); !ok {
		return r, err
	}
	var r result
	for _, s := range rows {
		overdue := seconds(s.Age - s.Retention)
		if overdue < segmentGrace {
			continue
		}
		severity := Info
		if overdue >= segmentLong || s.Size >= s.Quarter {
			severity = Warning
		}
		f := l.finding(SegmentStuck, severity, 0, 1)
		f.Samples = 1
		f.Summary = fmt.Sprintf("Segment %d of Weir's %ss should have been reclaimed %s ago, and uses %s MB.", s.Segment, s.Log, span(overdue), figure(float64(s.Size)/1e6))
		f.add("SELECT * FROM weir.segment ORDER BY at DESC", "closed %s ago, with a retention of %s", span(seconds(s.Age)), span(seconds(s.Retention)))
		why, err := segmentHolders(ctx, l, &f, s.Log, s.Segment)
		if err != nil {
			return result{}, err
		}
		if len(why) > 0 {
			f.Severity = Warning // it does not resolve automatically
		}
		for _, fact := range why {
			f.add(`SELECT pid, relation::regclass, mode FROM pg_locks WHERE relation::regclass::text LIKE 'weir.%'`, "%s", fact)
		}
		if len(why) == 0 {
			f.add("SELECT * FROM weir.queues()", "%s", whyKept(ctx, l))
		}
		f.Now = "End the transactions named here, or wait for them; a pg_dump ends eventually. Jobs that still wait are moved to another segment in small steps."
		f.ForGood = "Set idle_in_transaction_session_timeout for the roles that enqueue, work and read, take dumps from a standby, and keep one worker running, because workers do the chores."
		r.findings = append(r.findings, f)
		break // one finding is enough: the others wait for the same
	}
	if len(r.findings) == 0 {
		r.healthy = fmt.Sprintf("Weir's segments: %d closed, none kept beyond its retention.", len(rows))
	}
	return r, nil
}

// segmentHolders describes the transactions that hold a segment, and names their statements in the finding.
func segmentHolders(ctx context.Context, l *inspection, f *Finding, log string, segment int32) ([]string, error) {
	type row struct {
		PID                int32
		Application, State string
		Age                float64
		Query              string `text:"statement"`
		Wrote              bool
	}
	name := func(table string) string { return fmt.Sprintf("weir.%s_%d", table, segment) }
	tables := []string{name("job"), name("batch"), name("result"), name("turn")}
	switch log {
	case "message":
		tables = []string{name("message"), name("tick")}
	case "failure":
		tables = []string{name("failure")}
	}
	rows, err := list[row](ctx, l.session, segmentHoldersSQL, tables)
	if err != nil {
		return nil, fmt.Errorf("find what holds segment %d of %ss: %w", segment, log, err)
	}
	var facts []string
	for _, r := range rows {
		if r.PID == 0 {
			facts = append(facts, "a prepared transaction holds it: SELECT * FROM pg_prepared_xacts")
			continue
		}
		does := "has read it in a transaction that has been open for"
		if r.Wrote {
			does = "has written to it in a transaction that has been open for"
		}
		facts = append(facts, fmt.Sprintf("pid %d (%s, %s) %s %s; last statement: %s", r.PID, orUnnamed(r.Application), r.State, does,
			span(seconds(r.Age)), shape(r.Query)))
		f.names(HoldsIt, r.Query)
	}
	return facts, nil
}

// whyKept returns the likely reason if no transaction holds the segment.
func whyKept(ctx context.Context, l *inspection) string {
	if workers, err := readWorkers(ctx, l.session); err == nil {
		alive := 0
		for _, w := range workers {
			if w.State == "alive" {
				alive++
			}
		}
		if alive == 0 {
			return "no worker is alive, and nothing else does the chores"
		}
	}
	waiting := int64(0)
	for _, q := range l.last.Queues {
		waiting += q.Available
	}
	if waiting >= carriedAtOnce {
		return fmt.Sprintf("no transaction holds it; %s jobs wait, and are moved out of it in small steps, at half the rate of new jobs", figure(float64(waiting)))
	}
	return "no transaction holds it: it is reclaimed at the next opportunity, once fewer than 10,000 of its jobs are running"
}
