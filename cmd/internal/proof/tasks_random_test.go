package proof

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestRandomGraphsEndAsAModelSays: flows within flows, tasks that come after others, callbacks that are members, counters, flows that fail fast or are never
// sealed, under commits and rollbacks, ends of every kind, dead workers, cancellations and retries at every level, moves and rebases in a random order. Each
// time that all is counted, each flow and task is in the state, and has the counts, that a model in memory says; a task has started once, when those that it
// comes after have ended, or not at all; and each generation has called back once, and was told the truth.
func TestRandomGraphsEndAsAModelSays(t *testing.T) {
	t.Parallel()
	seed := newSeed(t)
	began := time.Now()
	for nr := uint64(0); nr < 1 || time.Since(began) < *longFlag; nr++ {
		runGraphs(t, seed, nr)
		if t.Failed() {
			t.Fatalf("in run %d", nr)
		}
	}
}

func runGraphs(t *testing.T, seed, nr uint64) {
	url := pgtest.Database(t)
	g := &graphTest{t: t, conn: connect(t, url), rng: rand.New(rand.NewPCG(seed, nr)), counts: map[string]int{}, calls: map[int64][]string{}, ran: map[string]int64{}}
	defer func() { _ = g.conn.Close(t.Context()) }()
	g.model = graphModel{flows: map[int64]*graphFlow{}, jobs: map[int64]*graphJob{}, wrong: func(format string, args ...any) { t.Helper(); t.Errorf(format, args...) }}
	for range 3 {
		g.open = append(g.open, &graphWork{conn: connect(t, url)})
		defer func() { _ = g.open[len(g.open)-1].conn.Close(t.Context()) }()
	}
	g.start()
	for step := range 250 {
		did := g.step()
		g.counts[did]++
		if testing.Verbose() {
			t.Logf("step %d: %s", step, did)
		}
		if t.Failed() {
			t.Fatalf("at step %d of run %d: %s", step, nr, did)
		}
	}
	for _, w := range g.open {
		g.finishWork(w, true)
	}
	g.workOff()
	// Nobody fails any more: once all is retried, each task has started, but those that need a flow that was abandoned.
	for range 3 {
		for _, id := range g.model.ids() {
			if f := g.model.flows[id]; f.parent == 0 {
				g.fold()
				g.retryFlow(id)
			}
		}
		g.workOff()
	}
	for _, id := range g.model.ids() {
		f := g.model.flows[id]
		if !f.gone && (f.cancelled || f.isTask && !f.started && !slices.ContainsFunc(g.model.before(f), func(b *graphFlow) bool { return b.kind != "completed" })) {
			t.Errorf("in the end, after everything was retried, %d (%s) is %s", id, f.name, g.model.state(f))
		}
	}
	t.Logf("run %d: %d flows and tasks, %d jobs; %v", nr, len(g.model.flows), len(g.model.jobs), g.counts)
}

// graphTest is the sessions of a random test of flows.
type graphTest struct {
	t      *testing.T
	conn   *pgx.Conn
	rng    *rand.Rand
	model  graphModel
	worker int32
	held   []attempt
	open   []*graphWork
	counts map[string]int
	calls  map[int64][]string // callbacks that were found, by flow
	last   int64              // jobs up to this one were looked at
	ran    map[string]int64   // which job was started of those that are to be done once
	names  int
}

// graphWork is an open transaction.
type graphWork struct {
	conn  *pgx.Conn
	begun bool
	ended []attempt
	own   []*graphFlow // flows and tasks that it has created
	then  []func()     // what is true once it commits
}

func (g *graphTest) exec(sql string, args ...any) { g.t.Helper(); exec(g.t, g.conn, sql, args...) }

func (g *graphTest) start() {
	g.worker = startWorker(g.t, g.conn, "q", "other", "back")
	g.held = nil
}

func (g *graphTest) chance(percent int) bool { return g.rng.IntN(100) < percent }

// pick returns one of some; ok: there is one.
func pick[T any](g *graphTest, all []T) (one T, ok bool) {
	if len(all) == 0 {
		return one, false
	}
	return all[g.rng.IntN(len(all))], true
}

