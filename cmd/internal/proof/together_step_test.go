package proof

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// togetherSteps are what may happen next, each as often as its share, if the feature is in use.
var togetherSteps = []struct {
	feature string // "": always
	share   int
	do      func(*together)
}{
	{"", 8, func(s *together) { s.enqueue(s.rng.IntN(3) > 0, false) }},
	{"jobs without a key", 1, func(s *together) { s.enqueue(false, false) }},
	{"scheduled jobs", 2, func(s *together) { s.enqueue(true, true) }},
	{"unique jobs", 2, (*together).enqueueUnique},
	{"", 4, func(s *together) { s.endTransaction(s.producer(), s.rng.IntN(5) > 0) }},
	{"", 6, func(s *together) { s.claim(s.worker(), s.queues[:1+s.rng.IntN(2)], 1+s.rng.IntN(s.most)) }},
	{"", 5, func(s *together) { s.end(s.worker()) }},
	{"", 2, func(s *together) { promote(s.t, s.conn, 100) }},
	{"limits", 1, (*together).setLimit},
	{"weights", 1, func(s *together) {
		exec(s.t, s.conn, `SELECT weir.set_weight('q', $1, $2)`, s.key(), 0.5+4*s.rng.Float64())
	}},
	{"cancelling", 1, (*together).cancel},
	{"cancelling by filter", 1, (*together).cancelWhere},
	{"retrying", 1, (*together).retry},
	{"retrying by filter", 1, (*together).retryWhere},
	{"deleting", 1, (*together).deleteWhere},
	{"moving", 1, (*together).move},
	{"flows", 2, (*together).enqueueMembers},
	{"flows", 1, (*together).addWithin},
	{"flows", 1, (*together).count},
	{"flows", 1, (*together).cancelFlow},
	{"surveys", 2, func(s *together) { exec(s.t, s.conn, `SELECT weir._resurvey()`) }},
	{"counts minutes", 1, func(s *together) { exec(s.t, s.conn, `SELECT weir._count_minutes()`) }},
	{"rotation", 2, (*together).rotate},
	{"fencing", 1, (*together).fence},
	{"a restore", 1, (*together).restore},
}

func (s *together) key() string { return fmt.Sprintf("key %d", s.rng.IntN(s.keys)) }

func (s *together) kind() string { return fmt.Sprintf("k%d", s.rng.IntN(2)) }

// queue is most often the first one.
func (s *together) queue() string { return s.queues[max(0, s.rng.IntN(5)-3)] }

func (s *together) worker() int32 { return s.workers[s.rng.IntN(len(s.workers))] }

func (s *together) producer() *togetherProducer { return s.producers[s.rng.IntN(len(s.producers))] }

// any returns a job of which something is true, if there is one.
func (s *together) any(holds func(*togetherJob) bool) *togetherJob {
	for _, j := range s.jobs {
		if holds(j) {
			return j
		}
	}
	return nil
}

// transaction begins one, unless it is open.
func (s *together) transaction(p *togetherProducer) {
	s.t.Helper()
	if p.tx == nil {
		p.tx = begin(s.t, p.conn)
	}
}

func (s *together) enqueue(keyed, later bool) {
	s.t.Helper()
	p := s.producer()
	s.transaction(p)
	queue := s.queue()
	var names, queues, kinds []string
	var priorities []int
	for range 1 + s.rng.IntN(5) {
		key := ""
		if keyed {
			key = s.key()
		}
		names, queues, kinds, priorities = append(names, key), append(queues, queue), append(kinds, s.kind()), append(priorities, 1+s.rng.IntN(2))
	}
	var ids []int64
	if later {
		ids = column[int64](s.t, p.tx, `SELECT weir.enqueue(q, k, priority => p, key => nullif(y, ''), run_at => now() + interval '20 ms') FROM unnest($1::text[], $2::text[], $3::int[], $4::text[]) u(q, k, p, y)`, queues, kinds, priorities, names)
	} else {
		ids = value[[]int64](s.t, p.tx, `SELECT weir.enqueue_many($1, $2, priority => $3, key => ARRAY(SELECT nullif(k, '') FROM unnest($4::text[]) WITH ORDINALITY u(k, n) ORDER BY n))`, queues, kinds, priorities, names)
	}
	for n, id := range ids {
		p.logged = append(p.logged, &togetherJob{id: id, queue: queue, key: names[n], kind: kinds[n], priority: priorities[n], step: step{1, 0}})
	}
	s.say("jobs %v are enqueued, for %q in %s, later %v", ids, names, queue, later)
}

