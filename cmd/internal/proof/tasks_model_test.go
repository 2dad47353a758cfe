package proof

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// graphModel is what flows, the tasks in them and the flows within them should be: see TestRandomGraphsEndAsAModelSays.
type graphModel struct {
	flows   map[int64]*graphFlow
	jobs    map[int64]*graphJob
	cancels []graphCancel
	wrong   func(format string, args ...any)
}

// graphFlow is a flow or a task, which is a flow that starts with a job of its own.
type graphFlow struct {
	id, parent                 int64
	name                       string
	isTask, failFast, passed   bool // passed: its deadline had passed when it was created
	onDone, onSuccess, lenient bool
	after                      []string // of a task: the names of those that it comes after

	counted, gone                bool // a cut has counted it; and has found that another transaction has added the task before
	sealed, cancelled, abandoned bool
	members                      []int64 // jobs, but no flows
	job                          int64   // of a task: its own, once it has started
	started, skipped             bool
	ended                        bool
	kind                         string // as what it has ended
	generation                   int
	calledBack                   []string
	due                          int // callbacks that the current cuts enqueue, and whose jobs are not known yet
	counters                     map[string]int64
	cancelledNo                  int64 // of the last cancellation that it was cancelled by

	// Since the last cut:
	sealNow, cancelNow, retryNow, isOver, failedNow bool  // isOver: a member was added, or an end was taken back
	no                                              int64 // of the cancellation, or of the last one that the retry undoes
}

// graphJob is a member of a flow, or a callback of one that is within no other.
type graphJob struct {
	flow       int64
	once       string
	ended      string // as what; empty: it has not
	cancelled  bool   // by weir.cancel
	reprieved  int    // it was retried after so many cancellations of flows
	mayRun     bool   // it may or may not have been there when its flow was cancelled
	isFinished bool   // the test has said how it ends
	isCallback bool   // which the cancellation of a flow around does not mean
}

// graphCancel is a cancellation of all jobs within a flow whose ids are not greater.
type graphCancel struct{ flow, upto int64 }

func (m *graphModel) ids() []int64 { return slices.Sorted(maps.Keys(m.flows)) }

// within reports whether a flow is another one, or within it.
func (m *graphModel) within(flow, outer int64) bool {
	for ; flow != 0; flow = m.flows[flow].parent {
		if flow == outer {
			return true
		}
	}
	return false
}

// tree returns a flow and all that are within it.
func (m *graphModel) tree(flow int64) (all []*graphFlow) {
	for _, id := range m.ids() {
		if m.within(id, flow) {
			all = append(all, m.flows[id])
		}
	}
	return all
}

// kids returns the flows and tasks that are members of a flow.
func (m *graphModel) kids(f *graphFlow) (all []*graphFlow) {
	for _, id := range m.ids() {
		if k := m.flows[id]; k.parent == f.id && k.counted && !k.gone {
			all = append(all, k)
		}
	}
	return all
}

// isDead reports whether a job must not start.
func (m *graphModel) isDead(id int64) bool {
	j := m.jobs[id]
	for nr, c := range m.cancels {
		if j.flow != 0 && !j.isCallback && id <= c.upto && nr >= j.reprieved && m.within(j.flow, c.flow) {
			return true
		}
	}
	return j.cancelled
}

// mayBeDead reports whether a job may be cancelled though isDead does not say so, because it was added beside the cancellation of its flow.
func (m *graphModel) mayBeDead(j *graphJob) bool {
	f := m.flows[j.flow]
	return j.mayRun || f != nil && f.cancelled && !j.isCallback
}

// join makes jobs members of a flow, unless they are there already.
func (m *graphModel) join(flow int64, once string, ids ...int64) {
	f := m.flows[flow]
	for _, id := range ids {
		if m.jobs[id] == nil {
			m.jobs[id] = &graphJob{flow: flow, once: once}
			f.members, f.isOver = append(f.members, id), true
		}
	}
}

// create makes a flow a member of its parent, if it has one.
func (m *graphModel) create(f *graphFlow) {
	f.generation, f.counters = 1, map[string]int64{}
	m.flows[f.id] = f
	if f.parent != 0 {
		m.flows[f.parent].isOver = true
	}
}

