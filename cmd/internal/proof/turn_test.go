package proof

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// enqueueFor enqueues n jobs of a key in one call.
func enqueueFor(t *testing.T, q querier, queue, key string, n int) {
	t.Helper()
	for ; n > 0; n -= 10_000 {
		exec(t, q, `SELECT weir.enqueue_many(array_fill($1::text, ARRAY[$3::int]), array_fill('k'::text, ARRAY[$3::int]), key => array_fill($2::text, ARRAY[$3::int]))`, queue, key, min(n, 10_000))
	}
}

// enqueueForEach enqueues n jobs, one for each of n keys, a thousand in a transaction.
func enqueueForEach(t *testing.T, q querier, queue string, n int) {
	t.Helper()
	for from := 0; from < n; from += 1000 {
		exec(t, q, `SELECT weir.enqueue_many(array_agg($1::text), array_agg('k'::text), key => array_agg('key ' || i)) FROM generate_series($2::int, $3::int) i`,
			queue, from+1, min(from+1000, n))
	}
}

// claimKeys claims once, and returns the keys of the jobs in their order.
func claimKeys(t *testing.T, q querier, worker int32, queue string, limit int) []string {
	t.Helper()
	return column[string](t, q, `SELECT coalesce(key, '') FROM weir._claim($1, ARRAY[$2], ARRAY[$3::int]) WHERE id IS NOT NULL`, worker, queue, limit)
}

// claimKeysUntil claims until nothing is left, or n jobs are claimed.
func claimKeysUntil(t *testing.T, q querier, worker int32, queue string, limit, n int) (keys []string) {
	t.Helper()
	for len(keys) < n {
		got := column[*string](t, q, `SELECT CASE WHEN id IS NOT NULL THEN coalesce(key, '') END FROM weir._claim($1, ARRAY[$2], ARRAY[$3::int])
			WHERE id IS NOT NULL OR queue IS NULL`, worker, queue, min(limit, n-len(keys)))
		if len(got) == 0 { // it does not say that there may be more
			break
		}
		for _, key := range got {
			if key != nil {
				keys = append(keys, *key)
			}
		}
	}
	return keys
}

func count(keys []string) map[string]int {
	n := map[string]int{}
	for _, key := range keys {
		n[key]++
	}
	return n
}

// TestKeysTakeTurns: a key with many jobs waiting delays the others by one turn, whatever came first.
func TestKeysTakeTurns(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	enqueueFor(t, conn, "q", "big", 5000)
	claimKeys(t, conn, worker, "q", 10)
	enqueueFor(t, conn, "q", "a", 3)
	enqueueFor(t, conn, "q", "b", 2)
	// Two turns of big, at most, come before each of theirs.
	got := claimKeysUntil(t, conn, worker, "q", 3, 14)
	if n := count(got); n["a"] != 3 || n["b"] != 2 {
		t.Errorf("the next jobs are %q, want the 3 of a and the 2 of b among them", got)
	}
	for i, key := range got[:min(4, len(got))] {
		if key != "big" {
			break
		} else if i == 3 {
			t.Errorf("the next jobs are %q, want one of a or b among the first 4", got)
		}
	}
	// One that comes when a hundred others wait has its turn within their first round.
	enqueueForEach(t, conn, "q", 100)
	claimKeys(t, conn, worker, "q", 5)
	enqueueFor(t, conn, "q", "late", 1)
	if got := claimKeysUntil(t, conn, worker, "q", 7, 140); !slices.Contains(got, "late") {
		t.Errorf("of %d jobs that were claimed next, none is of the key that came last: %v", len(got), count(got))
	}
	// One job of 100 keys each, of big all the others.
	if rest := count(claimKeysUntil(t, conn, worker, "q", 500, 10_000)); rest["big"] < 4500 {
		t.Errorf("%v are left", rest)
	}
	if n := value[int](t, conn, `SELECT sum(cardinality(ids)) FROM weir.batch`); n != 5106 {
		t.Errorf("%d jobs were claimed, want 5106", n)
	}
}

