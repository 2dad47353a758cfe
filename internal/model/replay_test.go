package model

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/pgtest"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the replay; 0: a new one")
	longFlag = flag.Duration("long", 6*time.Second, "how long random runs are replayed against the model")
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Random runs on a real server are steps of the model: what each call hands out, refuses and does, and what becomes of each job, is what the
// model says after the same steps.
func TestRealRunsAreStepsOfTheModel(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("reproduce with: go test ./internal/model -run '^%s$' -seed %d", t.Name(), seed)
	runs, moves, full := 0, 0, 0
	for end := time.Now().Add(*longFlag); runs < 3 || time.Now().Before(end); runs++ {
		r := newReplay(t, rand.New(rand.NewPCG(seed, uint64(runs))))
		n, room := r.run(60)
		if moves += n; !room {
			full++
		}
		r.close()
	}
	t.Logf("%d runs, %d steps; %d of the runs ended where the model had no room for more", runs, moves, full)
}

// replay does each move twice: on the server, and in the model.
type replay struct {
	*testing.T
	rng     *rand.Rand
	m       *jobs
	s       state
	url     string
	admin   *pgx.Conn
	open    map[uint8]*pgx.Conn // producers' transactions, by token
	ends    map[held]*pgx.Conn  // completions that are open in a transaction
	workers [3]int32
	ids     map[uint8]int64 // of tags
	batches map[held]place
	tokens  uint8
	waiting chan answer // of the claim that waits for the lane's lock
	gate    *pgx.Conn   // which this session holds
	path    []string
}

type place struct {
	lane int32
	seq  int64
}

type got struct {
	Lane int32
	Seq  int64
	ID   int64
}

type answer struct {
	process int
	jobs    []got
	err     error
}

func newReplay(t *testing.T, rng *rand.Rand) *replay {
	m := &jobs{scenario: scenario{processes: 3, quota: 1 + rng.IntN(2), settles: 100, straggler: true, transactions: []uint8{1, 2, 1, 2, 1},
		budget: budget{Claims: 200, Reconciles: 200, Txs: 200, Retries: 200, Rotations: 200, Reclaims: 200, Fences: 200, Forgets: 200}}}
	r := &replay{T: t, rng: rng, m: m, s: m.start(), url: pgtest.Database(t), open: map[uint8]*pgx.Conn{}, ends: map[held]*pgx.Conn{},
		ids: map[uint8]int64{}, batches: map[held]place{}}
	r.admin = r.connect()
	for i := range r.workers {
		r.workers[i] = one[int32](r, r.admin, `SELECT weir.worker_start($1, '{q}')`, fmt.Sprint("worker ", i+1))
	}
	return r
}

func (r *replay) connect() *pgx.Conn {
	conn, err := pgx.Connect(r.Context(), r.url)
	if err != nil {
		r.Fatal(err)
	}
	return conn
}

func (r *replay) close() {
	for _, c := range r.open {
		_ = c.Close(context.Background())
	}
	for _, c := range r.ends {
		_ = c.Close(context.Background())
	}
	if r.gate != nil {
		_ = r.gate.Close(context.Background())
		<-r.waiting
	}
	_ = r.admin.Close(context.Background())
}

func one[T any](r *replay, c *pgx.Conn, sql string, args ...any) (v T) {
	r.Helper()
	if err := c.QueryRow(r.Context(), sql, args...).Scan(&v); err != nil {
		r.fail("%s: %v", sql, err)
	}
	return v
}

func (r *replay) exec(c *pgx.Conn, sql string, args ...any) {
	r.Helper()
	if _, err := c.Exec(r.Context(), sql, args...); err != nil {
		r.fail("%s: %v", sql, err)
	}
}

func (r *replay) fail(format string, args ...any) {
	r.Helper()
	for i, line := range r.path {
		r.Logf("%3d. %s", i+1, line)
	}
	r.Fatalf(format, args...)
}

func (r *replay) note(format string, args ...any) {
	r.path = append(r.path, fmt.Sprintf(format, args...))
}

