package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAllFeaturesTogetherKeepTheirPromises: whichever features are in use at once, every job that was committed is claimed until it has ended, each
// attempt once, where it was enqueued or moved to; what is cancelled does not run; no limit is exceeded, and none loses a slot; and lists show what waits.
// The steps are taken one after the other, at random, by several sessions, and the bounds that lead to rare paths are small.
func TestAllFeaturesTogetherKeepTheirPromises(t *testing.T) {
	t.Parallel()
	seed := newSeed(t)
	for began, round := time.Now(), uint64(0); round < 1 || time.Since(began) < loadTime(2*time.Second); round++ {
		if !t.Run(fmt.Sprint(round), func(t *testing.T) { runTogether(t, rand.New(rand.NewPCG(seed, round))) }) {
			return
		}
	}
}

// togetherJob is what the test knows of a job that was committed.
type togetherJob struct {
	id        int64
	queue     string
	key       string // "": none
	flow      int64  // 0: none
	kind      string
	priority  int
	unique    bool // it may end without being claimed
	callback  bool // of a flow
	step      step // of the next attempt to be claimed
	loose     bool // the step is not known
	claimed   bool // that attempt is running
	final     bool
	cancelled bool // and not retried since
}

// waits reports whether an attempt is certain to be claimed.
func (j *togetherJob) waits() bool { return !j.final && !j.claimed && !j.cancelled && !j.unique }

type together struct {
	t         *testing.T
	rng       *rand.Rand
	conn      *pgx.Conn
	keys      int // how many there are
	most      int // that one claim asks for
	queues    []string
	producers []*togetherProducer
	workers   []int32
	held      map[int32][]attempt
	jobs      map[int64]*togetherJob
	perKey    map[string]int // limits of queues
	perQueue  map[string]int
	flows     []*togetherFlow
	seen      map[int64]bool // members that were enqueued
	brought   []int64        // jobs of tasks and callbacks
	log       []string
}

// togetherProducer is a session that enqueues, and the jobs of its open transaction, if it has one.
type togetherProducer struct {
	conn   *pgx.Conn
	tx     pgx.Tx
	logged []*togetherJob
}

func runTogether(t *testing.T, rng *rand.Rand) {
	url := pgtest.Database(t)
	s := &together{t: t, rng: rng, conn: connect(t, url), queues: []string{"q", "r"}, held: map[int32][]attempt{}, jobs: map[int64]*togetherJob{}, seen: map[int64]bool{}, brought: []int64{},
		perKey: map[string]int{}, perQueue: map[string]int{}, keys: []int{2, 5, 12, 40}[rng.IntN(4)], most: []int{1, 2, 6, 20}[rng.IntN(4)]}
	var steps []func(*together)
	var features []string
	for _, step := range togetherSteps {
		if step.feature == "" || rng.IntN(3) > 0 {
			steps = append(steps, slices.Repeat([]func(*together){step.do}, step.share)...)
			features = append(features, step.feature)
		}
	}
	t.Logf("%d keys, claims of up to %d, with %q", s.keys, s.most, features)
	s.shrink()
	if rng.IntN(2) == 0 {
		exec(t, s.conn, `SELECT weir.set('q', 'ageing', '10 ms')`)
	}
	exec(t, s.conn, `SELECT weir.set('completed_retention', '1 second')`)
	for range 2 {
		s.workers = append(s.workers, startWorker(t, s.conn, s.queues...))
	}
	for range 4 {
		s.producers = append(s.producers, &togetherProducer{conn: connect(t, url)})
	}
	for range 300 {
		steps[rng.IntN(len(steps))](s)
		if rng.IntN(8) == 0 {
			s.check()
		}
	}
	for _, p := range s.producers {
		s.endTransaction(p, true)
	}
	s.sealFlows()
	s.drain()
}

// shrink makes bounds small, so that a few jobs are many.
func (s *together) shrink() {
	for _, c := range []struct {
		function, name string
		from, to       string
	}{
		{"weir._take_turns", "max_rows", "1000", "5"},
		{"weir._take_turns", "max_lanes", `greatest\(50, 2 \* max_keys\)`, "3"},
		{"weir._take_turns", "max_stopped", "100", "2"},
		{"weir._pass_ended", "max_heads", "300", "3"},
		{"weir._waiting_keys", "few", "200", "2"},
		{"weir._resurvey", "min_queues", "100", "0"},
		{"weir._reclaim", "max_keys", "2000", "3"},
		{"weir._reclaim", "max_batches", "2000", "5"},
		{"weir._reclaim", "max_jobs", "10000", "8"},
	} {
		if s.rng.IntN(2) == 0 {
			setConstant(s.t, s.conn, c.function, c.name, c.from, c.to)
		}
	}
}

// setConstant gives a constant of a function another value, in this database.
func setConstant(t *testing.T, conn *pgx.Conn, function, name, from, to string) {
	t.Helper()
	definition := value[string](t, conn, `SELECT pg_get_functiondef($1::regproc)`, function)
	line := regexp.MustCompile(`(?m)^(  ` + name + ` +CONSTANT \w+ +:= )` + from + `;`)
	if n := len(line.FindAllString(definition, -1)); n != 1 {
		t.Fatalf("the constant %s of %s has the value %s in %d places, want one", name, function, from, n)
	}
	exec(t, conn, line.ReplaceAllString(definition, `${1}`+to+`;`))
}