// TestWeightsGiveMoreTurns: a key with a weight of 3 gets three times as many turns as one with 1.
func TestWeightsGiveMoreTurns(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `INSERT INTO weir.key_weight (queue, bits, key, weight) VALUES ('q', weir._key_bits('heavy'), 'heavy', 3), ('q', weir._key_bits('light'), 'light', 0.5)`)
	for _, key := range []string{"heavy", "light", "usual"} {
		enqueueFor(t, conn, "q", key, 1000)
	}
	for _, limit := range []int{1, 7, 90} {
		got := count(claimKeysUntil(t, conn, worker, "q", limit, 450))
		if got["heavy"] < 280 || got["heavy"] > 320 || got["usual"] < 90 || got["usual"] > 110 || got["light"] < 40 || got["light"] > 60 {
			t.Errorf("with %d at a time: %v of 450, want 300 of heavy, 100 of usual and 50 of light", limit, got)
		}
	}
}

// TestAKeyAtItsLimitHoldsUpNobody: keys that may start nothing are passed over, and cost nothing, until one of their attempts ends.
func TestAKeyAtItsLimitHoldsUpNobody(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_limit('q', running => 2, per_key => true)`)
	for i := range 50 {
		enqueueFor(t, conn, "q", fmt.Sprint("full ", i), 10)
	}
	var held []attempt
	for range 30 {
		held = append(held, mustClaim(t, conn, worker, "q", 40)...)
	}
	if len(held) != 100 {
		t.Fatalf("%d attempts run, want 2 of each of 50 keys", len(held))
	}
	seen := value[int64](t, conn, `SELECT max(seq) FROM weir.ring`)
	if got := mustClaim(t, conn, worker, "q", 40); len(got) != 0 || value[int64](t, conn, `SELECT max(seq) FROM weir.ring`) != seen {
		t.Errorf("a claim that finds all keys at their limit returns %d jobs, and writes: want neither", len(got))
	}
	enqueueFor(t, conn, "q", "free", 3)
	if got := claimKeys(t, conn, worker, "q", 10); len(got) != 2 || got[0] != "free" {
		t.Errorf("claimed of %q, want 2 of the key that has room", got)
	}
	mustComplete(t, conn, worker, held[7:8])
	if got := mustClaim(t, conn, worker, "q", 10); len(got) != 1 {
		t.Errorf("%d jobs start after one has ended, want 1", len(got))
	}
	exec(t, conn, `SELECT weir.set_limit('q', running => 3, per_key => true)`)
	if got := claimKeysUntil(t, conn, worker, "q", 40, 1000); len(got) != 51 {
		t.Errorf("%d jobs start once the limit is higher by one, want one of each of 51 keys", len(got))
	}
	exec(t, conn, `SELECT weir.clear_limit('q', per_key => true)`)
	if got := claimKeysUntil(t, conn, worker, "q", 40, 1000); len(got) != 349 {
		t.Errorf("%d jobs start without a limit, want the other 349", len(got))
	}
}

// TestJobsWithoutAKeyShareWithKeys: neither the jobs that are nobody's nor those of keys wait for all of the others.
func TestJobsWithoutAKeyShareWithKeys(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 2, 20} {
		conn := connect(t, pgtest.Database(t))
		worker := startWorker(t, conn, "q")
		enqueueFor(t, conn, "q", "a", 1000)
		enqueueN(t, conn, "q", 1000)
		if got := count(claimKeysUntil(t, conn, worker, "q", limit, 200)); got[""] < 50 || got["a"] < 50 {
			t.Errorf("with %d at a time: %v of 200, want about as many without a key as of a", limit, got)
		}
	}
}

// TestRatesOfKeysHold: each key has its own rate and burst, and a claim says when the next may start.
func TestRatesOfKeysHold(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_limit('q', rate => 2, per => '1 hour', burst => 3, per_key => true)`)
	for i := range 5 {
		enqueueFor(t, conn, "q", fmt.Sprint("key ", i), 10)
	}
	if got := count(claimKeysUntil(t, conn, worker, "q", 4, 1000)); len(got) != 5 || got["key 1"] != 3 || got["key 4"] != 3 {
		t.Errorf("%v start at once, want the burst, 3 of each key", got)
	}
	if next := value[float64](t, conn, `SELECT extract(epoch FROM max(ready_at) - max(enqueued_at))::float8 FROM weir._claim($1, '{q}', '{10}')`, worker); next < 1700 || next > 1800 {
		t.Errorf("the next may start in %.0f s, want 1800 at most, and little less", next)
	}
	// Another rate is kept at once.
	exec(t, conn, `SELECT weir.set_limit('q', rate => 1000, per => '1 second', burst => 5, per_key => true)`)
	n := 0
	until(t, "the other 35 have started", func() bool {
		n += len(claimKeys(t, conn, worker, "q", 100))
		return n == 35
	})
}

