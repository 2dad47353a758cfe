package proof

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/schema"
)

// TestRandomFlowsEndAsAModelSays: under additions, commits and rollbacks, ends of every kind, dead workers, cancellations, retries, moves and rebases in a
// random order, each flow counts what became of its members, and has had the callbacks of each generation once, as a model in memory has them.
func TestRandomFlowsEndAsAModelSays(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	m := &flowModel{t: t, conn: connect(t, url), rng: rand.New(rand.NewPCG(newSeed(t), 1)), flows: map[int64]*modelFlow{}, counts: map[string]int{}}
	for range 4 {
		m.open = append(m.open, &openWork{conn: connect(t, url)})
	}
	m.start()
	began := time.Now()
	for step := 0; step < 200 || time.Since(began) < *longFlag; step++ {
		m.step()
		if t.Failed() {
			t.Fatalf("at step %d", step)
		}
	}
	for _, w := range m.open {
		m.finishWork(w, true)
	}
	for _, id := range m.ids() {
		m.exec(`SELECT weir.seal($1)`, id)
		m.flows[id].sealed = true
	}
	for range 100 {
		m.exec(`SELECT weir._promote(upto => now() + interval '1 day')`)
		m.claim(960)
		if len(m.held) == 0 {
			break
		}
		mustComplete(t, m.conn, m.worker, m.held)
		m.held = nil
	}
	m.fold()
	for _, id := range m.ids() {
		f := m.flows[id]
		if f.unfinished(m) > 0 || f.fired == 0 {
			t.Errorf("in the end, flow %d has %d unfinished members, and has ended %d times", id, f.unfinished(m), f.fired)
		}
	}
	t.Logf("%d flows; %v", len(m.flows), m.counts)
}

// flowModel is what flows should be, and the sessions that use them.
type flowModel struct {
	t      *testing.T
	conn   *pgx.Conn
	rng    *rand.Rand
	worker int32
	held   []attempt
	open   []*openWork
	flows  map[int64]*modelFlow
	counts map[string]int
}

// openWork is what an open transaction has done, which counts once it commits.
type openWork struct {
	conn   *pgx.Conn
	begun  bool
	added  map[int64][]int64 // members, by flow
	ended  []attempt
	sealed []int64
}

type modelFlow struct {
	members  []int64
	sealed   bool
	cancels  bool
	reopened bool // a member was added or retried since the last cut
	ended    bool // it had when the last cut was made
	fired    int  // how often it has ended
	success  int  // how often with all members completed
}

func (m *flowModel) exec(sql string, args ...any) { m.t.Helper(); exec(m.t, m.conn, sql, args...) }

func (m *flowModel) start() {
	m.worker = startWorker(m.t, m.conn, "q", "other", "back")
	m.held = nil
}

// states returns how many members a flow has in each state, as the log of results says. Those that are found to be duplicates are none.
func (f *modelFlow) states(m *flowModel) (unfinished, completed, failed, cancelled int64) {
	m.t.Helper()
	const duplicates = `SELECT i.id FROM unnest($1::bigint[]) i(id) CROSS JOIN LATERAL weir.job_info(i.id) j WHERE j.error LIKE 'duplicate of job %'`
	if gone := column[int64](m.t, m.conn, duplicates, f.members); len(gone) > 0 {
		f.members = slices.DeleteFunc(f.members, func(id int64) bool { return slices.Contains(gone, id) })
		m.counts["duplicates"] += len(gone)
	}
	if err := m.conn.QueryRow(m.t.Context(), `SELECT count(*) FILTER (WHERE j.finished_at IS NULL), count(*) FILTER (WHERE j.state = 'completed'), count(*) FILTER (WHERE j.state = 'failed'),
		count(*) FILTER (WHERE j.state = 'cancelled' AND j.finished_at IS NOT NULL) FROM unnest($1::bigint[]) i(id) CROSS JOIN LATERAL weir.job_info(i.id) j`, f.members).Scan(&unfinished, &completed, &failed, &cancelled); err != nil {
		m.t.Fatal(err)
	}
	return unfinished, completed, failed, cancelled
}

