package proof

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestReadersKnowJobsWithKeys: whatever is open, claimed, ended, carried into other segments, compacted and rebased, weir.job_info, lists and counts say
// of each job with a key what is true of it. The steps are taken one after the other, at random.
func TestReadersKnowJobsWithKeys(t *testing.T) {
	t.Parallel()
	seed := newSeed(t)
	for began, round := time.Now(), uint64(0); round < 2 || time.Since(began) < loadTime(2*time.Second); round++ {
		if !t.Run(fmt.Sprint(round), func(t *testing.T) { readKeys(t, rand.New(rand.NewPCG(seed, round))) }) {
			return
		}
	}
}

// keyReaders knows the state of each job that is committed.
type keyReaders struct {
	t      *testing.T
	rng    *rand.Rand
	conn   *pgx.Conn
	worker int32
	fill   int32
	states map[int64]string
	keys   map[int64]*string
	held   []attempt
	did    map[string]int
}

// readKeysOf are the keys of jobs; two of them share their lanes.
var readKeysOf = []string{"a", "b", "c", twinKey, otherTwin}

func readKeys(t *testing.T, rng *rand.Rand) {
	url := pgtest.Database(t)
	s := &keyReaders{t: t, rng: rng, conn: connect(t, url), states: map[int64]string{}, keys: map[int64]*string{}, did: map[string]int{}}
	exec(t, s.conn, `SELECT weir.set('completed_retention', '1 hour'), weir.set('retention_bytes', '1048576')`)
	s.register()
	producers := make([]*pgx.Conn, 3)
	open := make([]pgx.Tx, len(producers))
	logged := make([]map[int64]string, len(producers))
	end := func(i int, commit bool) {
		if open[i] == nil {
			return
		}
		finish := open[i].Rollback
		if commit {
			finish = open[i].Commit
			maps.Copy(s.states, logged[i])
		}
		if err := finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		open[i] = nil
	}
	for i := range producers {
		producers[i] = connect(t, url)
	}
	for n := range 120 {
		switch rng.IntN(12) {
		case 0, 1, 2, 3:
			i := rng.IntN(len(producers))
			if open[i] == nil {
				tx, err := producers[i].Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				open[i], logged[i] = tx, map[int64]string{}
			}
			s.enqueue(open[i], logged[i])
		case 4, 5:
			end(rng.IntN(len(producers)), rng.IntN(5) > 0)
		case 6, 7:
			got := mustClaim(t, s.conn, s.worker, "q", int32(1+rng.IntN(8)))
			for _, a := range got {
				if s.states[a.ID] != "available" {
					t.Fatalf("claimed job %d, which is %s", a.ID, s.states[a.ID])
				}
				s.states[a.ID] = "running"
			}
			s.held = append(s.held, got...)
		case 8, 9:
			s.finish()
		case 10:
			s.maintain(open)
		case 11:
			s.check(fmt.Sprintf("step %d", n))
		}
	}
	for i := range producers {
		end(i, true)
	}
	s.check("in the end")
	t.Logf("%d jobs; %v", len(s.states), s.did)
}

func (s *keyReaders) register() {
	s.worker, s.fill = startWorker(s.t, s.conn, "q"), startWorker(s.t, s.conn, "filler")
}