// counts returns how many members a flow has, and of these unfinished, completed, failed and cancelled ones.
func (m *graphModel) counts(f *graphFlow) (jobs, unfinished, completed, failed, cancelled int64) {
	kinds := map[string]int64{"": int64(f.due)}
	for _, id := range f.members {
		kinds[m.jobs[id].ended]++
	}
	if f.isTask && f.skipped {
		kinds["cancelled"]++
	} else if f.isTask && f.job == 0 {
		kinds[""]++
	}
	for _, k := range m.kids(f) {
		if k.ended {
			kinds[k.kind]++
		} else {
			kinds[""]++
		}
	}
	for _, n := range kinds {
		jobs += n
	}
	return jobs, kinds[""], kinds["completed"], kinds["failed"], kinds["cancelled"]
}

// before returns the tasks that a task comes after.
func (m *graphModel) before(f *graphFlow) (all []*graphFlow) {
	if !f.isTask {
		return nil
	}
	for _, k := range m.kids(m.flows[f.parent]) {
		if k.isTask && slices.Contains(f.after, k.name) {
			all = append(all, k)
		}
	}
	return all
}

// mustSkip reports whether a task that has not started is not to start.
func (m *graphModel) mustSkip(f *graphFlow) bool {
	return f.cancelled || slices.ContainsFunc(m.before(f), func(b *graphFlow) bool { return b.ended && b.kind != "completed" && !f.lenient })
}

// cancel cancels a flow, and all within it but for what is cancelled already, and what has ended.
func (m *graphModel) cancel(f *graphFlow, no int64) {
	for _, k := range m.tree(f.id) {
		if _, unfinished, _, _, _ := m.counts(k); k == f || k.counted && !k.gone && !k.cancelled && !k.ended && (!k.sealed || unfinished > 0) {
			k.cancelled, k.sealed, k.cancelledNo = true, true, max(k.cancelledNo, no)
		}
	}
}

// undo takes back that a flow is cancelled, and all within it: but for what was cancelled after all cancellations that a retry undoes.
func (m *graphModel) undo(f *graphFlow, upto int64) {
	for _, k := range m.tree(f.id) {
		if k.cancelled && k.cancelledNo <= upto {
			k.cancelled, k.isOver = false, k.isOver || k.ended && !k.skipped // it ends anew
		}
	}
}

// lastAround returns the number of the last cancellation of a flow, or of one around it.
func (m *graphModel) lastAround(f *graphFlow) (no int64) {
	for ; f != nil; f = m.flows[f.parent] {
		no = max(no, f.cancelledNo)
	}
	return no
}

// graphSeen is what the database says about a flow.
type graphSeen struct {
	ID                                             int64
	State                                          string
	Generation                                     int
	Jobs, Unfinished, Completed, Failed, Cancelled int64
	Job                                            *int64
	Counters                                       *string
	IsCancelled                                    bool // by what was counted last
	CancelledNo                                    int64
	WaitsFor                                       []string
}

const graphLook = `SELECT i.id, i.state, i.generation, i.jobs, i.unfinished, i.completed, i.failed, i.cancelled, i.job, i.counters::text,
	(SELECT p.is_cancelled FROM weir.fold p WHERE p.flow = i.id ORDER BY p.cut DESC LIMIT 1), (SELECT coalesce(p.cancelled_no, 0) FROM weir.fold p WHERE p.flow = i.id ORDER BY p.cut DESC LIMIT 1),
	(SELECT t.waits_for FROM weir.tasks(i.parent, max_rows => 1000) t WHERE t.id = i.id) FROM weir._read_flows($1) i`

