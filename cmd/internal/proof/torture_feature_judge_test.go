package proof

import "fmt"

// featureFaults are what the notebook must not show: each query finds what broke a promise.
var featureFaults = map[string]string{
	"ran, although another job of its key was running": `SELECT format('job %s of %s, while job %s', id, key, other) FROM overlapped`,
	"is unique, and neither completed nor was dropped": `SELECT format('job %s of %s', p.id, p.key) FROM promised p WHERE p.what IN ('finished', 'started', 'replace')
		AND NOT EXISTS (SELECT FROM ended e WHERE e.id = p.id AND e.outcome = 'completed') AND NOT EXISTS (SELECT FROM dropped d WHERE d.id = p.id)`,
	// A run of another job covers a dropped one if its claim saw that job committed; or, until finished, if the other was unfinished for the claim that dropped it.
	"was dropped, although no run of its key covers it": `SELECT format('job %s of %s (%s)', p.id, p.key, d.reason) FROM promised p JOIN dropped d ON d.id = p.id JOIN judged j ON j.lane = d.lane AND j.seq = d.seq
		WHERE p.what IN ('finished', 'started', 'replace') AND NOT EXISTS (
			SELECT FROM promised o JOIN claimed c ON c.id = o.id
			WHERE o.key = p.key AND o.id <> p.id AND (
				c.seen IS NOT NULL AND pg_visible_in_snapshot(p.xid, c.seen)
				OR p.what = 'finished' AND NOT EXISTS (SELECT FROM ended e WHERE e.id = o.id AND e.outcome IN ('completed', 'failed', 'cancelled') AND pg_visible_in_snapshot(e.xid, j.snapshot))))`,
	"started, although it had been cancelled by filter before": `SELECT format('job %s of %s at %s, cancelled at %s', p.id, p.key, c.at, d.at)
		FROM promised p JOIN doomed d ON d.key = p.key AND d.upto >= p.id JOIN claimed c ON c.id = p.id WHERE p.what = 'doom' AND c.at > d.at`,
	"was to be cancelled or to complete, and did neither": `SELECT format('job %s (%s)', p.id, p.what) FROM promised p WHERE p.what IN ('doom', 'dud')
		AND NOT EXISTS (SELECT FROM ended e WHERE e.id = p.id AND e.outcome = ANY (CASE p.what WHEN 'doom' THEN '{completed,cancelled}' ELSE '{completed,failed}' END::weir.outcome[]))
		AND NOT EXISTS (SELECT FROM flow_member m JOIN flow_made f ON f.id = m.flow AND f.family = 'wild' JOIN ended e ON e.id = m.id AND e.outcome = 'cancelled' WHERE m.id = p.id)`,
	"was to fail, and did not":                       `SELECT format('job %s', p.id) FROM promised p WHERE p.what = 'scrap' AND NOT EXISTS (SELECT FROM ended e WHERE e.id = p.id AND e.outcome = 'failed')`,
	"was deleted by filter in the end, and is there": `SELECT format('job %s', j.id) FROM weir.jobs('failed', 'only') j WHERE j.kind = 'scrap'`,
	"was fired while its schedule was paused":        `SELECT format('%s', f.due) FROM fired f JOIN paused p ON f.xid >= pg_snapshot_xmax(p.since) AND pg_visible_in_snapshot(f.xid, p.upto) WHERE f.name = 'at times'`,
	"completed twice":                                `SELECT format('job %s', id) FROM ended WHERE outcome = 'completed' GROUP BY id HAVING count(*) > 1`,
	"is a due time with several jobs":                `SELECT format('%s %s', name, due) FROM fired GROUP BY name, due HAVING count(DISTINCT coalesce(job, 0)) > 1`,
	"is a due time without a job": `SELECT format('%s between %s and %s', f.name, f.before, f.due)
		FROM (SELECT f.*, lag(f.due) OVER (PARTITION BY f.name ORDER BY f.due) AS before, k.fields FROM (SELECT DISTINCT name, due, job FROM fired) f JOIN kept k ON k.name = f.name AND k.name <> 'at times') f
		WHERE f.job IS NULL OR weir._due_after(f.fields, 'UTC', f.before) <> f.due`,
	"is the job of a due time, and did not complete": `SELECT format('%s %s', name, due) FROM fired f WHERE job IS NOT NULL AND NOT EXISTS (SELECT FROM ended e WHERE e.id = f.job AND e.outcome = 'completed')`,
	"was stored in the clear":                        `SELECT at FROM leaked`,
}