func (s *together) say(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *together) fatal(format string, args ...any) {
	s.t.Helper()
	s.t.Logf("the last steps:\n%s", strings.Join(s.log[max(0, len(s.log)-60):], "\n"))
	s.t.Logf("the log:\n%s", (&turns{t: s.t, conn: s.conn}).state())
	s.t.Fatalf(format, args...)
}

func (s *together) claim(worker int32, queues []string, limit int) int {
	s.t.Helper()
	byKey, byQueue := map[string]int{}, map[string]int{}
	count := func(j *togetherJob) { byKey[j.queue+" "+j.key]++; byQueue[j.queue]++ }
	for _, j := range s.jobs {
		if j.claimed {
			count(j)
		}
	}
	got, err := claim(s.t.Context(), s.conn, worker, queues, slices.Repeat([]int32{int32(limit)}, len(queues)))
	if err != nil {
		s.fatal("claim: %v", err)
	}
	for _, a := range got {
		j := s.jobs[a.ID]
		s.say("worker %d has claimed job %d as %v, dropped %v", worker, a.ID, a.step(), a.Dropped != nil)
		switch {
		case j == nil:
			s.fatal("job %d is claimed, but was never committed", a.ID)
		case j.final, j.claimed, j.step != a.step() && !j.loose && !j.unique:
			s.fatal("job %+v is claimed as %v", *j, a.step())
		case j.cancelled && a.Dropped == nil:
			s.fatal("job %+v is claimed, but was cancelled", *j)
		case j.queue != a.Queue:
			s.fatal("job %+v is claimed from %s", *j, a.Queue)
		}
		j.claimed, j.step, j.loose = true, a.step(), false
		count(j)
		if n := s.perKey[j.queue]; n > 0 && j.key != "" && byKey[j.queue+" "+j.key] > n {
			s.fatal("%d attempts of %s run, at most %d may", byKey[j.queue+" "+j.key], j.key, n)
		}
		if n := s.perQueue[j.queue]; n > 0 && byQueue[j.queue] > n {
			s.fatal("%d attempts of queue %s run, at most %d may", byQueue[j.queue], j.queue, n)
		}
	}
	s.held[worker] = append(s.held[worker], got...)
	return len(got)
}

// listed returns the jobs of a queue, "" for all, that a list says wait or are scheduled.
func (s *together) listed(queue string) []int64 {
	s.t.Helper()
	return column[int64](s.t, s.conn, `SELECT id FROM weir.jobs('available', nullif($1, ''), 1000) UNION SELECT id FROM weir.jobs('scheduled', nullif($1, ''), 1000)`, queue)
}

// check compares what lists say with what the test knows.
func (s *together) check() {
	s.t.Helper()
	for _, queue := range append([]string{""}, s.queues...) {
		listed := s.listed(queue)
		for _, j := range s.jobs {
			if j.waits() && (queue == "" || j.queue == queue) && !slices.Contains(listed, j.id) {
				s.fatal("job %+v is not in the list of %q", *j, queue)
			}
		}
		for _, id := range listed {
			if j := s.jobs[id]; j == nil || j.final || j.claimed || j.cancelled || queue != "" && j.queue != queue {
				s.fatal("job %d %+v is in the list of %q", id, j, queue)
			}
		}
	}
}

// drain works until nothing is left, and compares how the jobs have ended.
func (s *together) drain() {
	pgtest.Eventually(s.t, func() error {
		promote(s.t, s.conn, 100)
		s.count()
		for _, w := range s.workers {
			for more := true; more; more = s.claim(w, s.queues, 20) > 0 {
				for len(s.held[w]) > 0 {
					s.end(w)
				}
			}
		}
		for _, j := range s.jobs {
			if j.waits() {
				return fmt.Errorf("job %+v is not claimed", *j)
			}
		}
		if n := value[int](s.t, s.conn, `SELECT count(*)::int FROM (SELECT FROM weir.jobs('available') UNION ALL SELECT FROM weir.jobs('scheduled') UNION ALL SELECT FROM weir.jobs('running')) j`); n > 0 {
			return fmt.Errorf("%d jobs are not finished", n)
		}
		if left := s.flowsLeft(); len(left) > 0 {
			return fmt.Errorf("flows have not ended: %v", left)
		}
		return nil
	})
	states := map[string]int{}
	for id, j := range s.jobs {
		state := value[string](s.t, s.conn, `SELECT coalesce((SELECT state::text FROM weir.job_info($1)), 'gone')`, id)
		states[state]++
		if is := state == "completed" || state == "failed"; is != j.final && is || (state == "cancelled" || state == "gone") && !j.final && !j.unique && !j.cancelled {
			s.fatal("job %+v is %s", *j, state)
		}
	}
	for _, limit := range column[string](s.t, s.conn, `SELECT format('%s of queue %s', running_now, queue) FROM weir.limits() WHERE NOT per_key AND running_now <> 0`) {
		s.fatal("nothing runs, but the limits count %s", limit)
	}
	s.t.Logf("%d jobs: %v", len(s.jobs), states)
}

func (s *together) endTransaction(p *togetherProducer, commit bool) {
	s.t.Helper()
	if p.tx == nil {
		return
	}
	end := p.tx.Rollback
	if commit {
		end = p.tx.Commit
		for _, j := range p.logged {
			s.jobs[j.id] = j
		}
	}
	s.say("commit %v of %d jobs, the first is %v", commit, len(p.logged), p.logged[:min(1, len(p.logged))])
	if err := end(context.Background()); err != nil {
		s.t.Fatal(err)
	}
	p.tx, p.logged = nil, nil
}