// TestOneTransactionWithVeryManyKeys: each job of one transaction with more keys than a claim looks at is claimed once, and of the keys that had jobs
// before, whose positions may have passed the transaction, none is left out.
func TestOneTransactionWithVeryManyKeys(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, large := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	const keys = 2500
	enqueueForEach(t, conn, "q", 10)
	if got := count(claimKeysUntil(t, conn, worker, "q", 960, 10)); len(got) != 10 {
		t.Fatalf("%d of 10 keys are claimed", len(got))
	}
	exec(t, large, `BEGIN`)
	enqueueForEach(t, large, "q", keys)
	for range 2 { // claimed, and waiting, beyond the open transaction
		enqueueForEach(t, conn, "q", 5)
	}
	want := 2*5 + keys
	got := claimKeysUntil(t, conn, worker, "q", 7, 7)
	exec(t, large, `COMMIT`)
	got = append(got, claimKeysUntil(t, conn, worker, "q", 960, want)...)
	if n := count(got); len(got) != want || len(n) != keys || n["key 1"] != 3 || n["key 6"] != 1 {
		t.Errorf("%d jobs of %d keys are claimed, %d of one that has three, want %d of %d", len(got), len(n), n["key 1"], want, keys)
	}
	if more := claimKeysUntil(t, conn, worker, "q", 960, 1); len(more) != 0 {
		t.Errorf("%v is claimed again", more)
	}
}