func (f *modelFlow) unfinished(m *flowModel) int64 {
	n, _, _, _ := f.states(m)
	return n
}

func (m *flowModel) claim(most int32) {
	m.t.Helper()
	for _, queue := range []string{"q", "other"} {
		for _, a := range claimRows(m.t, m.conn, m.worker, queue, most) {
			if a.ID == 0 {
				continue // it says that there may be more
			}
			if a.Dropped != nil {
				if _, err := finish(m.t.Context(), m.conn, m.worker, a, "cancelled", time.Time{}); err != nil {
					m.t.Fatal(err)
				}
				continue
			}
			m.held = append(m.held, a)
		}
	}
}

// anyFlow returns one that takes jobs.
func (m *flowModel) anyFlow() int64 {
	var ids []int64
	for _, id := range m.ids() {
		f := m.flows[id]
		if !f.cancels && (!f.sealed || f.unfinished(m) > 0) {
			ids = append(ids, id)
		}
	}
	if slices.Sort(ids); len(ids) == 0 {
		return m.create()
	}
	return ids[m.rng.IntN(len(ids))]
}

func (m *flowModel) create() int64 {
	id := newFlow(m.t, m.conn, "f")
	m.flows[id] = &modelFlow{}
	return id
}

// ids returns the flows, in order.
func (m *flowModel) ids() []int64 { return slices.Sorted(maps.Keys(m.flows)) }