func (s *together) enqueueUnique() {
	s.t.Helper()
	p := s.producer()
	s.transaction(p)
	j := &togetherJob{queue: s.queue(), kind: s.kind(), priority: 1 + s.rng.IntN(2), unique: true, step: step{1, 0}}
	if s.rng.IntN(3) > 0 {
		j.key = s.key()
	}
	rule := []string{"", ", until => 'started'", ", replace => true", ", within => '50 ms'"}[s.rng.IntN(4)]
	var duplicate bool
	if err := p.tx.QueryRow(s.t.Context(), `SELECT id, duplicate FROM weir.enqueue_unique($1, $2, unique_key => $3, priority => $4, key => nullif($5, '')`+rule+`)`,
		j.queue, j.kind, fmt.Sprint(s.rng.IntN(3)), j.priority, j.key).Scan(&j.id, &duplicate); err != nil {
		s.fatal("enqueue a unique job%s: %v", rule, err)
	}
	s.say("unique job %+v is enqueued%s, duplicate %v", *j, rule, duplicate)
	if !duplicate || strings.Contains(rule, "replace") {
		p.logged = append(p.logged, j)
	}
}

// end ends one of a worker's attempts in some way.
func (s *together) end(worker int32) {
	s.t.Helper()
	if len(s.held[worker]) == 0 {
		return
	}
	n := s.rng.IntN(len(s.held[worker]))
	a := s.held[worker][n]
	s.held[worker] = slices.Delete(s.held[worker], n, n+1)
	outcome := someEndings[s.rng.IntN(len(someEndings))]
	switch {
	case a.Dropped != nil:
		outcome = "cancelled"
	case a.Attempt+a.PutOff > 8:
		outcome = "completed"
	}
	var at time.Time
	if (outcome == "retried" || outcome == "snoozed") && s.rng.IntN(2) == 0 {
		at = time.Now().Add(20 * time.Millisecond)
	}
	if ok, err := finish(s.t.Context(), s.conn, worker, a, outcome, at); err != nil || !ok {
		s.fatal("job %d ends as %s: %v, %v", a.ID, outcome, ok, err)
	}
	s.say("job %d has ended as %s", a.ID, outcome)
	j := s.jobs[a.ID]
	j.claimed = false
	j.step, j.final = j.step.after(outcome)
}

func (s *together) setLimit() {
	s.t.Helper()
	queue, n := s.queue(), 1+s.rng.IntN(4)
	limits := []struct {
		set             string
		perKey, running int // 0: as before
	}{
		{`clear_limit($1)`, -1, -1},
		{`set_limit($1, running => $2)`, 0, n},
		{`set_limit($1, running => $2, rate => 300, burst => 3)`, 0, n},
		{`set_limit($1, running => $2, per_key => true)`, n, 0},
		{`set_limit($1, running => $2, rate => 200, burst => 2, per_key => true)`, n, 0},
		{`set_limit($1, rate => 100, burst => 1, per_key => true)`, -1, 0},
		{`set_limit($1, per_key => true, in_order => true)`, 1, 0},
	}
	l := limits[s.rng.IntN(len(limits))]
	args := []any{queue, n}
	exec(s.t, s.conn, `SELECT weir.`+l.set, args[:strings.Count(l.set, "$")]...)
	if l.perKey != 0 {
		s.perKey[queue] = l.perKey
	}
	if l.running != 0 {
		s.perQueue[queue] = l.running
	}
	s.say("%s: %s, %d", queue, l.set, n)
}

func (s *together) cancel() {
	s.t.Helper()
	if j := s.any(func(j *togetherJob) bool { return !j.final }); j != nil {
		exec(s.t, s.conn, `SELECT weir.cancel($1)`, j.id)
		j.cancelled = true
		s.say("job %d is cancelled", j.id)
	}
}