func (s *keyReaders) enqueue(tx querier, logged map[int64]string) {
	n := 1 + s.rng.IntN(4)
	var keys []*string
	var later []*time.Time
	for range n {
		var key *string
		if s.rng.IntN(5) > 0 {
			key = new(string)
			*key = readKeysOf[s.rng.IntN(len(readKeysOf))]
		}
		var at *time.Time
		if s.rng.IntN(6) == 0 {
			at = new(time.Time)
			*at = time.Now().Add(time.Hour)
		}
		keys, later = append(keys, key), append(later, at)
	}
	ids := value[[]int64](s.t, tx, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[$1::int]), array_fill('k'::text, ARRAY[$1::int]),
		priority => array_fill($4::int, ARRAY[$1::int]), run_at => $2, key => $3)`, n, later, keys, 1+s.rng.IntN(2))
	for i, id := range ids {
		s.keys[id] = keys[i]
		logged[id] = "available"
		if later[i] != nil {
			logged[id] = "scheduled"
		}
	}
}

func (s *keyReaders) finish() {
	if len(s.held) == 0 {
		return
	}
	i := s.rng.IntN(len(s.held))
	a := s.held[i]
	s.held = slices.Delete(s.held, i, i+1)
	outcome := []string{"completed", "failed", "cancelled", "retried", "released", "snoozed"}[s.rng.IntN(6)]
	var at time.Time
	state := outcome
	switch {
	case outcome == "snoozed":
		at = time.Now().Add(time.Hour)
		state = "scheduled"
	case outcome == "retried" && a.Attempt == a.Max:
		state = "failed"
	case outcome == "retried" || outcome == "released":
		state = "available"
	}
	if first, err := finish(s.t.Context(), s.conn, s.worker, a, outcome, at); err != nil || !first {
		s.t.Fatalf("finish job %d as %s: %v %v", a.ID, outcome, first, err)
	}
	s.states[a.ID] = state
}

// maintain rotates segments, compacts rings, moves jobs or rebases the log.
func (s *keyReaders) maintain(open []pgx.Tx) {
	switch s.rng.IntN(6) {
	case 0, 1:
		if !value[bool](s.t, s.conn, `SELECT EXISTS (SELECT FROM generate_series(1, 4) g WHERE g <> pg_sequence_last_value('weir.active_job') AND weir._segment_state('job', g) = 'reclaimed')`) {
			return // open transactions keep the others
		}
		openNext(s.t, s.conn, s.fill)
		s.did["opened"]++
		s.forget()
	case 2, 3:
		for segment := range 4 {
			if value[bool](s.t, s.conn, `SELECT weir._reclaim($1)`, segment+1) {
				s.did["reclaimed"]++
			}
		}
		s.forget()
	case 4:
		exec(s.t, s.conn, `CREATE TEMP TABLE keep AS SELECT DISTINCT ON (queue) * FROM weir.ring ORDER BY queue, seq DESC`)
		exec(s.t, s.conn, `TRUNCATE weir.ring`)
		exec(s.t, s.conn, `INSERT INTO weir.ring SELECT * FROM keep`)
		exec(s.t, s.conn, `DROP TABLE keep`)
		s.did["compacted"]++
	case 5:
		for _, tx := range open {
			if tx != nil {
				return
			}
		}
		moveElsewhere(s.t, s.conn)
		exec(s.t, s.conn, `SELECT weir.rebase()`)
		for _, a := range s.held {
			s.states[a.ID] = "available"
		}
		s.held = nil
		s.register()
		s.did["rebased"]++
	}
}

// forget forgets jobs that have ended and were reclaimed.
func (s *keyReaders) forget() {
	for id, state := range s.states {
		if (state == "completed" || state == "cancelled") && value[int](s.t, s.conn, `SELECT count(*) FROM weir.job WHERE id = $1`, id) == 0 {
			delete(s.states, id)
		}
	}
}

func (s *keyReaders) check(when string) {
	s.t.Helper()
	byState := map[string][]int64{}
	for id, want := range s.states {
		byState[want] = append(byState[want], id)
		var state string
		var key *string
		if err := s.conn.QueryRow(s.t.Context(), `SELECT state, key FROM weir.job_info($1)`, id).Scan(&state, &key); err != nil {
			s.t.Errorf("%s: job %d, which is %s: %v", when, id, want, err)
		} else if state != want || (key == nil) != (s.keys[id] == nil) || key != nil && *key != *s.keys[id] {
			s.t.Errorf("%s: job %d is %s, want %s", when, id, state, want)
			for _, line := range column[string](s.t, s.conn, `SELECT to_jsonb(j)::text FROM weir.job j WHERE id = $1 UNION ALL SELECT to_jsonb(b)::text FROM weir.batch b WHERE $1 = ANY (b.ids)
				UNION ALL (SELECT to_jsonb(t)::text FROM weir.turn t, weir.job j WHERE j.id = $1 AND t.lane = j.lane ORDER BY t.seq) UNION ALL (SELECT to_jsonb(r)::text FROM weir.ring r ORDER BY seq DESC LIMIT 8)`, id) {
				s.t.Log(line)
			}
		}
	}
	queue := "q"
	for _, state := range allStates {
		for _, limit := range []int{3, 1000} {
			jobs, _ := list{states: []string{state}, queue: &queue}.all(s.t, s.conn, limit, nil)
			got := listedIDs(jobs)
			slices.Sort(got)
			slices.Sort(byState[state])
			if !slices.Equal(got, byState[state]) {
				s.t.Errorf("%s: in pages of %d, %s jobs are %v, want %v", when, limit, state, got, byState[state])
			}
		}
		for i, key := range readKeysOf {
			var want []int64
			for _, id := range byState[state] {
				if s.keys[id] != nil && *s.keys[id] == key {
					want = append(want, id)
				}
			}
			l := list{states: []string{state}, key: &key}
			if i > 0 {
				l.queue = &queue
			}
			jobs, _ := l.all(s.t, s.conn, 1+s.rng.IntN(20), nil)
			got := listedIDs(jobs)
			if slices.Sort(got); !slices.Equal(got, want) {
				s.t.Errorf("%s: %s jobs with the key %s are %v, want %v", when, state, key, got, want)
			}
		}
	}
	var available, running, scheduled int
	if err := s.conn.QueryRow(s.t.Context(), `SELECT available, running, scheduled FROM weir.queues() WHERE name = 'q'`).Scan(&available, &running, &scheduled); err != nil {
		s.t.Fatal(err)
	}
	if available != len(byState["available"]) || running != len(byState["running"]) || scheduled != len(byState["scheduled"]) {
		s.t.Errorf("%s: %d are available, %d running, %d scheduled, want %d, %d, %d", when, available, running, scheduled,
			len(byState["available"]), len(byState["running"]), len(byState["scheduled"]))
	}
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// TestALateJobIsFoundThoughItsTurnIsGone: a job whose transaction ended when its key's position had passed it is found in its batch, while it runs and when
// it has ended, although the turn that has claimed it was reclaimed, and an earlier one was not.
func TestALateJobIsFoundThoughItsTurnIsGone(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, late, holder := connect(t, url), connect(t, url), connect(t, url)
	exec(t, conn, `SELECT weir.set('completed_retention', '0'), weir.set('retention_bytes', '1048576')`)
	worker, fill := startWorker(t, conn, "q"), startWorker(t, conn, "filler")
	for _, open := range []*pgx.Conn{late, holder} { // neither lets the first segment be emptied
		exec(t, open, `BEGIN`)
	}
	id := value[int64](t, late, `SELECT weir.enqueue('q', 'k', key => 'a')`)
	exec(t, holder, `SELECT weir.enqueue('q', 'k')`)
	next := func(want int64) attempt {
		t.Helper()
		got := mustClaim(t, conn, worker, "q", 1)
		if len(got) != 1 || want != 0 && got[0].ID != want {
			t.Fatalf("claimed %v, want job %d", got, want)
		}
		return got[0]
	}
	enqueueFor(t, conn, "q", "a", 1)
	mustComplete(t, conn, worker, []attempt{next(0)})
	openNext(t, conn, fill)
	exec(t, late, `COMMIT`)
	found := next(id)
	second := value[int](t, conn, `SELECT pg_sequence_last_value('weir.active_job')`)
	openNext(t, conn, fill)
	enqueueFor(t, conn, "q", "a", 1)
	mustComplete(t, conn, worker, []attempt{next(0)})
	until(t, "the segment in which the late job had its turn is empty", func() bool {
		return value[bool](t, conn, `SELECT weir._reclaim($1)`, second)
	})
	if n := value[int](t, conn, `SELECT count(*) FROM weir.turn WHERE seq = $1`, found.Seq); n != 0 {
		t.Fatalf("%d turns of claim %d are left: the test proves nothing", n, found.Seq)
	}
	wantState(t, conn, id, "running")
	mustComplete(t, conn, worker, []attempt{found})
	wantState(t, conn, id, "completed")
}