// TestKeysThatHaveWaitedForTheirRateHoldUpNoOther: rows of keys that have waited for their rate, and have long had their turn, are not taken for keys
// that wait, however many they are.
func TestKeysThatHaveWaitedForTheirRateHoldUpNoOther(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_limit('q', rate => 1, per => '1 second', burst => 1, per_key => true)`)
	const keys = 1300 // more than the 1000 that a claim looks at
	n := 0
	claim := func(want int) func() bool {
		return func() bool {
			n += len(claimKeys(t, conn, worker, "q", 960))
			return n == want
		}
	}
	for range 2 {
		enqueueForEach(t, conn, "q", keys)
	}
	until(t, "all keys have had two turns", claim(2*keys))
	if n := value[int](t, conn, `SELECT count(DISTINCT lane) FROM weir.turn WHERE again_at IS NOT NULL`); n <= 1000 {
		t.Fatalf("%d keys have waited for their rate, want more than a claim looks at", n)
	}
	enqueueFor(t, conn, "q", "another", 3)
	until(t, "another key has waited for its rate, too", claim(2*keys+3))
	if due := value[bool](t, conn, `SELECT max(due) > max(again_at) - interval '1 second' FROM weir.turn, weir.ring`); !due {
		t.Error("claims would read the rows of all keys that have ever waited")
	}
}

// TestTheCostOfATurnIsFlat: what a claim reads depends neither on how many jobs a key has waiting, nor on how many keys there are, nor on how many
// transactions are open or what they have logged.
func TestTheCostOfATurnIsFlat(t *testing.T) {
	pgtest.Alone(t, "what a claim touches depends on the transactions of the whole server")
	const overhead, most = 1000, 40 // blocks for a claim, and for each job
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	cost := func(what string) int {
		t.Helper()
		claimKeys(t, conn, worker, "q", 20)
		n := blocks(t, conn, fmt.Sprintf(`SELECT count(*) FROM weir._claim(%d, '{q}', '{20}')`, worker))
		t.Logf("%s: %d blocks for 20 jobs", what, n)
		if n > overhead+20*most {
			t.Errorf("%s: a claim reads %d blocks for 20 jobs, want at most %d", what, n, overhead+20*most)
		}
		return n
	}
	enqueueForEach(t, conn, "q", 100)
	cost("100 keys")
	enqueueFor(t, conn, "q", "big", 40_000)
	cost("a key with 40,000 jobs")
	enqueueForEach(t, conn, "q", 5000)
	for range 20 {
		claimKeys(t, conn, worker, "q", 100)
	}
	cost("5,000 keys")
	large := connect(t, conn.Config().ConnString())
	exec(t, large, `BEGIN`)
	enqueueFor(t, large, "q", "big", 30_000)
	enqueueForEach(t, large, "q", 3000)
	claimKeys(t, conn, worker, "q", 1)
	enqueueForEach(t, conn, "q", 100)
	cost("33,000 rows uncommitted")
	var open []*pgx.Conn
	for range 30 {
		c := connect(t, conn.Config().ConnString())
		exec(t, c, `BEGIN`)
		enqueueFor(t, c, "q", "big", 2)
		open = append(open, c)
	}
	claimKeys(t, conn, worker, "q", 1)
	enqueueForEach(t, conn, "q", 100)
	cost("31 transactions open")
	for _, c := range open {
		exec(t, c, `COMMIT`)
	}
	cost("30 transactions that end together")
	if n := len(claimKeysUntil(t, conn, worker, "q", 960, 100_000)) + value[int](t, conn, `SELECT sum(cardinality(ids)) FROM weir.batch`); n < 45_360 {
		t.Errorf("%d jobs were claimed in all, want all 45,360 that were committed", n)
	}
}

// TestAJobWithAKeyCostsFewBytesMore: at most 430 bytes of WAL on top of those of a plain job, even if each has another key, 500 with a limit, and
// 60 in runs of one.
func TestAJobWithAKeyCostsFewBytesMore(t *testing.T) {
	t.Parallel() // on a server of its own, because what is written is counted
	const jobs = 1000
	server := pgtest.Server(t, map[string]string{"full_page_writes": "off", "autovacuum": "off"})
	conn := connect(t, server.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	worker := startWorker(t, conn, "plain", "keys", "limited")
	exec(t, conn, `SELECT weir.set_limit('limited', running => 5, per_key => true)`)
	written := func(queue, key string) float64 {
		t.Helper()
		const lsn = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
		sql := fmt.Sprintf(`SELECT weir.enqueue_many(array_agg('%s'::text), array_agg('k'::text), key => array_agg(%s)) FROM generate_series(1, %d) i`, queue, key, jobs)
		before := value[int64](t, conn, lsn)
		exec(t, conn, sql)
		for n := 0; n < jobs; {
			got := mustClaim(t, conn, worker, queue, 100)
			if n += len(got); len(got) == 0 {
				t.Fatalf("%s: %d jobs were claimed, and no more", queue, n)
			}
			mustComplete(t, conn, worker, got)
		}
		return float64(value[int64](t, conn, lsn)-before) / jobs
	}
	written("plain", `NULL::text`)
	written("keys", `'tenant ' || i`)
	plain := written("plain", `NULL::text`)
	for _, c := range []struct {
		what, queue, key string
		most             float64
	}{
		{"runs of one key", "keys", `'tenant ' || i / 200`, 60},
		{"100 keys", "keys", `'tenant ' || i % 100`, 430},
		{"another key each", "keys", `'tenant ' || i`, 430},
		{"100 keys with a limit", "limited", `'tenant ' || i % 100`, 500},
		{"another key each, with a limit", "limited", `'tenant ' || i`, 500},
	} {
		got := written(c.queue, c.key)
		t.Logf("%s: %.0f bytes, %.0f more than a plain job", c.what, got, got-plain)
		if got > plain+c.most {
			t.Errorf("%s: %.0f bytes more than a plain job, want at most %.0f", c.what, got-plain, c.most)
		}
	}
}

// TestAJobInOrderWaitsForTheOneBeforeIt: in a queue in order, a key's next job starts when the one before has ended for good, and not before its retries.
func TestAJobInOrderWaitsForTheOneBeforeIt(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_limit('q', per_key => true, in_order => true)`)
	exec(t, conn, `SELECT weir.enqueue('q', i::text, key => 'a') FROM generate_series(1, 4) i`)
	next := func(want string) {
		t.Helper()
		var kinds []string
		for more := true; more && len(kinds) == 0; {
			more = false
			for _, kind := range column[*string](t, conn, `SELECT kind || '.' || attempt || '.' || put_off FROM weir._claim($1, '{q}', '{10}') WHERE id IS NOT NULL OR queue IS NULL`, worker) {
				if more = kind == nil; !more {
					kinds = append(kinds, *kind)
				}
			}
		}
		if strings.Join(kinds, " ") != want {
			t.Fatalf("claimed %q, want %q", kinds, want)
		}
	}
	end := func(outcome string) {
		t.Helper()
		a := value[[]int64](t, conn, `SELECT ARRAY[b.lane, b.seq, b.ids[1]] FROM weir.batch b WHERE cardinality(b.ids) > 0 ORDER BY b.seq DESC LIMIT 1`)
		if refused, err := record(t.Context(), conn, worker, []attempt{{Lane: a[0], Seq: a[1], ID: a[2]}}, outcome, nil); err != nil || len(refused) > 0 {
			t.Fatal(err, refused)
		}
	}
	next("1.1.0")
	next("")
	end("retried")
	next("1.2.0")
	end("snoozed")
	next("1.2.1")
	next("")
	end("completed")
	next("2.1.0")
	// Put off for a long time, it keeps its place; and so does it if its worker dies.
	a := value[[]int64](t, conn, `SELECT ARRAY[b.lane, b.seq, b.ids[1]] FROM weir.batch b ORDER BY b.seq DESC LIMIT 1`)
	exec(t, conn, `SELECT weir._record($1, ARRAY[$2::bigint], ARRAY[$3::bigint], '{1}', ARRAY[$4::bigint], '{retried}', '{x}', NULL, ARRAY[now() + interval '1 hour'])`, worker, a[0], a[1], a[2])
	next("")
	exec(t, conn, `SELECT weir.cancel($1)`, a[2])
	next("3.1.0")
	exec(t, conn, `SELECT weir._fence($1)`, worker)
	worker = startWorker(t, conn, "q")
	next("")
	settle(t, conn, value[int32](t, conn, `SELECT min(id) FROM weir.worker`))
	next("3.2.0")
	end("failed")
	next("4.1.0")
	end("completed")
	next("")
}