// take removes one of the attempts that are held.
func (g *graphTest) take() (a attempt, ok bool) {
	if len(g.held) == 0 {
		return a, false
	}
	i := g.rng.IntN(len(g.held))
	a = g.held[i]
	g.held = slices.Delete(g.held, i, i+1)
	return a, true
}

// addable returns flows that take jobs, now and in what a transaction has done; within: which must be around or within this one, if it is not 0.
func (g *graphTest) addable(w *graphWork, member int64) (all []*graphFlow) {
	for _, id := range g.model.ids() {
		f := g.model.flows[id]
		if f.ended || f.gone || f.cancelled || f.isTask && !f.started || g.isCancelling(f) || !f.counted && f.isTask {
			continue
		}
		// Whoever is a member may add while it runs; others before it is sealed. Some do not keep to that.
		if !f.sealed && !f.sealNow || member != 0 && g.model.within(member, id) || g.chance(10) {
			all = append(all, f)
		}
	}
	if w != nil {
		for _, f := range w.own {
			if !f.isTask {
				all = append(all, f)
			}
		}
	}
	return all
}

// isCancelling reports whether a flow, or one around it, was cancelled, and this is not counted yet.
func (g *graphTest) isCancelling(f *graphFlow) bool {
	for ; f != nil; f = g.model.flows[f.parent] {
		if f.cancelNow {
			return true
		}
	}
	return false
}

// later does something when a transaction commits, or at once.
func later(w *graphWork, do func()) {
	if w != nil {
		w.then = append(w.then, do)
	} else {
		do()
	}
}