func (s *together) cancelWhere() {
	s.t.Helper()
	filter := []struct {
		queue, key, kind string
		priority         int
	}{{key: s.key()}, {queue: "q", kind: "k0"}, {key: s.key(), kind: "k1", priority: 2}, {queue: "q", priority: 1}}[s.rng.IntN(4)]
	if s.rng.IntN(3) > 0 || filter.queue != "" && value[int](s.t, s.conn, `SELECT count(*)::int FROM weir.queue WHERE name = $1`, filter.queue) == 0 {
		return
	}
	exec(s.t, s.conn, `SELECT weir.cancel_where(queue => nullif($1, ''), key => nullif($2, ''), kinds => CASE WHEN $3 <> '' THEN ARRAY[$3] END, priority => nullif($4, 0))`,
		filter.queue, filter.key, filter.kind, filter.priority)
	s.say("cancelled: %+v", filter)
	all := slices.Collect(func(yield func(*togetherJob) bool) {
		for _, j := range s.jobs {
			if !yield(j) {
				return
			}
		}
	})
	for _, p := range s.producers {
		all = append(all, p.logged...) // those of open transactions, too
	}
	for _, j := range all {
		if !j.final && (filter.queue == "" || j.queue == filter.queue) && (filter.key == "" || j.key == filter.key) && (filter.kind == "" || j.kind == filter.kind) && (filter.priority == 0 || j.priority == filter.priority) {
			j.cancelled = true
		}
	}
}

// again notes that a job which had ended, or was cancelled, waits once more.
func (j *togetherJob) again() { j.final, j.cancelled, j.loose = false, false, true }

func (s *together) retry() {
	s.t.Helper()
	j := s.any(func(j *togetherJob) bool { return j.final })
	if j == nil {
		return
	}
	state := value[string](s.t, s.conn, `SELECT coalesce(weir.retry($1)::text, '')`, j.id)
	if state == "available" || state == "scheduled" {
		j.again()
	}
	s.say("job %d is retried: %q", j.id, state)
}

func (s *together) retryWhere() {
	s.t.Helper()
	states := [][]string{nil, {"cancelled"}, {"completed"}, {"failed", "cancelled"}}[s.rng.IntN(4)]
	kind, key := s.kind(), ""
	if s.rng.IntN(2) == 0 {
		key = s.key()
	}
	retried := value[int](s.t, s.conn, `SELECT retried FROM weir.retry_where(kinds => ARRAY[$1], key => nullif($2, ''), states => $3, max_rows => 1000)`, kind, key, states)
	s.say("%d jobs of %s and %q are retried from the states %q", retried, kind, key, states)
	listed, waiting := s.listed(""), 0
	cancelled := slices.Contains(states, "cancelled")
	for _, id := range listed {
		if j := s.jobs[id]; j != nil && !j.claimed && (j.final || cancelled && j.cancelled) {
			if j.kind != kind || key != "" && key != j.key {
				s.fatal("job %+v is retried", *j)
			}
			j.again()
			waiting++
		}
	}
	if waiting > retried {
		s.fatal("%d jobs are retried, but %d wait", retried, waiting)
	}
	for _, j := range s.jobs {
		switch {
		case !cancelled || j.claimed:
		case j.unique && !j.final && j.kind == kind && (key == "" || key == j.key): // a duplicate may have been ended unnoticed
			j.again()
		case !j.final && j.cancelled:
			j.loose = true
		}
	}
}

func (s *together) deleteWhere() {
	s.t.Helper()
	if s.rng.IntN(3) > 0 {
		return
	}
	kind, key := s.kind(), ""
	if s.rng.IntN(2) == 0 {
		key = s.key()
	}
	failed := func() []int64 { return column[int64](s.t, s.conn, `SELECT id FROM weir.jobs('failed', NULL, 1000)`) }
	before := failed()
	exec(s.t, s.conn, `SELECT weir.delete_where(kinds => ARRAY[$1], key => nullif($2, ''), max_rows => 1000)`, kind, key)
	after := failed()
	s.say("failed jobs of %s and %q are deleted", kind, key)
	for _, id := range before {
		if j := s.jobs[id]; j != nil && slices.Contains(after, id) == (j.kind == kind && (key == "" || key == j.key)) {
			s.fatal("job %+v is still there: %v", *j, slices.Contains(after, id))
		} else if !slices.Contains(after, id) {
			delete(s.jobs, id)
		}
	}
}

