package proof

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

const ageing = 10 * time.Minute

// enqueueAged enqueues n jobs that have waited for age into queue q.
func enqueueAged(t *testing.T, q querier, priority, n int, age time.Duration) {
	t.Helper()
	exec(t, q, `WITH made AS (SELECT weir.enqueue('q', 'k', priority => $1) AS id FROM generate_series(1, $2)) SELECT set_config('test.ids', array_agg(id)::text, false) FROM made`, priority, n)
	exec(t, q, `UPDATE weir.job SET enqueued_at = now() - $1::interval WHERE id = ANY (current_setting('test.ids')::bigint[])`, age)
}

// byAge says which n jobs of queue q are claimed next, after so many that were ever claimed: by priority, and one in four by age; and how many of them are
// claimed ahead of a higher priority.
func byAge(t *testing.T, q querier, claimed, n int) (ids []int64, early int) {
	t.Helper()
	type waiting struct {
		Priority int
		ID       int64
		Ready    time.Time
	}
	rows, err := q.Query(t.Context(), `SELECT j.lane & 3, j.id, coalesce(j.ready_at, j.enqueued_at) FROM weir.job j JOIN weir.queue q ON q.id = j.lane >> 39
		WHERE q.name = 'q' AND NOT EXISTS (SELECT FROM weir.batch b WHERE b.lane = j.lane AND j.id = ANY (b.ids)) ORDER BY j.xid, j.id`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[waiting])
	if err != nil {
		t.Fatal(err)
	}
	var lanes [4][]waiting
	for _, w := range all {
		lanes[w.Priority] = append(lanes[w.Priority], w)
	}
	aged := (claimed+n)/4 - claimed/4
	for i := range n {
		next := -1
		for p, lane := range lanes {
			count := func(w waiting) time.Time { return w.Ready.Add(time.Duration(w.Priority) * ageing) }
			if len(lane) > 0 && (next < 0 || i >= n-aged && count(lane[0]).Before(count(lanes[next][0]))) {
				next = p
			}
		}
		if next < 0 {
			break
		}
		if slices.ContainsFunc(lanes[:next], func(lane []waiting) bool { return len(lane) > 0 }) {
			early++
		}
		ids = append(ids, lanes[next][0].ID)
		lanes[next] = lanes[next][1:]
	}
	slices.Sort(ids)
	return ids, early
}

// TestTheOrderOfAgeingIsExact: which jobs a claim takes is computed from the rows alone, whether they were committed late, were promoted, are cancelled, or
// were carried into another segment; and those of open transactions don't count.
func TestTheOrderOfAgeingIsExact(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(newSeed(t), 0))
	url := pgtest.Database(t)
	conn := connect(t, url)
	smallSegments(t, conn)
	worker, filler := startWorker(t, conn, "q"), startWorker(t, conn, "filler")
	someJobs := func(q querier, n int) {
		for range n {
			enqueueAged(t, q, 1+random.IntN(4), 1+random.IntN(5), time.Duration(random.IntN(60))*time.Minute)
		}
	}
	someJobs(conn, 10)
	exec(t, conn, `SELECT weir.set('q', 'ageing', $1)`, ageing.String())
	claimed, early := 0, 0
	take := func(claims int) {
		t.Helper()
		for range claims {
			n := 1 + random.IntN(12)
			want, aged := byAge(t, conn, claimed, n)
			early += aged
			got := mustClaim(t, conn, worker, "q", int32(n))
			mustComplete(t, conn, worker, got)
			claimed += len(got)
			ids := idsOf(got)
			if slices.Sort(ids); !slices.Equal(ids, want) {
				t.Fatalf("a claim of %d jobs after %d takes %v, want %v", n, claimed-len(got), ids, want)
			}
		}
	}
	for range 4 {
		late := begin(t, connect(t, url))
		someJobs(late, 5)
		someJobs(conn, 12)
		exec(t, conn, `SELECT weir.enqueue('q', 'k', priority => 1 + n % 4, run_at => now() + n * interval '1 minute') FROM generate_series(1, 8) n`)
		take(4)
		commit(t, late)
		take(3)
		exec(t, conn, `UPDATE weir.later SET run_at = run_at - interval '1 hour' WHERE run_at > now()`)
		exec(t, conn, `SELECT weir._promote(10000)`)
		exec(t, conn, `SELECT weir.cancel(id) FROM weir.jobs('available', 'q') WHERE id % 7 = 0`)
		take(3)
		exec(t, conn, `SELECT weir.heartbeat($1), weir.heartbeat($2)`, worker, filler)
		turn(t, conn, filler)
		take(3)
	}
	for left := []int64{0}; len(left) > 0; left, _ = byAge(t, conn, claimed, 1) {
		take(1)
	}
	if early == 0 {
		t.Error("no job was claimed ahead of a higher priority")
	}
}