// judgeFeatures compares what the notebook says with what is promised. The jobs have ended.
func (w *torture) judgeFeatures() {
	conn := connect(w.T, w.server.URL("postgres"))
	if err := w.stepsOf(conn, "delete_where", "deleted", `'only', '{scrap}'`, &w.deletes); err != nil {
		w.Fatal(fmt.Errorf("delete: %w", err))
	}
	w.findNone(conn, featureFaults)
	w.judgeKeys(conn)
	w.judgeFlows(conn)
	w.eventually("no slot of the limit is taken, as no job runs", func() (bool, string) { // schedules go on
		counted := value[string](w.T, conn, `SELECT format('%s counted, %s running', l.running_now, (SELECT q.running FROM weir.queues() q WHERE q.name = 'only')) FROM weir.limits() l WHERE l.queue = 'only'`)
		return counted == "0 counted, 0 running", counted
	})
	if now := value[int](w.T, conn, `SELECT generation FROM kept WHERE name = 'sealed'`); now != w.declared {
		w.Errorf("a schedule with encrypted args has generation %d, and had %d: it was changed by declaring it again", now, w.declared)
	}
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	stored, read := 0, 0
	for id, all := range w.steps {
		for _, r := range all {
			if !r.read {
				stored++
				continue
			}
			read++
			if s, is := w.forgotten(r, all); is {
				w.Errorf("job %d: attempt %d, put off %d, has read checkpoint %d, although %d was stored by attempt %d before", id, r.attempt, r.putOff, r.n, s.n, s.attempt)
			}
		}
	}
	w.Logf("%s; %d checkpoints stored, %d read; %d cancellations by filter, %d jobs moved, %d retried and %d deleted by filter, %d pauses", value[string](w.T, conn, `SELECT format('%s unique jobs, %s dropped; %s due times; %s jobs that may be cancelled, %s were',
		(SELECT count(*) FROM promised WHERE what IN ('finished', 'started', 'replace')), (SELECT count(*) FROM dropped), (SELECT count(*) FROM fired),
		(SELECT count(*) FROM promised WHERE what = 'doom'), (SELECT count(DISTINCT p.id) FROM promised p JOIN ended e ON e.id = p.id AND e.outcome = 'cancelled' WHERE p.what = 'doom'))`),
		stored, read, w.cancels.Load(), w.moves.Load(), w.retries.Load(), w.deletes.Load(), w.pauses.Load())
	for what, n := range map[string]int64{"stored or read a checkpoint": int64(min(stored, read)), "cancelled by filter": w.cancels.Load(), "moved a job": w.moves.Load(), "retried by filter": w.retries.Load(), "deleted by filter": w.deletes.Load(), "paused a schedule": w.pauses.Load(),
		"dropped a unique job": value[int64](w.T, conn, `SELECT count(*) FROM dropped`)} {
		if n == 0 && *longFlag > 0 {
			w.Errorf("nobody has %s", what)
		}
	}
}

// forgotten returns a checkpoint that an earlier attempt had stored, in the same life of the log or in a part of an earlier one that has survived, and that
// an attempt has not read.
func (w *torture) forgotten(r stepped, all []stepped) (stepped, bool) {
	for _, s := range all {
		isEarlier := s.attempt < r.attempt || s.attempt == r.attempt && s.putOff < r.putOff
		survived := s.life == r.life || s.life < r.life && s.lsn <= w.lives[s.life]
		if !s.read && isEarlier && survived && s.n > r.n {
			return s, true
		}
	}
	return stepped{}, false
}

// endFeatures drops the schedules, waits until no job is left to do, and retries what has failed.
func (w *torture) endFeatures() {
	conn := connect(w.T, w.server.URL("postgres"))
	exec(w.T, conn, `CREATE TABLE kept AS SELECT * FROM weir.schedule`)
	exec(w.T, conn, `SELECT weir.drop_schedule(name) FROM weir.schedules()`)
	w.untilDone(conn)
	if err := w.stepsOf(conn, "retry_where", "retried", `'only', '{dud}'`, &w.retries); err != nil {
		w.Fatal(fmt.Errorf("retry: %w", err))
	}
	w.untilDone(conn)
}