func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// run makes random moves, and looks after each what has become of every job. A run that comes to more than the model has room for ends there.
func (r *replay) run(most int) (moves int, room bool) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case noRoom:
			room = false
		default:
			panic(p)
		}
	}()
	for moves < most {
		move := r.moves()
		move[r.rng.IntN(len(move))]()
		r.m.tidy(&r.s)
		if err := r.s.promises(); err != nil {
			r.fail("%v", err)
		}
		r.look()
		moves++
	}
	return moves, true
}

// take takes steps of the model.
func (r *replay) take(do action, a, b int) {
	r.Helper()
	if err := r.m.take(&r.s, step{do, uint8(a), uint8(b)}); err != nil {
		r.fail("the model: %v", err)
	}
}

// call finds a call in flight.
func (r *replay) call(such func(*op) bool) int {
	for i := range r.s.ops.all() {
		if such(&r.s.ops.row[i]) {
			return i
		}
	}
	return -1
}

func (r *replay) producer(token uint8) int {
	return r.call(func(o *op) bool { return o.call == producing && o.what.tag == token })
}

// moves lists what can be done now.
func (r *replay) moves() (all []func()) {
	can := func(weight int, f func()) {
		for range weight {
			all = append(all, f)
		}
	}
	if int(r.s.begun) < len(r.m.transactions) {
		can(6, r.begin)
	}
	for _, token := range slices.Sorted(maps.Keys(r.open)) {
		if i := r.producer(token); r.s.ops.row[i].left > 0 {
			can(6, func() { r.enqueue(token) })
		} else {
			can(4, func() { r.commit(token) })
		}
		can(1, func() { r.rollback(token) })
	}
	if r.waiting != nil {
		can(3, r.claimGoesOn)
	}
	for i := range r.workers {
		p := &r.s.process[i]
		if !p.alive {
			can(1, func() { r.settle(i) })
			continue
		}
		if r.waiting == nil && p.held[len(p.held)-r.m.quota] == (held{}) {
			saw, at := r.s.newest(r.s.snapshot()), r.s.snapshot()
			if ready, _ := r.m.pick(&r.s, &saw, at); len(ready) > 0 {
				can(4, func() { r.claim(i, false) })
				can(2, func() { r.claim(i, true) })
			}
			can(1, func() { r.claim(i, false) })
		}
		for k, h := range p.held {
			if h == (held{}) {
				break
			}
			can(1, func() { r.record(i, k, record) })
			can(1, func() { r.record(i, k, recordRetried) })
			if r.ends[h] == nil && r.m.mayEnd(&r.s, p.worker, h.id, true) {
				can(1, func() { r.complete(i, k) })
			}
			if r.ends[h] == nil {
				can(1, func() { r.forget(i, k) })
			}
		}
		if r.m.mayReconcile(&r.s, p.worker, p.held) {
			can(1, func() { r.reconcile(i) })
		}
		if len(r.path) > 20 {
			can(1, func() { r.fence(i) })
		}
	}
	for _, h := range slices.SortedFunc(maps.Keys(r.ends), func(a, b held) int { return cmp.Compare(key(a.tag, a.attempt, 0, 0), key(b.tag, b.attempt, 0, 0)) }) {
		can(2, func() { r.end(h, true) })
		can(1, func() { r.end(h, false) })
	}
	if r.waiting == nil { // or it would not get the lane's lock
		can(1, r.forgetEnded)
	}
	can(1, r.rotate)
	if r.s.used(3 - r.s.active()) {
		can(2, r.reclaim)
	}
	return all
}

func (r *replay) begin() {
	r.tokens++
	c := r.connect()
	r.exec(c, `BEGIN`)
	r.exec(c, `SELECT pg_current_xact_id()`)
	r.open[r.tokens] = c
	r.take(begin, 0, 0)
	r.s.ops.row[r.s.ops.n-1].what.tag = r.tokens
	r.note("begin of transaction %d", r.tokens)
}

func (r *replay) enqueue(token uint8) {
	id := one[int64](r, r.open[token], `SELECT weir.enqueue('q', 'k')`)
	i := r.producer(token)
	r.s.ops.row[i].segment = r.s.active()
	r.take(enqueue, i, 0)
	r.ids[r.s.tags] = id
	r.note("enqueue of job %d in transaction %d", r.s.tags, token)
}