// TestNoPriorityStarvesWithAgeing: in a flood of the highest priority, jobs of the lowest have a quarter of the claims as soon as they have waited for
// three times the ageing, and none before; without ageing they wait forever.
func TestNoPriorityStarvesWithAgeing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, ageing string
		age          time.Duration
		want         int // of the 40 jobs that are claimed, how many are of the lowest priority
	}{
		{"older", "10 minutes", 31 * time.Minute, 10},
		{"with a limit", "10 minutes", 31 * time.Minute, 10},
		{"younger", "10 minutes", 29 * time.Minute, 0},
		{"off by default", "", 24 * time.Hour, 0},
		{"turned off", "0", 24 * time.Hour, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			enqueueAged(t, conn, 1, 100, 0)
			enqueueAged(t, conn, 4, 20, c.age)
			if c.ageing != "" {
				exec(t, conn, `SELECT weir.set('q', 'ageing', $1)`, c.ageing)
			}
			if c.name == "with a limit" {
				exec(t, conn, `SELECT weir.set_limit('q', running => 1)`)
			}
			for range 40 {
				mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 1))
			}
			if got := value[int](t, conn, `SELECT count(*) FROM weir.batch WHERE lane & 3 = 3`); got != c.want {
				t.Errorf("of 40 claims %d took a job of the lowest priority, want %d", got, c.want)
			}
		})
	}
}

// TestClaimsAtTheSameTimeShareByAge: claims of several sessions at once give lower priorities their share, take each job once, and don't deadlock.
func TestClaimsAtTheSameTimeShareByAge(t *testing.T) {
	t.Parallel()
	const aged, claimers = 200, 4
	url := pgtest.Database(t)
	conn := connect(t, url)
	enqueueAged(t, conn, 1, 6*aged, 0)
	enqueueAged(t, conn, 3, aged/2, time.Hour)
	enqueueAged(t, conn, 4, aged/2, time.Hour)
	exec(t, conn, `SELECT weir.set('q', 'ageing', '10 minutes')`)
	var left atomic.Int64
	left.Store(aged)
	var sessions sync.WaitGroup
	for i := range claimers {
		c := connect(t, url)
		worker := startWorker(t, c, "q")
		random := rand.New(rand.NewPCG(uint64(i), 0))
		sessions.Go(func() {
			for left.Load() > 0 {
				got, err := claim(t.Context(), c, worker, []string{"q"}, []int32{1 + random.Int32N(9)})
				if err == nil {
					err = complete(t.Context(), c, worker, got)
				}
				if err != nil {
					t.Error(err)
					return
				}
				for _, a := range got {
					if a.Lane&3 > 0 {
						left.Add(-1)
					}
				}
			}
		})
	}
	sessions.Wait()
	claimed := value[int](t, conn, `SELECT sum(cardinality(ids)) FROM weir.batch`)
	if twice := value[int](t, conn, `SELECT count(*) FROM (SELECT FROM weir.batch b, unnest(b.ids) i(id) GROUP BY i.id HAVING count(*) > 1) k`); twice > 0 {
		t.Errorf("%d jobs were claimed twice", twice)
	}
	if most := 4*aged + 2*claimers*9; claimed > most {
		t.Errorf("%d jobs were claimed before %d of lower priorities, want at most %d", claimed, aged, most)
	}
}

