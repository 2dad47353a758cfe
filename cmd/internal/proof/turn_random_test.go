package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTurnsLoseAndRepeatNothing: whatever transactions are open, in whatever order they end, and however attempts end, every attempt of a key is
// claimed once; no key has more attempts running than its limit; and in order, no job of a key starts before the one ahead of it has ended for good.
// The steps are taken one after the other, at random, by several sessions.
func TestTurnsLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	seed := newSeed(t)
	for began, round := time.Now(), uint64(0); round < 2 || time.Since(began) < loadTime(2*time.Second); round++ {
		if !t.Run(fmt.Sprint(round), func(t *testing.T) { runTurns(t, rand.New(rand.NewPCG(seed, round)), round%2 == 1) }) {
			return
		}
	}
}

// turnJob is what the test knows of a job.
type turnJob struct {
	key     string
	step    step // of the next attempt to be claimed
	claimed bool // that attempt is running
	final   bool
	ordered bool // it has started since its key is in order
}

type turns struct {
	t       *testing.T
	rng     *rand.Rand
	conn    *pgx.Conn
	workers []int32
	held    map[int32][]attempt
	jobs    map[int64]*turnJob
	limit   int // per key; 0: none
	inOrder bool
	most    int // attempts of a key that have run at a time
}

// runTurns: with crowds, a transaction that logs jobs for six keys counts as one that has very many.
func runTurns(t *testing.T, rng *rand.Rand, crowds bool) {
	url := pgtest.Database(t)
	if crowds {
		setConstant(t, connect(t, url), "weir._take_turns", "max_rows", "1000", "5")
	}
	s := &turns{t: t, rng: rng, conn: connect(t, url), held: map[int32][]attempt{}, jobs: map[int64]*turnJob{}}
	for range 2 {
		s.workers = append(s.workers, startWorker(t, s.conn, "q"))
	}
	producers := make([]*pgx.Conn, 4)
	open := make([]pgx.Tx, len(producers))
	logged := make([][]int64, len(producers)) // by the open transactions
	keys := map[int64]string{}
	for i := range producers {
		producers[i] = connect(t, url)
	}
	s.setLimit()
	for range 300 {
		switch n := rng.IntN(20); {
		case n < 8: // enqueue in a transaction, which may be open already
			i := rng.IntN(len(producers))
			if open[i] == nil {
				tx, err := producers[i].Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				open[i] = tx
			}
			var names, queues, kinds []string
			var priorities []int32
			for range 1 + rng.IntN(5) {
				names = append(names, fmt.Sprintf("key %d", rng.IntN(4)))
				queues, kinds, priorities = append(queues, "q"), append(kinds, "k"), append(priorities, int32(1+rng.IntN(2)))
			}
			ids := value[[]int64](t, open[i], `SELECT weir.enqueue_many($1, $2, priority => $3, key => $4)`, queues, kinds, priorities, names)
			for n, id := range ids {
				keys[id] = names[n]
			}
			logged[i] = append(logged[i], ids...)
		case n < 12: // end a transaction
			i := rng.IntN(len(producers))
			if open[i] == nil {
				continue
			}
			end := open[i].Commit
			if rng.IntN(5) == 0 {
				end = open[i].Rollback
			} else {
				for _, id := range logged[i] {
					s.jobs[id] = &turnJob{key: keys[id], step: step{1, 0}}
				}
			}
			if err := end(context.Background()); err != nil {
				t.Fatal(err)
			}
			open[i], logged[i] = nil, nil
		case n < 16:
			s.claim(s.workers[rng.IntN(2)], int32(1+rng.IntN(6)))
		case n < 19:
			s.end(s.workers[rng.IntN(2)])
		case rng.IntN(4) == 0:
			s.setLimit()
		}
	}
	for i, tx := range open {
		if tx == nil {
			continue
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, id := range logged[i] {
			s.jobs[id] = &turnJob{key: keys[id], step: step{1, 0}}
		}
	}
	for left := 1; left > 0; {
		for _, w := range s.workers {
			s.claim(w, 50)
			for len(s.held[w]) > 0 {
				s.end(w)
			}
		}
		left = 0
		for _, j := range s.jobs {
			if !j.final {
				left++
			}
		}
		if left > 0 && len(s.held[s.workers[0]])+len(s.held[s.workers[1]]) == 0 {
			// Keys whose attempts ran before a limit was set are looked at again after a while.
			pgtest.Eventually(t, func() error {
				if s.claim(s.workers[0], 50) == 0 {
					var ids []int64
					for id, j := range s.jobs {
						if !j.final {
							ids = append(ids, id)
						}
					}
					return fmt.Errorf("jobs %d are never claimed:\n%s", ids, s.state())
				}
				return nil
			})
		}
	}
	t.Logf("%d jobs, at most %d of a key ran at a time", len(s.jobs), s.most)
}

func (s *turns) setLimit() {
	s.t.Helper()
	s.limit, s.inOrder = 1+s.rng.IntN(3), false
	for _, j := range s.jobs {
		j.ordered = false // jobs that have started before are not bound to an order
	}
	switch s.rng.IntN(4) {
	case 0:
		s.limit = 0
		exec(s.t, s.conn, `SELECT weir.clear_limit('q')`)
		return
	case 1:
		s.limit, s.inOrder = 1, true
	}
	exec(s.t, s.conn, `SELECT weir.set_limit('q', running => $1, per_key => true, in_order => $2)`, s.limit, s.inOrder)
}

func (s *turns) claim(worker, limit int32) int {
	s.t.Helper()
	// More may run than a limit allows that was set since; but no more may start.
	before, blocked := map[string]int{}, map[string]int64{}
	for id, j := range s.jobs {
		if j.claimed {
			before[j.key]++
		}
		if !j.final && (j.claimed || j.ordered) {
			blocked[j.key] = id // what was put back before waits in front, too, and may come first
		}
	}
	got := mustClaim(s.t, s.conn, worker, "q", limit)
	for _, a := range got {
		j := s.jobs[a.ID]
		switch {
		case j == nil:
			s.t.Fatalf("job %d is claimed, but was never committed", a.ID)
		case j.final, j.claimed, j.step != a.step():
			s.t.Fatalf("job %d is claimed as attempt %v, want %v (running %v, finished %v)\n%s", a.ID, a.step(), j.step, j.claimed, j.final, s.state())
		}
		if other, ok := blocked[j.key]; ok && s.inOrder && other != a.ID && a.step() == (step{1, 0}) {
			s.t.Fatalf("job %d of %s is claimed before job %d is finished\n%s", a.ID, j.key, other, s.state())
		}
		j.claimed, j.ordered = true, s.inOrder
		blocked[j.key] = a.ID
		before[j.key]++
		if s.most = max(s.most, before[j.key]); s.limit > 0 && before[j.key] > s.limit {
			s.t.Fatalf("%d attempts of %s run, at most %d may\n%s", before[j.key], j.key, s.limit, s.state())
		}
	}
	s.held[worker] = append(s.held[worker], got...)
	return len(got)
}

// end ends one of a worker's attempts in some way.
func (s *turns) end(worker int32) {
	s.t.Helper()
	if len(s.held[worker]) == 0 {
		return
	}
	n := s.rng.IntN(len(s.held[worker]))
	a := s.held[worker][n]
	s.held[worker] = slices.Delete(s.held[worker], n, n+1)
	j := s.jobs[a.ID]
	outcome := someEndings[s.rng.IntN(len(someEndings))]
	if a.Attempt+a.PutOff > 6 {
		outcome = "completed"
	}
	if ok, err := finish(s.t.Context(), s.conn, worker, a, outcome, time.Time{}); err != nil || !ok {
		s.t.Fatalf("job %d ends as %s: %v, %v", a.ID, outcome, ok, err)
	}
	j.claimed = false
	j.step, j.final = j.step.after(outcome)
}

// state describes where keys stand.
func (s *turns) state() string {
	var b strings.Builder
	for _, line := range column[string](s.t, s.conn, `
		SELECT format('turn %s.%s seq %s pos %s/%s tag %s waits %s parked %s pending %s open %s', lane & 549755813880, lane & 7, seq, pos_xid, pos_id, tag, waits, parked, pending, open) FROM weir.turn
		UNION ALL SELECT format('ring seq %s tag %s arrived %s', seq, tag, arrived) FROM weir.ring
		UNION ALL SELECT format('job %s xid %s lane %s.%s key %s attempt %s/%s', id, xid, lane & 549755813880, lane & 7, key, attempt, put_off) FROM weir.job
		UNION ALL SELECT format('result seq %s %s %s', seq, outcome, ids) FROM weir.result`) {
		b.WriteString(line)
		b.WriteByte('\n')
	}
	return b.String()
}