func (r *replay) commit(token uint8) {
	c := r.open[token]
	if r.rng.IntN(3) == 0 {
		name := fmt.Sprintf("%s %d", c.Config().Database, token)
		r.exec(c, `PREPARE TRANSACTION '`+name+`'`)
		r.exec(r.admin, `COMMIT PREPARED '`+name+`'`)
	} else {
		r.exec(c, `COMMIT`)
	}
	_ = c.Close(r.Context())
	delete(r.open, token)
	r.take(commitOp, r.producer(token), 0)
	r.note("commit of transaction %d", token)
}

func (r *replay) rollback(token uint8) {
	r.exec(r.open[token], `ROLLBACK`)
	_ = r.open[token].Close(r.Context())
	delete(r.open, token)
	r.take(rollback, r.producer(token), 0)
	r.note("rollback of transaction %d", token)
}

// claim claims for a process. Held up, it begins, and waits for the lane's lock until claimGoesOn.
func (r *replay) claim(i int, heldUp bool) {
	r.take(claim, int(r.s.process[i].worker), 255-i)
	begun := r.call(func(o *op) bool { return o.call == claiming }) >= 0
	heldUp = heldUp && begun
	if heldUp {
		r.gate = r.connect()
		r.exec(r.gate, `SELECT pg_advisory_lock(1464158546, q.id * 4 + 1) FROM weir.queue q WHERE q.name = 'q'`)
	}
	r.waiting = make(chan answer, 1)
	conn := r.connect()
	go func(out chan<- answer) { // ends with the claim, which claimGoesOn or close waits for
		defer conn.Close(context.Background())
		rows, err := conn.Query(context.Background(), `SELECT lane, seq, id FROM weir.claim($1, '{q}', $2)`, r.workers[i], []int32{int32(r.m.quota)})
		a := answer{process: i, err: err}
		if err == nil {
			a.jobs, a.err = pgx.CollectRows(rows, pgx.RowToStructByPos[got])
		}
		out <- a
	}(r.waiting)
	if heldUp {
		r.note("claim by worker %d begins", i+1)
		for end := time.Now().Add(30 * time.Second); !one[bool](r, r.admin,
			`SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 1464158546 AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`); {
			if time.Now().After(end) {
				r.fail("the claim does not wait for the lane")
			}
		}
		return
	}
	r.claimGoesOn()
}

func (r *replay) claimGoesOn() {
	if r.gate != nil {
		r.exec(r.gate, `SELECT pg_advisory_unlock_all()`)
		_ = r.gate.Close(r.Context())
		r.gate = nil
	}
	a := <-r.waiting
	r.waiting = nil
	p := &r.s.process[a.process]
	before := p.held
	claims := func(o *op) bool { return o.call == claiming }
	var want []int64
	if k := r.call(claims); k >= 0 {
		r.take(claimLane, k, 0)
		picked, _ := r.m.pick(&r.s, &r.s.ops.row[k].saw, r.s.ops.row[k].snap)
		for _, j := range picked {
			want = append(want, r.ids[j.tag])
		}
		r.take(claimBatch, k, 0)
		if k = r.call(claims); k >= 0 {
			r.take(commitOp, k, 0)
		}
	}
	for _, h := range p.held {
		for _, j := range a.jobs {
			if h != (held{}) && r.ids[h.tag] == j.ID && !slices.Contains(before[:], h) {
				r.batches[h] = place{j.Lane, j.Seq}
			}
		}
	}
	var ids []int64
	for _, j := range a.jobs {
		ids = append(ids, j.ID)
	}
	r.note("claim by worker %d gives %v", a.process+1, ids)
	if a.err != nil && (code(a.err) != "WR001" || p.alive) {
		r.fail("claim: %v", a.err)
	}
	if a.err == nil && !p.alive {
		r.fail("a fenced worker may claim")
	}
	if !slices.Equal(ids, want) {
		r.fail("claim gave jobs %v, the model says %v", ids, want)
	}
}