func (s *together) move() {
	s.t.Helper()
	n := s.rng.IntN(2)
	from, to := s.queues[n], s.queues[1-n]
	if value[int](s.t, s.conn, `SELECT count(*)::int FROM weir.queue WHERE name = $1`, from) == 0 {
		return
	}
	var key, kind string
	var priority, toPriority int
	if s.rng.IntN(2) == 0 {
		key = s.key()
	}
	if s.rng.IntN(3) == 0 {
		kind = s.kind()
	}
	if s.rng.IntN(3) == 0 {
		priority = 1 + s.rng.IntN(2)
	}
	if s.rng.IntN(3) == 0 {
		toPriority = 1 + s.rng.IntN(2)
	}
	before := s.listed(from)
	size := []int{1, 7, 50}[s.rng.IntN(3)]
	var next *string
	for steps := 0; steps == 0 || next != nil; steps++ {
		err := s.conn.QueryRow(s.t.Context(), `SELECT next FROM weir.move_where(queue => $1, to_queue => $2, key => nullif($3, ''), kinds => CASE WHEN $4 <> '' THEN ARRAY[$4] END, priority => nullif($5, 0),
			to_priority => nullif($6, 0), after => $7, max_rows => $8)`, from, to, key, kind, priority, toPriority, next, size).Scan(&next)
		if sqlstate(err) == "55P03" { // another session has a lock
			break
		} else if err != nil {
			s.fatal("move: %v", err)
		}
	}
	s.say("moved from %s to %s: key %q, kind %q, priority %d to %d", from, to, key, kind, priority, toPriority)
	after := s.listed(to)
	for _, id := range before {
		j := s.jobs[id]
		if j == nil || !slices.Contains(after, id) {
			continue
		}
		if key != "" && j.key != key || kind != "" && j.kind != kind || priority != 0 && j.priority != priority {
			s.fatal("job %+v was moved", *j)
		}
		j.queue = to
		if toPriority != 0 {
			j.priority = toPriority
		}
	}
}

// rotate does the chores of segments, and opens the next one also if the present one is not full.
func (s *together) rotate() {
	s.t.Helper()
	for range 1 + s.rng.IntN(4) {
		if did := value[string](s.t, s.conn, `SELECT coalesce(weir._rotate(), '')`); did != "" {
			s.say("%s", did)
			continue
		}
		if empty := value[int](s.t, s.conn, `SELECT coalesce((SELECT min(s) FROM generate_series(1, 4) s WHERE s <> pg_sequence_last_value('weir.active_job') AND weir._segment_state('job', s) = 'reclaimed'), 0)`); empty > 0 && s.rng.IntN(2) == 0 {
			exec(s.t, s.conn, `INSERT INTO weir.segment (log, segment, event) VALUES ('job', pg_sequence_last_value('weir.active_job'), 'closed'), ('job', $1, 'opened')`, empty)
			exec(s.t, s.conn, `SELECT setval('weir.carried', 0), setval('weir.active_job', $1)`, empty)
			exec(s.t, s.conn, `UPDATE weir.segment SET at = at - interval '10 seconds'`)
			s.say("segment %d is opened", empty)
		}
	}
	exec(s.t, s.conn, `SELECT weir._tidy(), weir._rotate_later(), weir._rotate_history()`)
}

// fence takes a worker's jobs away from it, and starts another one.
func (s *together) fence() {
	s.t.Helper()
	if s.rng.IntN(4) > 0 {
		return
	}
	n := s.rng.IntN(len(s.workers))
	worker := s.workers[n]
	exec(s.t, s.conn, `SELECT weir._fence($1)`, worker)
	settle(s.t, s.conn, worker)
	for _, a := range s.held[worker] {
		j := s.jobs[a.ID]
		j.claimed, j.loose = false, true
	}
	delete(s.held, worker)
	s.workers[n] = startWorker(s.t, s.conn, s.queues...)
	s.say("worker %d is fenced", worker)
}

// restore makes the log belong to another cluster, as after a dump was restored: all attempts that ran are tried again.
func (s *together) restore() {
	s.t.Helper()
	if s.rng.IntN(6) > 0 {
		return
	}
	for _, p := range s.producers {
		s.endTransaction(p, s.rng.IntN(3) > 0)
	}
	exec(s.t, s.conn, `UPDATE weir.setting SET value = '7' WHERE name = 'cluster'`)
	exec(s.t, s.conn, `SELECT weir.rebase()`)
	for _, j := range s.jobs {
		j.claimed, j.loose = false, true
	}
	clear(s.held)
	for n := range s.workers {
		s.workers[n] = startWorker(s.t, s.conn, s.queues...)
	}
	s.say("the log has moved into another cluster")
}