// fold says what is true once everything is counted, which has just been done; seen is what the database says.
// Returns the flows that have failed fast.
func (m *graphModel) fold(seen map[int64]*graphSeen) (fast []*graphFlow) {
	ids := m.ids()
	hit := map[int64]bool{} // what is within those that have failed fast
	for _, id := range ids {
		f := m.flows[id]
		if !f.counted {
			f.counted = true
			// Of tasks of the same name, one counts.
			for _, k := range m.kids(&graphFlow{id: f.parent}) {
				f.gone = f.gone || f.isTask && k.isTask && k != f && k.name == f.name
			}
			if f.parent != 0 && m.flows[f.parent].cancelled {
				m.cancel(f, m.flows[f.parent].cancelledNo)
			}
		}
		if f.isTask || f.sealNow {
			f.sealed = true
		}
		if f.passed && !f.sealed && !f.cancelNow {
			f.sealed, f.abandoned = true, true
		}
		f.passed = false
	}
	for _, id := range ids {
		if f := m.flows[id]; f.cancelNow {
			m.cancel(f, f.no)
		} else if f.retryNow {
			m.undo(f, f.no)
		}
	}
	m.startOver(ids) // what has ended may have started over, and failed fast, since the last cut
	for _, id := range ids {
		if f := m.flows[id]; f.failFast && !f.ended && !f.cancelled && seen[id].IsCancelled {
			fast = append(fast, f)
			for _, k := range m.tree(id) {
				if hit[k.id] = true; k.counted && !k.ended {
					k.sealed = true
				}
			}
		}
	}
	m.end(ids, hit, seen)
	for _, f := range fast {
		if !f.failedNow && !slices.ContainsFunc(fast, func(o *graphFlow) bool { return o != f && m.within(f.id, o.id) }) {
			m.wrong("flow %d is cancelled, and no member has failed", f.id)
		}
	}
	for _, id := range ids {
		f := m.flows[id]
		if f.failFast && !f.ended && f.failedNow && !f.cancelled && !hit[id] {
			m.wrong("flow %d does not fail fast", id)
		}
		if hit[id] && !f.ended {
			f.cancelled = true
		}
		if hit[id] { // of several that fail fast in one cut, the test does not know the order
			f.cancelledNo = seen[id].CancelledNo
		}
		f.sealNow, f.cancelNow, f.retryNow, f.failedNow = false, false, false, false
	}
	return fast
}

// startOver takes back ends: of flows in which members are unfinished again, of all that these are members of, and of tasks that may start after all.
func (m *graphModel) startOver(ids []int64) {
	for changed := true; changed; {
		changed = false
		for _, id := range ids {
			f := m.flows[id]
			if f.ended && (f.isOver || f.skipped && !m.mustSkip(f)) {
				f.ended, f.skipped, changed = false, false, true
				if f.generation++; f.parent != 0 {
					m.flows[f.parent].isOver = true
				}
			}
		}
	}
	for _, id := range ids {
		m.flows[id].isOver = false
	}
}

// end ends what has no unfinished members, and starts tasks, until nothing changes.
func (m *graphModel) end(ids []int64, hit map[int64]bool, seen map[int64]*graphSeen) {
	for changed := true; changed; {
		changed = false
		for _, id := range ids {
			f := m.flows[id]
			if f.ended || f.gone {
				continue
			}
			if f.isTask && !f.started {
				skips := m.mustSkip(f)
				starts := !skips && !slices.ContainsFunc(m.before(f), func(b *graphFlow) bool { return !b.ended })
				if hit[id] { // whether it has started, or was skipped, before its flow was cancelled depends on how many cuts were made before
					if !skips {
						starts, skips = seen[id].Job != nil, seen[id].Job == nil && seen[id].State == "cancelled"
					}
					f.cancelled = f.cancelled || seen[id].IsCancelled
				}
				if starts {
					f.started, changed = true, true
				} else if skips {
					f.skipped, f.ended, f.kind, changed = true, true, "cancelled", true
					m.passOn(f)
				}
				continue
			}
			jobs, unfinished, completed, failed, cancelled := m.counts(f)
			if !f.sealed || unfinished > 0 {
				continue
			}
			if hit[id] {
				f.cancelled = seen[id].IsCancelled
			}
			f.ended, changed = true, true
			switch {
			case f.cancelled:
				f.kind = "cancelled"
			case f.abandoned || failed > 0:
				f.kind = "failed"
			case cancelled > 0:
				f.kind = "cancelled"
			default:
				f.kind = "completed"
			}
			m.passOn(f)
			told := fmt.Sprintf("%d: %d jobs, %d completed, %d failed, %d cancelled, %s", f.generation, jobs, completed, failed, cancelled, countersText(f.counters))
			if f.onSuccess && f.kind == "completed" {
				m.callBack(f, "success "+told)
			}
			if f.onDone {
				m.callBack(f, "done "+told)
			}
		}
	}
}

