package proof

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestNumbersOfBatchesDoNotComeAgainAfterAFailover: if a failover loses a claim, no later batch gets its number; otherwise a worker that still
// holds the lost batch could end an attempt of another job.
func TestNumbersOfBatchesDoNotComeAgainAfterAFailover(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	conn := connect(t, primary.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	worker := startWorker(t, conn, "q")
	standby := pgtest.Standby(t, primary, nil)
	pgtest.Replayed(t, primary, standby)
	pgtest.CutOff(t, standby)
	lost := value[int64](t, conn, `SELECT weir.enqueue('q', 'lost')`)
	held := mustClaim(t, conn, worker, "q", 1)
	if len(held) != 1 || held[0].ID != lost {
		t.Fatalf("claimed %v", held)
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Promote(t, standby)
	conn = connect(t, standby.URL("postgres"))
	exec(t, conn, `SELECT setval('weir.job_id', $1, false)`, lost) // as if the last WAL record of the sequence had been lost
	if id := value[int64](t, conn, `SELECT weir.enqueue('q', 'new')`); id != lost {
		t.Fatalf("the id of the new job is %d, that of the lost one was %d", id, lost)
	}
	got := mustClaim(t, conn, worker, "q", 1)
	if len(got) != 1 || got[0].Seq <= held[0].Seq {
		t.Fatalf("claimed %v; before the failover it was %v", got, held)
	}
	wantCode(t, "the end of the lost attempt", complete(t.Context(), conn, worker, held), "WR002")
	if state := value[string](t, conn, `SELECT state FROM weir.job_info($1)`, lost); state != "running" {
		t.Errorf("the new job is %s", state)
	}
	mustComplete(t, conn, worker, got)
}

// TestALimitHoldsAfterAFailover: what the new server knows of counts, although it has lost ends and releases; an attempt whose end was lost holds its place
// until it has ended again, or its worker is fenced; of a claim that was lost nothing is counted, and nothing stays counted.
func TestALimitHoldsAfterAFailover(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	conn := connect(t, primary.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `SELECT weir.set_limit('q', running => 3)`)
	worker, other := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 20)
	first := mustClaim(t, conn, worker, "q", 2)
	dies := mustClaim(t, conn, other, "q", 1)
	standby := pgtest.Standby(t, primary, nil)
	pgtest.Replayed(t, primary, standby)
	pgtest.CutOff(t, standby)
	mustComplete(t, conn, worker, first[:1])
	lost := wantClaimed(t, "after an end that will be lost", conn, worker, "q", 1)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Promote(t, standby)
	conn = connect(t, standby.URL("postgres"))
	wantCounted := func(when string, n int) {
		t.Helper()
		if got := runningNow(t, conn, "q"); got != n {
			t.Errorf("%s: %d are counted, want %d", when, got, n)
		}
	}
	wantCounted("after the failover", 3)
	wantClaimed(t, "at the limit", conn, worker, "q", 0)
	wantCode(t, "the end of an attempt that the new server does not know", complete(t.Context(), conn, worker, lost), "WR002")
	wantCounted("after an end that was refused", 3)
	mustComplete(t, conn, worker, first[:1])
	again := wantClaimed(t, "after the end was recorded again", conn, worker, "q", 1)
	exec(t, conn, `SELECT weir._fence($1, '')`, other)
	until(t, "what the fenced worker ran is logged again", func() bool {
		exec(t, conn, `SELECT weir._rescue()`)
		return runningNow(t, conn, "q") == 2
	})
	if n := value[int](t, conn, `SELECT count(*) FROM weir.job WHERE id = $1`, dies[0].ID); n != 2 {
		t.Errorf("the job of the fenced worker was logged %d times, want 2", n)
	}
	again = append(again, wantClaimed(t, "after a worker was fenced", conn, worker, "q", 1)...)
	mustComplete(t, conn, worker, append(first[1:], again...))
	wantCounted("when nothing runs", 0)
	mustComplete(t, conn, worker, wantClaimed(t, "when nothing runs", conn, worker, "q", 3))
	wantCounted("in the end", 0)
}

// TestKeysGoOnAfterAFailover: what the new server knows of turns is consistent: no job of a key is lost or claimed twice, no key has more running than its
// limit, in order the next one starts once the one ahead of it has ended, and the keys of jobs that were committed late, or before the failover and not
// replayed, get their turns.
func TestKeysGoOnAfterAFailover(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	url := primary.URL("postgres")
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `SELECT weir.set_limit('q', running => 2, per_key => true)`)
	exec(t, conn, `SELECT weir.set_limit('o', per_key => true, in_order => true)`)
	worker, other := startWorker(t, conn, "q", "o"), startWorker(t, conn, "q", "o")
	for _, key := range []string{"a", "b"} {
		enqueueFor(t, conn, "q", key, 6)
		enqueueFor(t, conn, "o", key, 4)
	}
	late := connect(t, url)
	exec(t, late, `BEGIN`)
	enqueueFor(t, late, "q", "a", 1) // commits behind the position of its key
	enqueueFor(t, late, "q", "late", 1)
	enqueueFor(t, conn, "q", "a", 1)
	claim := func(worker int32, queue string, limit int32, want ...string) []attempt {
		t.Helper()
		got := mustClaim(t, conn, worker, queue, limit)
		var keys []string
		for _, a := range got {
			keys = append(keys, value[string](t, conn, `SELECT DISTINCT key FROM weir.job WHERE id = $1`, a.ID))
		}
		if slices.Sort(keys); !slices.Equal(keys, want) {
			t.Fatalf("claimed from %s: %q, want %q", queue, keys, want)
		}
		return got
	}
	first := claim(worker, "q", 3, "a", "a", "b")
	dies := claim(other, "q", 9, "b")
	ordered := claim(worker, "o", 9, "a", "b")
	mustComplete(t, conn, worker, first[:2])
	first = first[2:]
	standby := pgtest.Standby(t, primary, nil)
	pgtest.Replayed(t, primary, standby)
	pgtest.CutOff(t, standby)

	// All this is lost: ends, claims, a retry, a commit, new jobs of an old key and of a new one.
	mustComplete(t, conn, worker, ordered[:1])
	lost := append(mustClaim(t, conn, worker, "o", 1), mustClaim(t, conn, worker, "q", 4)...)
	if len(lost) < 2 {
		t.Fatalf("only %d attempts are lost", len(lost))
	}
	if ok, err := finish(t.Context(), conn, worker, ordered[1], "retried", time.Time{}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	exec(t, late, `COMMIT`)
	enqueueFor(t, conn, "q", "b", 1)
	enqueueFor(t, conn, "q", "never", 1)
	mustClaim(t, conn, worker, "q", 10)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Promote(t, standby)
	conn = connect(t, standby.URL("postgres"))

	wantCode(t, "the end of an attempt that the new server does not know", complete(t.Context(), conn, worker, lost[:1]), "WR002")
	held := map[int64]attempt{}
	for _, a := range slices.Concat(first, dies, ordered) {
		held[a.ID] = a
	}
	enqueueFor(t, conn, "q", "a", 1)
	enqueueFor(t, conn, "q", "new", 2)
	k := &keyHolder{t: t, conn: conn, worker: worker, held: held, done: map[int64]bool{}}
	k.claim("q")
	k.claim("o") // nothing: the attempts whose ends were lost hold their places
	if n := len(k.held); n != len(first)+len(dies)+len(ordered)+4 {
		t.Errorf("%d attempts run, want %d: those that ran before, and one more of a, one of b and two of new", n, len(first)+len(dies)+len(ordered)+4)
	}
	exec(t, conn, `SELECT weir._fence($1, '')`, other)
	for _, a := range dies {
		delete(k.held, a.ID)
	}
	if n := settle(t, conn, other); n != 1 {
		t.Errorf("%d attempts of the fenced worker were logged again, want 1", n)
	}
	until(t, "all jobs have ended", func() bool {
		k.end()
		return k.claim("q")+k.claim("o") == 0 && len(k.held) == 0
	})
	// 13 of a and b, of which 2 had ended; in q; 8 in o; and 3 that came after the failover.
	if n := value[int](t, conn, `SELECT count(DISTINCT id) FROM weir.job`); len(k.done)+2 != n || n != 13+8+3 {
		t.Errorf("%d jobs have ended since, and 2 before, of %d, want %d", len(k.done), n, 13+8+3)
	}
}

// keyHolder holds what a worker has claimed, and looks after the limits of keys: 2 of each in q, and 1 in o.
type keyHolder struct {
	t      *testing.T
	conn   *pgx.Conn
	worker int32
	held   map[int64]attempt
	done   map[int64]bool
}

// claim claims all that may start.
func (k *keyHolder) claim(queue string) (n int) {
	k.t.Helper()
	for _, a := range claimAll(k.t, k.conn, k.worker, queue) {
		if _, twice := k.held[a.ID]; twice || k.done[a.ID] {
			k.t.Fatalf("job %d is claimed again", a.ID)
		}
		k.held[a.ID] = a
		n++
	}
	ids := []int64{}
	for id := range k.held {
		ids = append(ids, id)
	}
	for _, over := range column[string](k.t, k.conn, `SELECT format('%s attempts of %s in %s run', count(*), j.key, q.name) FROM (SELECT DISTINCT id, key, lane >> 39 AS queue FROM weir.job) j
		JOIN weir.queue q ON q.id = j.queue WHERE j.id = ANY ($1) GROUP BY q.name, j.key HAVING count(*) > CASE q.name WHEN 'o' THEN 1 ELSE 2 END`, ids) {
		k.t.Error(over)
	}
	return n
}

// end completes what is held.
func (k *keyHolder) end() {
	k.t.Helper()
	for id, a := range k.held {
		mustComplete(k.t, k.conn, k.worker, []attempt{a})
		k.done[id] = true
		delete(k.held, id)
	}
}