// record records an end. The model says whether it is refused.
func (r *replay) record(i, k int, do action) {
	p := &r.s.process[i]
	h := p.held[k]
	outcome := "completed"
	if do == recordRetried {
		outcome = "retried"
	}
	at := r.batches[h]
	var refusal string
	err := r.admin.QueryRow(r.Context(), `SELECT coalesce((SELECT refusal FROM weir.record($1, ARRAY[$2::integer], ARRAY[$3::bigint], '{1}', ARRAY[$4::bigint], ARRAY[$5::text])), '')`,
		r.workers[i], at.lane, at.seq, r.ids[h.tag], outcome).Scan(&refusal)
	r.note("record by worker %d: job %d %s: %q %v", i+1, h.tag, outcome, refusal, err)
	if err != nil {
		refusal = code(err)
	}
	b, _ := r.s.own(r.s.snapshot(), p.worker, h)
	want := ""
	switch {
	case r.s.fenced(r.s.snapshot(), p.worker):
		want = "WR001"
	case b == nil:
		want = "lost"
	case r.s.ended(r.s.snapshot(), h.seq, h.number, h.id) != 0:
		want = "ended"
	case !r.m.mayEnd(&r.s, p.worker, h.id, false):
		want = "busy"
	}
	if refusal != want {
		r.fail("record answers %q, the model says %q", refusal, want)
	}
	if want == "busy" {
		return
	}
	r.take(do, i, k)
	if want == "" {
		r.take(insert, int(r.s.ops.n)-1, 0)
		r.take(commitOp, int(r.s.ops.n)-1, 0)
	}
}

// complete completes in a transaction that stays open.
func (r *replay) complete(i, k int) {
	p := &r.s.process[i]
	h := p.held[k]
	at := r.batches[h]
	c := r.connect()
	r.exec(c, `BEGIN`)
	_, err := c.Exec(r.Context(), `SELECT weir.complete($1, $2, $3, $4)`, r.workers[i], at.lane, at.seq, r.ids[h.tag])
	r.note("complete by worker %d of job %d in a transaction: %v", i+1, h.tag, err)
	r.take(complete, i, k)
	if r.call(func(o *op) bool { return o.call == completing && o.phase == 1 }) < 0 {
		if c := code(err); c != "WR001" && c != "WR002" {
			r.fail("complete answers %v, the model refuses", err)
		}
		_ = c.Close(r.Context())
		return
	}
	if err != nil {
		r.fail("complete answers %v, the model does not refuse", err)
	}
	r.take(insert, int(r.s.ops.n)-1, 0)
	r.ends[h] = c
}

// end ends the transaction of a completion.
func (r *replay) end(h held, commits bool) {
	c := r.ends[h]
	delete(r.ends, h)
	i := r.call(func(o *op) bool { return o.call == completing && o.what == h })
	if commits {
		r.exec(c, `COMMIT`)
		r.take(commitOp, i, 0)
	} else {
		r.exec(c, `ROLLBACK`)
		r.take(rollback, i, 0)
	}
	_ = c.Close(r.Context())
	r.note("the transaction that completes job %d commits: %v", h.tag, commits)
}

// forget has a process not know of an attempt, as if the claim's answer had been lost.
func (r *replay) forget(i, k int) {
	h := r.s.process[i].held[k]
	r.s.process[i].forget(func(o held) bool { return o == h })
	r.note("worker %d does not know of job %d", i+1, h.tag)
}

func (r *replay) reconcile(i int) {
	p := &r.s.process[i]
	var lanes, sizes []int32
	var seqs, ids []int64
	for _, h := range p.held {
		if h != (held{}) {
			lanes, seqs, sizes, ids = append(lanes, r.batches[h].lane), append(seqs, r.batches[h].seq), append(sizes, 1), append(ids, r.ids[h.tag])
		}
	}
	before := r.s.results.n
	released := 0
	for after := new(int64); after != nil; {
		var some int
		if err := r.admin.QueryRow(r.Context(), `SELECT released, next FROM weir.reconcile($1, $2, $3, $4, $5, $6)`, r.workers[i],
			append([]int32{}, lanes...), append([]int64{}, seqs...), append([]int32{}, sizes...), append([]int64{}, ids...), *after).Scan(&some, &after); err != nil {
			r.fail("reconcile: %v", err)
		}
		released += some
	}
	r.take(reconcile, i, 0)
	r.note("reconcile of worker %d releases %d", i+1, released)
	if want := int(r.s.results.n - before); released != want {
		r.fail("reconcile released %d, the model says %d", released, want)
	}
}