// TestWhatHasEndedIsNotCountedOnceItIsReclaimed: a key's limit counts what runs, also when the log has forgotten what has ended; and in order, a job that
// waits for its next attempt keeps its place.
func TestWhatHasEndedIsNotCountedOnceItIsReclaimed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "o")
	exec(t, conn, `SELECT weir.set('completed_retention', '0')`)
	exec(t, conn, `SELECT weir.set_limit('q', running => 2, per_key => true)`)
	exec(t, conn, `SELECT weir.set_limit('o', per_key => true, in_order => true)`)
	enqueueFor(t, conn, "q", "a", 6)
	enqueueFor(t, conn, "o", "a", 2)
	held := mustClaim(t, conn, worker, "q", 10)
	first := mustClaim(t, conn, worker, "o", 10)
	if len(held) != 2 || len(first) != 1 {
		t.Fatalf("%d and %d attempts run, want 2 and 1", len(held), len(first))
	}
	mustComplete(t, conn, worker, held[:1])
	later := time.Now().Add(time.Hour)
	if ok, err := finish(t.Context(), conn, worker, first[0], "retried", later); err != nil || !ok {
		t.Fatal(ok, err)
	}
	for range 2 {
		was := value[int](t, conn, `SELECT pg_sequence_last_value('weir.active_job')`)
		until(t, "another segment is active, and the one before it is empty", func() bool {
			exec(t, conn, `SELECT weir._rotate()`)
			return value[bool](t, conn, `SELECT pg_sequence_last_value('weir.active_job') <> $1 AND pg_relation_size('weir.job_' || $1::int) = 0`, was)
		})
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.result`); n != 0 {
		t.Fatalf("%d results are left: the test proves nothing", n)
	}
	if got := claimKeysUntil(t, conn, worker, "q", 10, 10); len(got) != 1 {
		t.Errorf("%d jobs start beside the one that runs, want 1", len(got))
	}
	if got := claimKeysUntil(t, conn, worker, "o", 10, 10); len(got) != 0 {
		t.Errorf("%d jobs start before the one ahead of them has been tried again", len(got))
	}
}
