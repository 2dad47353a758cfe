package model

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the replay; 0: a new seed")
	longFlag = flag.Duration("long", 6*time.Second, "how long random runs are replayed against the model")
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Random runs on a real server are steps of the model: what each call returns, refuses and does, and what becomes of each job, is what the
// model says after the same steps.
func TestRealRunsAreStepsOfTheModel(t *testing.T) {
	t.Parallel()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("reproduce with: go test ./internal/model -run '^%s$' -seed %d", t.Name(), seed)
	runs, moves, full := 0, 0, 0
	for end := time.Now().Add(*longFlag); runs < 6 || time.Now().Before(end); runs++ {
		rng := rand.New(rand.NewPCG(seed, uint64(runs)))
		var r replayed
		switch runs % 3 {
		case 0:
			r = newReplay(t, rng)
		case 1:
			r = newPromotions(t, rng)
		default:
			r = newLives(t, rng)
		}
		n, room := run(rng, r, 60)
		if moves += n; !room {
			full++
		}
		r.close()
	}
	t.Logf("%d runs, %d steps; %d of the runs ended where the model had no room for more", runs, moves, full)
}

// replay makes each move twice: on the server, and in the model.
type replay struct {
	script
	m       *jobs
	s       state
	url     string
	admin   *pgx.Conn
	open    map[uint8]*pgx.Conn // producers' transactions, by tokens
	ends    map[held]*pgx.Conn  // open transactions that complete an attempt
	workers [3]int32
	ids     map[uint8]int64 // ids by tag
	batches map[held]place
	tokens  uint8
	waiting chan answer // answer of the claim that waits for the lane's lock
	gate    *pgx.Conn   // session that holds this lock
}

type place struct {
	lane int64
	seq  int64
}

type got struct {
	Lane int64
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
	r := &replay{script: script{T: t, rng: rng}, m: m, s: m.start(), url: pgtest.Database(t), open: map[uint8]*pgx.Conn{}, ends: map[held]*pgx.Conn{},
		ids: map[uint8]int64{}, batches: map[held]place{}}
	r.admin = r.connect(r.url)
	for i := range r.workers {
		r.workers[i] = query[int32](&r.script, r.admin, `SELECT weir._start($1, '{q}')`, fmt.Sprint("worker ", i+1))
	}
	return r
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

// take takes steps of the model.
func (r *replay) take(do action, a, b int) {
	r.Helper()
	if err := r.m.take(&r.s, step{do, uint8(a), uint8(b)}); err != nil {
		r.fail("the model breaks a promise: %v", err)
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

// moves lists the possible moves.
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
	if r.waiting == nil { // otherwise it would not get the lane's lock
		can(1, r.forgetEnded)
	}
	can(1, r.rotate)
	if r.s.used(3 - r.s.active()) {
		can(2, r.reclaim)
	}
	return all
}

// look compares the state of each job on the server with the model.
func (r *replay) look() {
	r.m.tidy(&r.s)
	if err := r.s.promises(); err != nil {
		r.fail("%v", err)
	}
	for _, tag := range slices.Sorted(maps.Keys(r.ids)) {
		id := r.ids[tag]
		said := query[string](&r.script, r.admin, `SELECT coalesce((SELECT state FROM weir.job_info($1)), '')`, id)
		if want := r.s.stateOf(tag); said != want {
			r.fail("job %d (%d) is %q, but in the model it is %q", tag, id, said, want)
		}
	}
}

// stateOf returns the state of a job, "" if it does not exist: not committed, or ended and truncated.
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