// add adds members over a session.
func (m *flowModel) add(conn *pgx.Conn, flow int64) []int64 {
	m.t.Helper()
	switch n := 1 + m.rng.IntN(4); m.rng.IntN(4) {
	case 2: // what is to be done once, which may be there already, or be found to be so when it is claimed
		return value[[]int64](m.t, conn, `SELECT weir.enqueue_many(array_agg('q'::text), array_agg('k'::text), key => array_agg(CASE WHEN n % 2 = 0 THEN 'key' END), flow => array_agg($1::bigint),
			once => array_agg((n % 5)::text)) FROM generate_series($2::int, $2::int + $3::int) n`, flow, m.rng.IntN(8), n)
	case 0:
		return []int64{value[int64](m.t, conn, `SELECT weir.enqueue('q', 'k', max_attempts => 3, flow => $1)`, flow)}
	case 1:
		return []int64{value[int64](m.t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 hour', flow => $1)`, flow)}
	default:
		return value[[]int64](m.t, conn, `SELECT weir.enqueue_many(array_agg('q'::text), array_agg('k'::text), key => array_agg(CASE WHEN n % 2 = 0 THEN 'key' END), flow => array_agg($1::bigint))
			FROM generate_series(1, $2::int) n`, flow, n)
	}
}

func (m *flowModel) joined(flow int64, ids []int64) {
	f := m.flows[flow]
	for _, id := range ids {
		if !slices.Contains(f.members, id) {
			f.members, f.reopened = append(f.members, id), true
		}
	}
}

// take removes up to n of the attempts that are held.
func (m *flowModel) take(n int) []attempt {
	m.rng.Shuffle(len(m.held), func(i, j int) { m.held[i], m.held[j] = m.held[j], m.held[i] })
	n = min(n, len(m.held))
	some := slices.Clone(m.held[:n])
	m.held = m.held[n:]
	return some
}

// finishWork ends an open transaction.
func (m *flowModel) finishWork(w *openWork, commit bool) {
	m.t.Helper()
	if !w.begun {
		return
	}
	if commit {
		exec(m.t, w.conn, `COMMIT`)
		for _, flow := range slices.Sorted(maps.Keys(w.added)) {
			m.joined(flow, w.added[flow])
		}
		for _, id := range w.sealed {
			m.flows[id].sealed = true
		}
	} else {
		exec(m.t, w.conn, `ROLLBACK`)
		m.held = append(m.held, w.ended...)
	}
	*w = openWork{conn: w.conn}
}

func (m *flowModel) step() {
	m.t.Helper()
	w := m.open[m.rng.IntN(len(m.open))]
	did := ""
	switch m.rng.IntN(22) {
	case 0:
		did = "create"
		m.create()
	case 1, 2, 3:
		did = "add"
		flow := m.anyFlow()
		m.joined(flow, m.add(m.conn, flow))
	case 4, 5: // who holds the flow open, or a member, whose end waits for this transaction
		did = "work in a transaction"
		if !w.begun {
			exec(m.t, w.conn, `BEGIN`)
			w.begun, w.added = true, map[int64][]int64{}
		}
		if some := m.take(1); len(some) == 1 && m.rng.IntN(2) == 0 {
			flow := value[*int64](m.t, m.conn, `SELECT flow FROM weir.job_info($1)`, some[0].ID)
			if flow != nil && !m.flows[*flow].cancels {
				w.added[*flow] = append(w.added[*flow], m.add(w.conn, *flow)...)
			}
			if err := completeTx(m.t.Context(), w.conn, m.worker, some[0]); err != nil {
				m.t.Fatal(err)
			}
			w.ended = append(w.ended, some...)
		} else {
			m.held = append(m.held, some...)
			for _, id := range m.ids() {
				f := m.flows[id]
				if !f.sealed && !f.cancels {
					w.added[id] = append(w.added[id], m.add(w.conn, id)...)
					break
				}
			}
		}
	case 6, 7:
		did = "commit"
		m.finishWork(w, true)
	case 8:
		did = "roll back"
		m.finishWork(w, false)
	case 9, 10, 11:
		did = "claim"
		m.claim(int32(1 + m.rng.IntN(20)))
	case 12, 13, 14:
		did = "end"
		outcome := someEndings[m.rng.IntN(len(someEndings))]
		if some := m.take(1 + m.rng.IntN(10)); len(some) > 0 {
			if refused, err := record(m.t.Context(), m.conn, m.worker, some, outcome, nil); err != nil || len(refused) > 0 {
				m.t.Fatal(refused, err)
			}
		}
	case 15:
		did = "seal"
		for _, id := range m.ids() {
			f := m.flows[id]
			if !f.sealed && m.rng.IntN(2) == 0 {
				m.exec(`SELECT weir.seal($1)`, id)
				f.sealed = true
				break
			}
		}
	case 16:
		did = "retry"
		for _, id := range m.ids() {
			f := m.flows[id]
			if _, _, failed, cancelled := f.states(m); failed+cancelled > 0 {
				if m.rng.IntN(2) == 0 {
					m.exec(`SELECT weir.retry_flow($1)`, id)
				} else {
					for _, member := range f.members {
						m.exec(`SELECT weir.retry($1) WHERE (SELECT state FROM weir.job_info($1)) = 'failed'`, member)
					}
				}
				if _, _, failed2, cancelled2 := f.states(m); failed2 < failed || cancelled2 < cancelled {
					f.reopened = true
				}
				f.cancels = f.cancels && value[bool](m.t, m.conn, `SELECT state IN ('cancelling', 'cancelled') FROM weir.flow_info($1)`, id)
				break
			}
		}
	case 17:
		did = "cancel"
		flow := m.anyFlow()
		f := m.flows[flow]
		if m.rng.IntN(3) > 0 && len(f.members) > 0 {
			m.exec(`SELECT weir.cancel($1)`, f.members[m.rng.IntN(len(f.members))])
		} else if !slices.ContainsFunc(m.open, func(w *openWork) bool { return w.begun }) { // an open transaction may have added members
			m.exec(`SELECT weir.cancel_flow($1)`, flow)
			f.cancels, f.sealed = true, true
		}
	case 18:
		did = "promote or move"
		if m.rng.IntN(2) == 0 {
			m.exec(`SELECT weir._promote(upto => now() + interval '1 day')`)
		} else {
			m.exec(`SELECT weir.move_where('q', to_queue => 'other')`)
		}
	case 19:
		did = "lose a worker"
		if !slices.ContainsFunc(m.open, func(w *openWork) bool { return len(w.ended) > 0 }) {
			m.exec(`SELECT weir._fence($1)`, m.worker)
			settle(m.t, m.conn, m.worker)
			m.start()
		}
	case 20:
		did = "tidy or rebase"
		if m.rng.IntN(8) > 0 {
			m.exec(`SELECT weir._compact_flows(), setval('weir.active_arrival', pg_sequence_last_value('weir.active_arrival') % 3 + 1)`)
			retireCancellations(m.t, m.conn)
		} else if !slices.ContainsFunc(m.open, func(w *openWork) bool { return w.begun }) {
			moveElsewhere(m.t, m.conn)
			m.exec(`SELECT weir.rebase()`)
			m.start()
		}
	case 21:
		did = "fold"
		m.fold()
	}
	m.counts[did]++
	if m.rng.IntN(5) == 0 {
		m.check()
	}
}

// fold makes a cut, and says what it should have found.
func (m *flowModel) fold() {
	m.t.Helper()
	fold(m.t, m.conn)
	for _, id := range m.ids() {
		f := m.flows[id]
		unfinished, _, failed, cancelled := f.states(m)
		if done := f.sealed && unfinished == 0; done && (!f.ended || f.reopened) {
			f.fired++
			if failed+cancelled == 0 && !f.cancels {
				f.success++
			}
		}
		f.ended, f.reopened = f.sealed && unfinished == 0, false
		var done, success int
		for nr, c := range callbacks(m.t, m.conn, id) {
			if c.Kind == "done" {
				if done++; c.Generation != done {
					m.t.Errorf("callback %d of flow %d is of generation %d, want %d", nr, id, c.Generation, done)
				}
			} else {
				success++
			}
		}
		if done != f.fired || success != f.success {
			m.t.Errorf("flow %d has had on_done %d times, and on_success %d times, want %d and %d", id, done, success, f.fired, f.success)
		}
	}
	m.check()
}

// check compares the counts of all flows with what became of their members.
func (m *flowModel) check() {
	m.t.Helper()
	for _, id := range m.ids() {
		f := m.flows[id]
		unfinished, completed, failed, cancelled := f.states(m)
		got := flowNow(m.t, m.conn, id)
		if got.Jobs != int64(len(f.members)) || got.Unfinished != unfinished || got.Completed != completed || got.Failed != failed || got.Cancelled != cancelled {
			m.t.Errorf("flow %d is %+v, want %d jobs: %d unfinished, %d completed, %d failed, %d cancelled", id, got, len(f.members), unfinished, completed, failed, cancelled)
		}
		if got.State == "open" == f.sealed {
			m.t.Errorf("flow %d is %s; it is sealed: %v", id, got.State, f.sealed)
		}
	}
}

// TestEachFlowCallsBackOnceThoughAllAreKilled: workers, and those who count, lose their sessions at random moments, and the server is killed; in the end
// each flow has ended, and each of its callbacks was enqueued once.
func TestEachFlowCallsBackOnceThoughAllAreKilled(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	url := server.URL("postgres")
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	seed := newSeed(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var created atomic.Int64
	var all sync.WaitGroup
	// session runs a call again and again, in one session after the other.
	session := func(nr uint64, call func(conn *pgx.Conn, rng *rand.Rand) error) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, nr))
			for ctx.Err() == nil {
				conn, err := pgx.Connect(ctx, url)
				for err == nil && ctx.Err() == nil {
					err = call(conn, rng)
				}
				if conn != nil {
					_ = conn.Close(context.Background())
				}
				sleep.For(ctx, 5*time.Millisecond)
			}
		})
	}
	stopped := make(chan struct{})
	for nr := range uint64(2) {
		session(nr, func(conn *pgx.Conn, rng *rand.Rand) error {
			if closed(stopped) {
				sleep.For(ctx, 10*time.Millisecond)
				return nil
			}
			if rng.IntN(50) == 0 { // they create no more than the others can do
				var open int
				if err := conn.QueryRow(ctx, `SELECT count(*) FROM weir.flow f WHERE f.id > pg_sequence_last_value('weir.flow_id') - 5000 AND f.task IS NULL
					AND NOT EXISTS (SELECT FROM weir.fold p WHERE p.flow = f.id AND p.fired_at IS NOT NULL)`).Scan(&open); err != nil {
					return err
				}
				sleep.For(ctx, time.Duration(open)*5*time.Millisecond)
			}
			sql := `WITH f AS MATERIALIZED (SELECT weir.flow('f', on_done => '{"queue": "back", "kind": "done"}') AS id)
				SELECT CASE WHEN $1 > 0 THEN weir.enqueue_many(array_agg('q'::text), array_agg('k'::text), flow => array_agg(f.id)) END, (SELECT weir.seal(id) FROM f) FROM f, generate_series(1, $1::int)`
			if rng.IntN(2) == 0 { // with a flow and tasks within it, and jobs that are to be done once
				sql = `WITH f AS MATERIALIZED (SELECT weir.flow('f', on_done => '{"queue": "back", "kind": "done"}') AS id),
					n AS MATERIALIZED (SELECT weir.flow('n', on_done => '{"queue": "q", "kind": "done"}', parent => f.id) AS id FROM f)
					SELECT weir.enqueue_many(array_agg('q'::text), array_agg('k'::text), flow => array_agg(n.id), once => array_agg((g % 5)::text)),
					       weir.add_tasks((SELECT id FROM f), '[{"task": "a", "queue": "q", "kind": "k"}, {"task": "b", "after": ["a"], "queue": "q", "kind": "k"}, {"task": "c", "after": ["a", "b"], "ignore_failed": true, "queue": "q", "kind": "k"}]'),
					       (SELECT weir.seal(id) FROM n), (SELECT weir.seal(id) FROM f) FROM n, generate_series(1, 1 + $1::int) g`
			}
			_, err := conn.Exec(ctx, sql, rng.IntN(30))
			if err == nil {
				created.Add(1)
			}
			return err
		})
	}
	for nr := range uint64(3) {
		var worker int32
		session(10+nr, func(conn *pgx.Conn, rng *rand.Rand) error {
			if worker == 0 || rng.IntN(50) == 0 {
				if worker != 0 {
					_, _ = conn.Exec(ctx, `SELECT weir._fence($1)`, worker)
				}
				if err := conn.QueryRow(ctx, `SELECT weir._start('w', '{q}')`).Scan(&worker); err != nil {
					return err
				}
			}
			got, err := claim(ctx, conn, worker, []string{"q"}, []int32{int32(1 + rng.IntN(40))})
			if sqlstate(err) == "WR001" {
				worker = 0 // it was fenced
			}
			if err != nil || len(got) == 0 {
				return err
			}
			for i, a := range got {
				if a.Attempt == 1 && rng.IntN(10) == 0 { // a child, and a retry, which adds another
					if _, err := conn.Exec(ctx, `SELECT weir.enqueue('q', 'k', flow => (SELECT flow FROM weir.job_info($1)))`, a.ID); err != nil {
						return err
					}
					if _, err := finish(ctx, conn, worker, a, []string{"retried", "failed", "cancelled"}[rng.IntN(3)], time.Time{}); err != nil {
						return err
					}
					got[i].ID = 0
				}
			}
			return complete(ctx, conn, worker, slices.DeleteFunc(got, func(a attempt) bool { return a.ID == 0 }))
		})
	}
	for nr := range uint64(3) {
		session(20+nr, func(conn *pgx.Conn, rng *rand.Rand) error {
			_, err := conn.Exec(ctx, `SELECT weir._fold_arrivals()`)
			if err == nil && rng.IntN(10) == 0 {
				_, err = conn.Exec(ctx, `SELECT weir._settle(w.id) FROM weir.worker w WHERE w.fenced`)
			}
			if err == nil && rng.IntN(10) == 0 {
				_, err = conn.Exec(ctx, `SELECT weir._compact_flows(), setval('weir.active_arrival', pg_sequence_last_value('weir.active_arrival') % 3 + 1)`)
			}
			return err
		})
	}
	began, kills := time.Now(), 0
	rng := rand.New(rand.NewPCG(seed, 30))
	for nr := 0; time.Since(began) < loadTime(4*time.Second); nr++ {
		if nr == 20 || nr%400 == 60 {
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if conn.IsClosed() || conn.Ping(t.Context()) != nil {
			conn = connect(t, url)
		}
		exec(t, conn, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1`)
		kills++
		sleep.For(ctx, time.Duration(5+rng.IntN(50))*time.Millisecond)
	}
	close(stopped)
	for last := math.MaxInt; last > 0; {
		before := last
		until(t, fmt.Sprintf("the flows that have not ended are less than %d", before), func() bool {
			exec(t, conn, `SELECT weir._fence(w.id) FROM weir.worker w WHERE NOT w.fenced AND random() < 0.02`)
			last = value[int](t, conn, `SELECT count(*) FROM weir.flow f WHERE NOT EXISTS (SELECT FROM weir.fold p WHERE p.flow = f.id AND p.fired_at IS NOT NULL)`)
			return last < before
		})
	}
	cancel()
	all.Wait()
	exec(t, conn, `SELECT weir._fold_arrivals()`)
	flows := value[int](t, conn, `SELECT count(*) FROM weir.flow`)
	t.Logf("%d flows, %d sessions killed", flows, kills)
	if flows < int(created.Load()) || flows == 0 {
		t.Errorf("%d flows exist, %d were created", flows, created.Load())
	}
	for _, wrong := range column[string](t, conn, `WITH calls AS MATERIALIZED (
			SELECT (j.meta->'weir.flow'->>'id')::bigint AS flow, count(DISTINCT j.id) AS n FROM weir.job j WHERE j.kind = 'done' GROUP BY 1
		), duplicates AS MATERIALIZED (
			SELECT DISTINCT unnest(r.ids) AS id FROM weir.result r WHERE array_to_string(r.errors, '') ~ 'duplicate'
		), members AS MATERIALIZED (
			SELECT j.flow, count(DISTINCT j.id) AS n FROM weir.job j LEFT JOIN duplicates d ON d.id = j.id WHERE j.flow IS NOT NULL AND d.id IS NULL GROUP BY j.flow
		), within AS MATERIALIZED (
			SELECT k.parent AS flow, count(*) AS n FROM weir.flow k WHERE k.parent IS NOT NULL GROUP BY k.parent
		)
		SELECT format('flow %s was called back %s times: it is %s', f.id, coalesce(c.n, 0), i)
		FROM weir.flow f CROSS JOIN LATERAL weir.flow_info(f.id) i LEFT JOIN calls c ON c.flow = f.id LEFT JOIN members m ON m.flow = f.id LEFT JOIN within w ON w.flow = f.id
		WHERE coalesce(c.n, 0) <> (f.on_done IS NOT NULL)::integer OR i.unfinished <> 0 OR i.generation <> 1
		   OR i.jobs <> coalesce(m.n, 0) + coalesce(w.n, 0) + (f.task IS NOT NULL AND i.job IS NULL)::integer`) {
		t.Error(fmt.Sprint(wrong))
	}
}