// TestTwoClaimsDoNotTakeTheSameTurn: of two claims that wait for a lane at the same time, the second finds out whose turn it is after the first.
func TestTwoClaimsDoNotTakeTheSameTurn(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	enqueueAged(t, conn, 1, 10, 0)
	enqueueAged(t, conn, 4, 10, time.Hour)
	exec(t, conn, `SELECT weir.set('q', 'ageing', '10 minutes')`)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 3)) // the next one is chosen by age
	blocker := begin(t, connect(t, url))
	exec(t, blocker, `SELECT pg_advisory_xact_lock(1464158546, q.id * 4 + 3) FROM weir.queue q WHERE q.name = 'q'`)
	var claims sync.WaitGroup
	for range 2 {
		c := connect(t, url)
		worker := startWorker(t, c, "q")
		claims.Go(func() {
			if got, err := claim(t.Context(), c, worker, []string{"q"}, []int32{1}); err != nil || len(got) != 1 {
				t.Errorf("claimed %v (%v), want one job", got, err)
			}
		})
	}
	until(t, "both claims wait", func() bool {
		return value[int](t, conn, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 2
	})
	commit(t, blocker)
	claims.Wait()
	if got := fmt.Sprint(column[int](t, conn, `SELECT (lane & 3) + 1 FROM weir.batch ORDER BY no DESC LIMIT 2`)); got != "[1 4]" {
		t.Errorf("the two claims took jobs of priorities %s, the last one first, want [1 4]", got)
	}
}

// TestAClaimSaysThatThereIsMoreIfItLeavesAShare: a claim leaves a job to a lane that it does not visit, because a hint does not name it. Then it says that
// there is more, so that nothing waits until another job is enqueued.
func TestAClaimSaysThatThereIsMoreIfItLeavesAShare(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	enqueueAged(t, conn, 1, 3, 0)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 3))
	enqueueAged(t, conn, 4, 1, time.Hour)
	exec(t, conn, `SELECT weir.set('q', 'ageing', '10 minutes')`)
	since := value[string](t, conn, `SELECT pg_current_snapshot()::text`)
	enqueueAged(t, conn, 1, 1, 0)
	got := column[*int64](t, conn, `SELECT id FROM weir._claim($1, '{q}', '{1}', $2::text::pg_snapshot, '{}')`, worker, since)
	if len(got) != 1 || got[0] != nil {
		t.Errorf("the claim returns %v, want one row without values: there may be more", got)
	}
}

// TestAgeingCostsWhoUsesIt: a claim from a queue without it reads no block more, whatever other queues have set; with it, and before a job has aged, the
// head of each lane. The cost is counted in blocks.
func TestAgeingCostsWhoUsesIt(t *testing.T) {
	pgtest.Alone(t, "what a claim touches depends on the transactions of the whole server")
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "other")
	exec(t, conn, `SELECT weir.enqueue('other', 'k')`)
	for p := range 4 {
		enqueueAged(t, conn, 1+p, 100, time.Minute)
	}
	claimSQL := fmt.Sprintf(`SELECT * FROM weir._claim(%d, '{q,other}', '{10,0}')`, worker)
	blocks(t, conn, claimSQL)
	without := blocks(t, conn, claimSQL)
	exec(t, conn, `SELECT weir.set('other', 'ageing', '1 second')`)
	exec(t, conn, `VACUUM weir.queue`)
	blocks(t, conn, claimSQL)
	others := blocks(t, conn, claimSQL)
	exec(t, conn, `SELECT weir.set('q', 'ageing', '10 minutes')`)
	exec(t, conn, `VACUUM weir.queue`)
	blocks(t, conn, claimSQL)
	with := blocks(t, conn, claimSQL)
	t.Logf("a claim reads %d blocks without ageing, %d if another queue has it, and %d with it", without, others, with)
	if others > without+1 || with > without+60 {
		t.Error("ageing costs more than the head of each lane")
	}
}