// add adds something to a flow.
func (g *graphTest) add(w *graphWork, member int64) string {
	conn := g.conn
	if w != nil {
		conn = w.conn
	}
	f, ok := pick(g, g.addable(w, member))
	switch n := g.rng.IntN(12); {
	case !ok || n == 0 && len(g.model.flows) < 150:
		return g.create(w, conn, 0)
	case n < 3:
		return g.create(w, conn, f.id)
	case n < 6:
		return g.addTasks(w, conn, f)
	case n < 7 && g.chance(50):
		n := int64(g.rng.IntN(20) - 5)
		exec(g.t, conn, `SELECT weir.increment($1, 'n', $2)`, f.id, n)
		later(w, func() { f.counters["n"] += n })
		return "count"
	case n < 8:
		once := fmt.Sprint(g.rng.IntN(4))
		id := value[int64](g.t, conn, `SELECT weir.enqueue('q', 'k', flow => $1, once => $2)`, f.id, once)
		later(w, func() { g.model.join(f.id, fmt.Sprint(f.id, " ", once), id) })
		return "add once"
	case n < 9:
		id := value[int64](g.t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 hour', flow => $1)`, f.id)
		later(w, func() { g.model.join(f.id, "", id) })
		return "add later"
	default:
		ids := addTo(g.t, conn, f.id, 1+g.rng.IntN(3))
		later(w, func() { g.model.join(f.id, "", ids...) })
		return "add jobs"
	}
}

// create creates a flow, within another if parent is not 0.
func (g *graphTest) create(w *graphWork, conn *pgx.Conn, parent int64) string {
	g.names++
	f := &graphFlow{parent: parent, name: fmt.Sprint("flow ", g.names), onDone: g.chance(60), onSuccess: g.chance(60), failFast: g.chance(20), passed: g.chance(15)}
	f.id = value[int64](g.t, conn, `SELECT weir.flow($1, on_done => CASE WHEN $2 THEN '{"queue": "back", "kind": "done"}'::jsonb END, on_success => CASE WHEN $3 THEN '{"queue": "back", "kind": "success"}'::jsonb END,
		fail_fast => $4, deadline => CASE WHEN $5 THEN now() END, parent => nullif($6::bigint, 0))`, f.name, f.onDone, f.onSuccess, f.failFast, f.passed, parent)
	if w != nil {
		w.own = append(w.own, f)
	}
	later(w, func() { g.model.create(f) })
	return "create a flow"
}

// addTasks adds tasks to a flow, in a random order; some names are of a small set, so that several transactions may add the same.
func (g *graphTest) addTasks(w *graphWork, conn *pgx.Conn, in *graphFlow) string {
	there := map[string]bool{} // and as ids, those that this transaction sees
	var names []string
	for _, id := range g.model.ids() {
		if k := g.model.flows[id]; k.parent == in.id && k.isTask && !there[k.name] {
			there[k.name], names = true, append(names, k.name)
		}
	}
	if w != nil {
		for _, k := range w.own {
			if k.parent == in.id && k.isTask && !there[k.name] {
				there[k.name], names = true, append(names, k.name)
			}
		}
	}
	var tasks []task
	for range 1 + g.rng.IntN(5) {
		one := task{Task: fmt.Sprint("t", g.rng.IntN(12)), IgnoreFailed: g.chance(30), Queue: "q", Kind: "task"}
		if slices.ContainsFunc(tasks, func(k task) bool { return k.Task == one.Task }) {
			continue
		}
		if !there[one.Task] {
			for _, name := range names {
				if g.chance(35) {
					one.After = append(one.After, name)
				}
			}
			names = append(names, one.Task)
		}
		tasks = append(tasks, one)
	}
	g.rng.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	text, err := json.Marshal(tasks)
	if err != nil {
		g.t.Fatal(err)
	}
	ids := value[[]int64](g.t, conn, `SELECT weir.add_tasks($1, $2::text::jsonb)`, in.id, string(text))
	for i, one := range tasks {
		if there[one.Task] {
			continue
		}
		k := &graphFlow{id: ids[i], parent: in.id, name: one.Task, isTask: true, after: one.After, lenient: one.IgnoreFailed}
		if w != nil {
			w.own = append(w.own, k)
		}
		later(w, func() { g.model.create(k) })
	}
	return "add tasks"
}

// claim hands out jobs, none of which may have been cancelled before.
func (g *graphTest) claim(most int32) {
	g.t.Helper()
	for _, queue := range []string{"q", "other", "back"} {
		got, err := claim(g.t.Context(), g.conn, g.worker, []string{queue}, []int32{most})
		if err != nil {
			g.t.Fatal(err)
		}
		for _, a := range got {
			j := g.model.jobs[a.ID]
			switch dead := j != nil && g.model.isDead(a.ID); {
			case j == nil:
				g.t.Errorf("job %d (%s) was claimed, which is unknown", a.ID, a.Kind)
			case a.Dropped != nil:
				if _, err := finish(g.t.Context(), g.conn, g.worker, a, "cancelled", time.Time{}); err != nil {
					g.t.Fatal(err)
				}
				continue
			case dead && !j.mayRun:
				g.t.Errorf("job %d (%s) of flow %d has started, though it was cancelled: %+v", a.ID, a.Kind, j.flow, *j)
			case j.once != "" && g.ran[j.once] != 0 && g.ran[j.once] != a.ID:
				g.t.Errorf("job %d is done as well as %d, though what they do is to be done once", a.ID, g.ran[j.once])
			}
			if j != nil && j.once != "" {
				g.ran[j.once] = a.ID
			}
			g.held = append(g.held, a)
		}
	}
}

// finishWork ends an open transaction.
func (g *graphTest) finishWork(w *graphWork, commit bool) {
	g.t.Helper()
	if !w.begun {
		return
	}
	if commit {
		exec(g.t, w.conn, `COMMIT`)
		for _, do := range w.then {
			do()
		}
	} else {
		exec(g.t, w.conn, `ROLLBACK`)
		g.held = append(g.held, w.ended...)
	}
	*w = graphWork{conn: w.conn}
}

// cancelFlow cancels a flow.
func (g *graphTest) cancelFlow(id int64) {
	upto := value[int64](g.t, g.conn, `SELECT coalesce(pg_sequence_last_value('weir.job_id'), 0)`)
	was := value[string](g.t, g.conn, `SELECT state FROM weir.flow_info($1)`, id)
	now := value[string](g.t, g.conn, `SELECT weir.cancel_flow($1)`, id)
	if slices.Contains([]string{"open", "running", "blocked"}, was) {
		g.model.cancels = append(g.model.cancels, graphCancel{flow: id, upto: upto})
		g.model.flows[id].cancelNow, g.model.flows[id].no = true, value[int64](g.t, g.conn, `SELECT max(no) FROM weir.cancellation_where WHERE flow = $1 AND NOT is_late`, id)
	} else if now != was {
		g.t.Errorf("flow %d is %s; cancel_flow says it is %s", id, was, now)
	}
}

// retryFlow retries all failed and cancelled members of a flow.
func (g *graphTest) retryFlow(id int64) {
	g.t.Helper()
	var after, next *string
	for {
		var n int
		if err := g.conn.QueryRow(g.t.Context(), `SELECT retried, next FROM weir.retry_flow($1, $2, $3)`, id, after, 1+g.rng.IntN(20)).Scan(&n, &next); err != nil {
			g.t.Fatal(err)
		}
		if after = next; after == nil {
			break
		}
	}
	for _, f := range g.model.tree(id) {
		for _, job := range f.members {
			if !g.isRunning(job) {
				g.reprieve(job)
			}
		}
	}
	g.model.flows[id].retryNow, g.model.flows[id].no = true, math.MaxInt64
	g.look(true)
	for _, f := range g.model.tree(id) {
		for _, job := range f.members {
			if j := g.model.jobs[job]; (j.ended == "failed" || j.ended == "cancelled") && j.once == "" {
				g.t.Errorf("job %d of flow %d is still %s after the retry of flow %d", job, f.id, j.ended, id)
			}
		}
	}
}

// isRunning reports whether a job is held, or has ended in a transaction that is still open.
func (g *graphTest) isRunning(job int64) bool {
	is := func(a attempt) bool { return a.ID == job }
	return slices.ContainsFunc(g.held, is) || slices.ContainsFunc(g.open, func(w *graphWork) bool { return slices.ContainsFunc(w.ended, is) })
}

func (g *graphTest) reprieve(job int64) {
	j := g.model.jobs[job]
	j.cancelled, j.reprieved, j.mayRun = false, len(g.model.cancels), false
}

// workOff seals all flows, and completes what there is, until nothing is left.
func (g *graphTest) workOff() {
	g.t.Helper()
	for range 200 {
		for _, id := range g.model.ids() {
			g.seal(id)
		}
		g.exec(`SELECT weir._promote(upto => now() + interval '1 day')`)
		g.claim(960)
		for _, a := range g.held {
			g.model.jobs[a.ID].isFinished = true
		}
		mustComplete(g.t, g.conn, g.worker, g.held)
		did := len(g.held)
		g.held = nil
		g.fold()
		if g.t.Failed() {
			g.t.FailNow()
		}
		if did == 0 && !slices.ContainsFunc(g.model.ids(), func(id int64) bool { return !g.model.flows[id].ended && !g.model.flows[id].gone }) {
			return
		}
	}
	for _, id := range g.model.ids() {
		if f := g.model.flows[id]; !f.ended && !f.gone {
			g.t.Errorf("%d (%s) does not end: it is %s", id, f.name, g.model.state(f))
		}
	}
}

func (g *graphTest) seal(id int64) {
	f := g.model.flows[id]
	if g.isCancelling(f) || f.isTask {
		return
	}
	if g.conn.QueryRow(g.t.Context(), `SELECT weir.seal($1)`, id).Scan(new(bool)) != nil {
		g.t.Fatal(errors.New("seal"))
	}
	f.sealNow = true
}

// uncounted reports whether cancellations, or retries, are not counted yet. Of those that are counted in one cut, the order is not kept, so the test does not mix them.
func (g *graphTest) uncounted() bool {
	for _, f := range g.model.flows {
		if f.cancelNow || f.retryNow || f.isOver && f.ended {
			return true
		}
	}
	return false
}

func (g *graphTest) isOpen() bool {
	return slices.ContainsFunc(g.open, func(w *graphWork) bool { return w.begun })
}

func (g *graphTest) step() string {
	g.t.Helper()
	w := g.open[g.rng.IntN(len(g.open))]
	switch n := g.rng.IntN(34); {
	case n < 4:
		return g.add(nil, 0)
	case n < 8: // who holds the flow open, or a member that completes in the same transaction
		if !w.begun {
			exec(g.t, w.conn, `BEGIN`)
			w.begun = true
		}
		a, ok := g.take()
		if !ok || g.chance(40) {
			if ok {
				g.held = append(g.held, a)
			}
			return "in a transaction: " + g.add(w, 0)
		}
		did := "in a member's transaction: " + g.add(w, g.model.jobs[a.ID].flow)
		if err := completeTx(g.t.Context(), w.conn, g.worker, a); err != nil {
			g.t.Fatal(err)
		}
		w.ended = append(w.ended, a)
		later(w, func() { g.model.jobs[a.ID].isFinished = true })
		return did
	case n < 10: // a member that adds something, and ends later
		if a, ok := pick(g, g.held); ok {
			return "a member: " + g.add(nil, g.model.jobs[a.ID].flow)
		}
		return "nothing"
	case n < 12:
		g.finishWork(w, true)
		return "commit"
	case n == 12:
		g.finishWork(w, false)
		return "roll back"
	case n < 16:
		g.claim(int32(1 + g.rng.IntN(15)))
		return "claim"
	case n < 21:
		outcome := someEndings[g.rng.IntN(len(someEndings))]
		for range 1 + g.rng.IntN(6) {
			if a, ok := g.take(); ok {
				endAs(g.t, g.conn, g.worker, outcome, a)
				g.model.jobs[a.ID].isFinished = true
			}
		}
		return outcome
	case n < 23:
		if id, ok := pick(g, g.model.ids()); ok {
			g.seal(id)
		}
		return "seal"
	case n == 23:
		if g.uncounted() {
			g.fold()
		}
		if id, ok := pick(g, g.model.ids()); ok && !g.model.flows[id].gone {
			g.cancelFlow(id)
		}
		return "cancel a flow"
	case n < 26:
		if g.uncounted() {
			g.fold()
		}
		g.look(false)
		if id, ok := pick(g, g.model.ids()); ok && !g.model.flows[id].gone {
			g.retryFlow(id)
		}
		return "retry a flow"
	case n == 26:
		if g.uncounted() {
			g.fold()
		}
		g.look(false)
		return g.retryOne()
	case n == 27:
		if id, ok := pick(g, slices.Sorted(maps.Keys(g.model.jobs))); ok && g.model.jobs[id].ended == "" && !g.model.jobs[id].isFinished {
			g.exec(`SELECT weir.cancel($1)`, id)
			g.model.jobs[id].cancelled = true
		}
		return "cancel a job"
	case n == 28:
		if g.chance(50) {
			g.exec(`SELECT weir._promote(upto => now() + interval '1 day')`)
			return "promote"
		}
		g.exec(`SELECT weir.move_where('q', to_queue => 'other')`)
		return "move"
	case n == 29:
		if slices.ContainsFunc(g.open, func(w *graphWork) bool { return len(w.ended) > 0 }) {
			return "nothing"
		}
		g.exec(`SELECT weir._fence($1)`, g.worker)
		settle(g.t, g.conn, g.worker)
		g.start()
		return "lose a worker"
	case n == 30:
		if g.chance(80) || g.isOpen() {
			g.exec(`SELECT weir._compact_flows(), setval('weir.active_arrival', pg_sequence_last_value('weir.active_arrival') % 3 + 1)`)
			retireCancellations(g.t, g.conn)
			return "tidy"
		}
		moveElsewhere(g.t, g.conn)
		g.exec(`SELECT weir.rebase()`)
		g.start()
		return "rebase"
	default:
		g.fold()
		return "fold"
	}
}

// retryOne retries a job that has ended, if there is one.
func (g *graphTest) retryOne() string {
	var ended []int64
	for _, id := range slices.Sorted(maps.Keys(g.model.jobs)) {
		if j := g.model.jobs[id]; j.ended != "" && j.once == "" && j.flow != 0 {
			ended = append(ended, id)
		}
	}
	id, ok := pick(g, ended)
	if !ok {
		return "nothing"
	}
	g.exec(`SELECT weir.retry($1)`, id)
	g.reprieve(id)
	f := g.model.flows[g.model.jobs[id].flow]
	f.retryNow, f.no = f.cancelled, g.model.lastAround(f) // it is cancelled no more
	g.look(true)
	return "retry a job"
}