func (r *replay) fence(i int) {
	w := r.s.process[i].worker
	done := one[bool](r, r.admin, `SELECT weir.fence($1)`, r.workers[i])
	r.note("fence of worker %d: %v", i+1, done)
	if want := r.m.mayFence(&r.s, w); done != want {
		r.fail("fence answers %v, the model says %v", done, want)
	}
	if done {
		r.take(fence, int(w), 0)
		r.s.process[i].ends()
	}
}

func (r *replay) settle(i int) {
	n := 0
	for more := true; more; {
		var some int
		if err := r.admin.QueryRow(r.Context(), `SELECT relogged, more FROM weir.settle($1)`, r.workers[i]).Scan(&some, &more); err != nil {
			r.fail("settle: %v", err)
		}
		n += some
	}
	before := r.s.results.n
	if _, _, found, _ := r.m.toSettle(&r.s, uint8(i+1)); found {
		r.take(settle, i+1, 0)
	}
	want := int(r.s.results.n - before)
	r.note("settle of worker %d logs %d again", i+1, n)
	if n != want {
		r.fail("settle logged %d attempts again, the model says %d", n, want)
	}
}

// forgetEnded has an idle lane forget pending transactions that have ended. The server may leave a few.
func (r *replay) forgetEnded() {
	n := one[int](r, r.admin, `SELECT weir.forget_ended()`)
	_, fewer := r.m.kept(&r.s, r.s.snapshot())
	r.note("forget_ended has %d lanes forget", n)
	switch {
	case n == 0:
	case !fewer || n > 1:
		r.fail("forget_ended has %d lanes forget, the model says there is nothing to forget", n)
	default:
		r.take(forgetEnded, 0, 0)
	}
}

// rotate opens the next segment, as if it were time.
func (r *replay) rotate() {
	if r.s.used(3 - r.s.active()) {
		return
	}
	r.exec(r.admin, `UPDATE weir.segment SET at = at - interval '1 day' WHERE event = 'opened'`)
	did := one[string](r, r.admin, `SELECT coalesce(weir.rotate(), '')`)
	r.note("rotate: %s", did)
	if len(did) > 6 && did[:6] == "opened" {
		r.take(rotate, 0, 0)
	}
}

// reclaim gives the closed segment back. The server may always say: not now.
func (r *replay) reclaim() {
	closed := one[int](r, r.admin, `SELECT coalesce(max(s), 0) FROM generate_series(1, 4) s WHERE weir.segment_state('job', s) = 'closed'`)
	if closed == 0 {
		return
	}
	done := one[bool](r, r.admin, `SELECT weir.reclaim($1)`, closed)
	r.note("reclaim of segment %d: %v", closed, done)
	if !done {
		return
	}
	if !r.m.mayReclaim(&r.s, 3-r.s.active()) {
		r.fail("a segment is reclaimed while a transaction in flight has rows there")
	}
	r.take(reclaim, 0, 0)
	i := r.call(func(o *op) bool { return o.call == reclaiming })
	r.take(reclaimLook, i, 0)
	if !r.m.mayCarry(&r.s, r.s.ops.row[i].segment) {
		r.fail("a segment is reclaimed while a claim or a result is under way")
	}
	r.take(reclaimCarry, i, 0)
}

// look compares what the server says of each job with the model.
func (r *replay) look() {
	for _, tag := range slices.Sorted(maps.Keys(r.ids)) {
		id := r.ids[tag]
		said := one[string](r, r.admin, `SELECT coalesce((SELECT state FROM weir.job_info($1)), '')`, id)
		if want := r.s.stateOf(tag); said != want {
			r.fail("job %d (%d) is %q, the model says %q", tag, id, said, want)
		}
	}
}

// stateOf is the state of a job, "" for one that is not there: not committed, or ended and truncated.
func (s *state) stateOf(tag uint8) string {
	at := s.snapshot()
	var last jobRow
	for _, j := range s.jobs.all() {
		if j.tag == tag && j.seen(at) && j.attempt > last.attempt {
			last = j
		}
	}
	if last.tag == 0 {
		return ""
	}
	for _, b := range s.batches.all() {
		for _, c := range b.ids {
			if b.gone == 0 && at.sees(b.by) && c.tag == tag && c.attempt == last.attempt {
				if s.ended(at, b.cursor.seq, b.number, c.id) == completed {
					return "completed"
				}
				return "running"
			}
		}
	}
	return "available"
}
