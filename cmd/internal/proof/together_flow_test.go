package proof

import (
	"fmt"
	"slices"
)

// Flows in TestAllFeaturesTogetherKeepTheirPromises: members, some to be done once, tasks, and flows within them, whose callbacks are jobs as well. They are
// sealed in the end, and then each must end.

// togetherFlow is a flow that was committed.
type togetherFlow struct {
	id        int64
	all       []int64 // with what is within it
	cancelled bool
}

func (s *together) flow() *togetherFlow {
	s.t.Helper()
	open := slices.DeleteFunc(slices.Clone(s.flows), func(f *togetherFlow) bool { return f.cancelled })
	if len(open) > 0 && s.rng.IntN(6) > 0 {
		return open[s.rng.IntN(len(open))]
	}
	f := &togetherFlow{id: value[int64](s.t, s.conn, `SELECT weir.flow('f', on_done => '{"queue": "q", "kind": "k0"}')`)}
	f.all = []int64{f.id}
	s.flows = append(s.flows, f)
	s.say("flow %d is created", f.id)
	return f
}

func (s *together) enqueueMembers() {
	s.t.Helper()
	f, p := s.flow(), s.producer()
	s.transaction(p)
	queue, n := s.queue(), 1+s.rng.IntN(3)
	var once []string
	isOnce := s.rng.IntN(2) == 0
	for range n {
		name := ""
		if isOnce {
			name = fmt.Sprint("once ", s.rng.IntN(4))
		}
		once = append(once, name)
	}
	key, kind := s.key(), s.kind()
	ids := value[[]int64](s.t, p.tx, `SELECT weir.enqueue_many(array_agg($1::text), array_agg($2::text), key => array_agg($3::text), flow => array_agg($4::bigint), once => array_agg(nullif(o, '') ORDER BY n)) FROM unnest($5::text[]) WITH ORDINALITY u(o, n)`,
		queue, kind, key, f.id, once)
	for _, id := range ids {
		if s.jobs[id] == nil && !s.seen[id] {
			s.seen[id] = true
			p.logged = append(p.logged, &togetherJob{id: id, queue: queue, key: key, kind: kind, priority: 2, unique: isOnce, flow: f.id, step: step{1, 0}})
		}
	}
	s.say("jobs %v are members of flow %d, once %q", ids, f.id, once)
}

// addWithin adds tasks to a flow, or a flow within it, in a transaction of their own.
func (s *together) addWithin() {
	s.t.Helper()
	f := s.flow()
	if s.rng.IntN(2) == 0 {
		id := value[int64](s.t, s.conn, `WITH n AS MATERIALIZED (SELECT weir.flow('n', on_done => '{"queue": "r", "kind": "k1"}', parent => $1) AS id) SELECT n.id FROM n WHERE weir.seal(n.id)`, f.id)
		f.all = append(f.all, id)
		s.say("flow %d is within flow %d", id, f.id)
		return
	}
	name := fmt.Sprint(len(f.all), " ")
	ids := value[[]int64](s.t, s.conn, `SELECT weir.add_tasks($1, jsonb_build_array(jsonb_build_object('task', $2 || 'a', 'queue', 'q', 'kind', 'k0'), jsonb_build_object('task', $2 || 'b', 'after', jsonb_build_array($2 || 'a'), 'queue', 'q', 'kind', 'k1'),
		jsonb_build_object('task', $2 || 'c', 'after', jsonb_build_array($2 || 'a', $2 || 'b'), 'ignore_failed', true, 'queue', 'r', 'kind', 'k0')))`, f.id, name)
	f.all = append(f.all, ids...)
	s.say("tasks %v are added to flow %d", ids, f.id)
}

// count counts what has arrived at flows, which enqueues tasks and callbacks.
func (s *together) count() {
	s.t.Helper()
	foldAll(s.t, s.conn)
	type brought struct {
		ID          int64
		Queue, Kind string
		Flow        int64
		IsCallback  bool
	}
	rows, err := s.conn.Query(s.t.Context(), `SELECT DISTINCT ON (j.id) j.id, q.name, j.kind, coalesce(j.flow, 0), j.meta ? 'weir.flow' FROM weir.job j JOIN weir.queue q ON q.id = j.lane >> 39
		WHERE j.meta ?| '{weir.task,weir.flow}' AND j.attempt = 1 AND j.put_off = 0 AND j.id <> ALL ($1)`, s.brought)
	if err != nil {
		s.fatal("read what flows bring: %v", err)
	}
	var b brought
	var all []brought
	for rows.Next() {
		if err := rows.Scan(&b.ID, &b.Queue, &b.Kind, &b.Flow, &b.IsCallback); err != nil {
			s.fatal("read what flows bring: %v", err)
		}
		all = append(all, b)
	}
	if rows.Err() != nil {
		s.fatal("read what flows bring: %v", rows.Err())
	}
	for _, b := range all {
		s.brought = append(s.brought, b.ID)
		// A member of a flow that is cancelled may run, or not; a callback of a flow within it runs.
		s.jobs[b.ID] = &togetherJob{id: b.ID, queue: b.Queue, kind: b.Kind, priority: 2, flow: b.Flow, callback: b.IsCallback, step: step{1, 0},
			unique: !b.IsCallback && slices.ContainsFunc(s.flows, func(f *togetherFlow) bool { return f.cancelled && slices.Contains(f.all, b.Flow) })}
		s.say("job %d is brought by a flow, as a member of %d", b.ID, b.Flow)
	}
}

func (s *together) cancelFlow() {
	s.t.Helper()
	f := s.flow()
	if s.rng.IntN(3) > 0 {
		return
	}
	s.count()
	exec(s.t, s.conn, `SELECT weir.cancel_flow($1)`, f.id)
	s.say("flow %d is cancelled", f.id)
	f.cancelled = true
	of := func(j *togetherJob) bool { return !j.final && !j.callback && slices.Contains(f.all, j.flow) }
	for _, j := range s.jobs {
		if of(j) {
			j.cancelled = true
		}
	}
	for _, p := range s.producers {
		for _, j := range p.logged {
			if of(j) {
				j.cancelled = true
			}
		}
	}
}

// sealFlows seals all flows, which end when their members do.
func (s *together) sealFlows() {
	for _, f := range s.flows {
		exec(s.t, s.conn, `SELECT weir.seal($1)`, f.id)
	}
}

// flowsLeft returns the flows that have not ended.
func (s *together) flowsLeft() []string {
	s.t.Helper()
	return column[string](s.t, s.conn, `SELECT i::text FROM weir.flow f CROSS JOIN LATERAL weir.flow_info(f.id) i WHERE i.unfinished <> 0 OR i.finished_at IS NULL AND NOT (i.is_task AND i.jobs = 0)`)
}