// passOn notes that a member has failed.
func (m *graphModel) passOn(f *graphFlow) {
	if f.parent != 0 && f.kind == "failed" {
		m.flows[f.parent].failedNow = true
	}
}

func (m *graphModel) callBack(f *graphFlow, told string) {
	f.calledBack = append(f.calledBack, told)
	if f.parent != 0 {
		m.flows[f.parent].due++
	}
}

// state returns how a flow should look.
func (m *graphModel) state(f *graphFlow) string {
	_, _, _, failed, cancelled := m.counts(f)
	switch {
	case f.isTask && !f.started && f.skipped:
		return "cancelled"
	case f.isTask && !f.started:
		return "blocked"
	case !f.sealed:
		return "open"
	case !f.ended && f.cancelled:
		return "cancelling"
	case !f.ended:
		return "running"
	case f.cancelled:
		return "cancelled"
	case f.abandoned:
		return "abandoned"
	case failed+cancelled > 0:
		return "failed"
	}
	return "succeeded"
}

func countersText(counters map[string]int64) string {
	if len(counters) == 0 {
		return "null"
	}
	text, err := json.Marshal(counters)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// compare says where the database differs from the model.
func (m *graphModel) compare(seen map[int64]*graphSeen) {
	for _, id := range m.ids() {
		f, s := m.flows[id], seen[id]
		if f.gone {
			if s.Jobs != 0 || s.Job != nil {
				m.wrong("task %d (%s), which another transaction has added as well, is %+v", id, f.name, *s)
			}
			continue
		}
		jobs, unfinished, completed, failed, cancelled := m.counts(f)
		got := fmt.Sprint(s.State, " ", s.Generation, ": ", s.Jobs, " jobs: ", s.Unfinished, " ", s.Completed, " ", s.Failed, " ", s.Cancelled)
		want := fmt.Sprint(m.state(f), " ", f.generation, ": ", jobs, " jobs: ", unfinished, " ", completed, " ", failed, " ", cancelled)
		if got != want {
			m.wrong("flow %d (%s, in %d) is %s; want %s; model %+v", id, f.name, f.parent, got, want, *f)
		}
		counters := map[string]int64{}
		if s.Counters != nil {
			if err := json.Unmarshal([]byte(*s.Counters), &counters); err != nil {
				m.wrong("the counters of flow %d are %s: %v", id, *s.Counters, err)
			}
		}
		if !maps.Equal(counters, f.counters) {
			m.wrong("the counters of flow %d are %v, want %v", id, counters, f.counters)
		}
		var waits []string
		for _, b := range m.before(f) {
			if !b.ended && m.state(f) == "blocked" {
				waits = append(waits, b.name)
			}
		}
		if slices.Sort(waits); f.isTask && !slices.Equal(waits, s.WaitsFor) {
			m.wrong("task %d (%s) waits for %v, want %v", id, f.name, s.WaitsFor, waits)
		}
	}
}

// graphLog is a job that the engine itself has enqueued: a callback, or the job of a task.
type graphLog struct {
	ID      int64
	Flow    *int64
	Kind    string
	About   string
	IsStart bool
}

const graphNew = `SELECT id, flow, kind, coalesce(meta->>'weir.flow', meta->>'weir.task'), meta ? 'weir.task' FROM weir.job
	WHERE id > $1 AND meta ?| '{weir.flow,weir.task}' AND attempt = 1 AND put_off = 0 ORDER BY id`

// enqueued takes over what the engine has enqueued: the jobs of tasks that should have started, and the callbacks of flows that should have ended, each once.
func (m *graphModel) enqueued(all []graphLog, calls map[int64][]string) {
	for _, l := range all {
		if l.IsStart {
			f := m.flows[*l.Flow]
			if f == nil || !f.started || f.job != 0 {
				m.wrong("task %d has started with job %d, though it should not have: %+v", *l.Flow, l.ID, f)
				continue
			}
			f.job = l.ID
			m.jobs[l.ID] = &graphJob{flow: f.id}
			f.members = append(f.members, l.ID)
			continue
		}
		var c struct {
			callback
			Counters map[string]int64
		}
		if err := json.Unmarshal([]byte(l.About), &c); err != nil {
			m.wrong("a callback is told %s: %v", l.About, err)
		}
		calls[c.ID] = append(calls[c.ID], fmt.Sprintf("%s %d: %d jobs, %d completed, %d failed, %d cancelled, %s", l.Kind, c.Generation, c.Jobs, c.Completed, c.Failed, c.Cancelled, countersText(c.Counters)))
		m.jobs[l.ID] = &graphJob{isCallback: true}
		if l.Flow != nil {
			m.jobs[l.ID].flow = *l.Flow
			f := m.flows[*l.Flow]
			f.members = append(f.members, l.ID)
			f.due--
		}
	}
	for _, id := range m.ids() {
		f := m.flows[id]
		if f.due != 0 {
			m.wrong("flow %d lacks %d callbacks of flows within it", id, f.due)
		}
		if f.started && f.job == 0 {
			m.wrong("task %d (%s) has not started", id, f.name)
		}
		if !slices.Equal(f.calledBack, calls[id]) {
			m.wrong("flow %d (%s) has called back %q, want %q", id, f.name, calls[id], f.calledBack)
		}
	}
}

// rowsOf returns the rows of a query.
func rowsOf[T any](g *graphTest, conn *pgx.Conn, sql string, args ...any) []T {
	g.t.Helper()
	rows, err := conn.Query(g.t.Context(), sql, args...)
	if err != nil {
		g.t.Fatalf("%s: %v", sql, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		g.t.Fatalf("%s: %v", sql, err)
	}
	return all
}

// jobNow is how a job stands.
type jobNow struct {
	ID    int64
	State string
	Ended bool
	Error string
}

// look takes over how jobs have ended: those that the test has ended, those that claims have ended because they were cancelled, and those that a claim has
// found to be duplicates, which are members no more.
func (g *graphTest) look(all bool) {
	g.t.Helper()
	var ids []int64
	for id, j := range g.model.jobs {
		if all || j.ended == "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, n := range rowsOf[jobNow](g, g.conn, `SELECT j.id, j.state, j.finished_at IS NOT NULL, coalesce(j.error, '') FROM unnest($1::bigint[]) i(id) CROSS JOIN LATERAL weir.job_info(i.id) j`, ids) {
		j := g.model.jobs[n.ID]
		if !n.Ended {
			if j.ended != "" { // it was retried
				j.ended, j.isFinished = "", false
				g.model.flows[j.flow].isOver = true
			}
			continue
		}
		if strings.HasPrefix(n.Error, "duplicate of job ") {
			f := g.model.flows[j.flow]
			f.members = slices.DeleteFunc(f.members, func(id int64) bool { return id == n.ID })
			delete(g.model.jobs, n.ID)
			g.counts["duplicates"]++
			continue
		}
		if j.ended == "" {
			if !j.isFinished && !g.model.isDead(n.ID) && !g.model.mayBeDead(j) {
				g.t.Errorf("job %d has ended as %s, and nobody has ended it", n.ID, n.State)
			}
			j.ended, j.isFinished = n.State, false
			if f := g.model.flows[j.flow]; f != nil {
				f.failedNow = f.failedNow || n.State == "failed"
			}
		}
	}
}

// fold has all counted, and compares it with the model.
func (g *graphTest) fold() {
	g.t.Helper()
	g.look(false)
	foldAll(g.t, g.conn)
	seen := map[int64]*graphSeen{}
	for _, s := range rowsOf[graphSeen](g, g.conn, graphLook, g.model.ids()) {
		seen[s.ID] = &s
	}
	fast := g.model.fold(seen)
	all := rowsOf[graphLog](g, g.conn, graphNew, g.last)
	g.model.enqueued(all, g.calls)
	g.model.compare(seen)
	// Jobs of flows that have failed fast: those that were there before do not start any more, nor do those of this cut, but callbacks may.
	top := value[int64](g.t, g.conn, `SELECT coalesce(pg_sequence_last_value('weir.job_id'), 0)`)
	for _, f := range fast {
		g.model.cancels = append(g.model.cancels, graphCancel{flow: f.id, upto: top})
		for _, l := range all {
			g.model.jobs[l.ID].mayRun = !l.IsStart
		}
	}
	g.last = max(g.last, top)
}
