package proof

import (
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestACrowdReachesKeysThatHaveNotHadTheirTurn: the jobs of a transaction with very many keys, which ends after others have overtaken it, are all claimed;
// also those of keys that have had a turn since, and wait for their next one among the new ones.
func TestACrowdReachesKeysThatHaveNotHadTheirTurn(t *testing.T) {
	t.Parallel()
	const crowd, few = 1500, 50
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	late := begin(t, connect(t, conn.Config().ConnString()))
	exec(t, late, `SELECT weir.enqueue('q', 'crowd', key => 'key ' || i) FROM generate_series(1, $1::int) i`, crowd)
	exec(t, conn, `SELECT weir.enqueue('q', 'first', key => 'key ' || i) FROM generate_series(1, $1::int) i`, few)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	exec(t, conn, `SELECT weir.enqueue('q', 'second', key => 'key ' || i) FROM generate_series(1, $1::int) i`, few)
	n := len(mustClaim(t, conn, worker, "q", few/5))
	if left := value[int](t, conn, `SELECT cardinality(newcomers) FROM weir.ring ORDER BY seq DESC LIMIT 1`); left == 0 {
		t.Fatal("no key waits among the new ones")
	}
	commit(t, late)
	n += len(mustClaim(t, conn, worker, "q", few/5))
	kinds, _ := claimLive(t, conn, worker, 100)
	if n += len(kinds); n != crowd+few {
		t.Errorf("claimed %d jobs, want %d", n, crowd+few)
	}
}

// TestKeysThatHaveNotHadTheirTurnAreKnown: jobs of keys that wait among the new ones are listed, counted, moved and cancelled as others, in a queue with
// so many keys that not all of them are looked at.
func TestKeysThatHaveNotHadTheirTurnAreKnown(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.enqueue('q', 'old', key => 'old ' || i) FROM generate_series(1, 300) i`)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	exec(t, conn, `SELECT weir.enqueue('q', 'new', key => 'new ' || i) FROM generate_series(1, 50) i`)
	mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", 10))
	exec(t, conn, `SELECT weir.pause('q')`)
	const left = 40
	for sql, want := range map[string]int{
		`SELECT cardinality(newcomers) FROM weir.ring ORDER BY seq DESC LIMIT 1`:                            left,
		`SELECT count(*)::int FROM weir.jobs('available', 'q', 1000)`:                                       left,
		`SELECT jsonb_array_length(jobs) FROM weir.jobs_page('{available}', queue => 'q', max_rows => 500)`: left,
		`SELECT available::int FROM weir.queues() WHERE name = 'q'`:                                         left,
	} {
		if n := value[int](t, conn, sql); n != want {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
	if n, _ := runSteps(t, conn, "move_where", `'q', to_priority => 3`); n != left {
		t.Errorf("moved %d jobs, want %d", n, left)
	}
	exec(t, conn, `SELECT weir.cancel_where('q')`)
	for range 10 {
		exec(t, conn, `SELECT weir._tidy()`)
	}
	exec(t, conn, `SELECT weir.resume('q')`)
	if got := claimAll(t, conn, worker, "q"); len(got) != 0 {
		t.Errorf("%d jobs are claimed that were cancelled while the queue was paused", len(got))
	}
}

// TestAKeyWithARateGoesOnAfterTheClockWasSetBack: also if its next start was planned while the clock was ahead.
func TestAKeyWithARateGoesOnAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_limit('q', rate => 20, burst => 1, per_key => true)`)
	exec(t, conn, `SELECT weir.enqueue('q', 'k', key => 'a') FROM generate_series(1, 50) i`)
	if n := len(mustClaim(t, conn, worker, "q", 10)); n != 1 {
		t.Fatalf("claimed %d jobs, want 1", n)
	}
	// As if the clock had been an hour ahead until now.
	exec(t, conn, `UPDATE weir.turn SET next_start = next_start + interval '1 hour', again_at = again_at + interval '1 hour'`)
	exec(t, conn, `UPDATE weir.ring SET due = now() + interval '1 hour'`)
	n := 0
	pgtest.Until(t, "five more have started", func() bool {
		n += len(mustClaim(t, conn, worker, "q", 10))
		return n >= 5
	})
}

// TestNewKeysAreServedWhileStoppedOnesAreLookedAtAgain: a change of limits that lets none of many stopped keys start takes no turn from others.
func TestNewKeysAreServedWhileStoppedOnesAreLookedAtAgain(t *testing.T) {
	t.Parallel()
	const keys = 900
	for name, c := range map[string]struct{ limit, change string }{
		"another rate":           {`SELECT weir.set_limit('q', rate => 1, per => '10 days', burst => 1, per_key => true)`, `SELECT weir.set_limit('q', rate => 1, per => '11 days', burst => 1, per_key => true)`},
		"a limit of the queue":   {`SELECT weir.set_limit('q', running => 1, per_key => true)`, `SELECT weir.set_limit('q', running => 100000)`},
		"a cancellation of none": {`SELECT weir.set_limit('q', per_key => true, in_order => true)`, `SELECT weir.cancel_where('q', kinds => '{other}')`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			exec(t, conn, c.limit)
			exec(t, conn, `SELECT weir.enqueue('q', 'first', key => 'key ' || i) FROM generate_series(1, $1::int) i, generate_series(1, 2)`, keys)
			if first, _ := claimLive(t, conn, worker, 100); len(first) != keys {
				t.Fatalf("claimed %d jobs, want %d", len(first), keys)
			}
			// As if others had had many turns meanwhile.
			exec(t, conn, `INSERT INTO weir.ring SELECT queue, seq + 1, tag + 1000 * 1048576, forms, version, arrived, newcomers, due, stopped_after, stopped_upto FROM weir.ring ORDER BY seq DESC LIMIT 1`)
			exec(t, conn, c.change)
			exec(t, conn, `SELECT weir.enqueue('q', 'new', key => 'a new one')`)
			began, claims := time.Now(), 1
			for ; len(mustClaim(t, conn, worker, "q", 100)) == 0; claims++ {
				if claims == 100 {
					t.Fatal("a new key had no turn in 100 claims")
				}
			}
			if t.Logf("%d claims in %v", claims, time.Since(began)); claims > 2 {
				t.Errorf("a new key had its turn in claim %d, want one of the first two", claims)
			}
		})
	}
}

// TestAHintIsAboutKeysToo: of queues with keys, too, a claim with a hint looks at those alone that have news, or limits of keys.
func TestAHintIsAboutKeysToo(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	names := column[string](t, conn, `SELECT 'queue ' || i FROM generate_series(1, 40) i`)
	worker := startWorker(t, conn, names...)
	exec(t, conn, `SELECT weir.set_limit('queue 7', running => 1, per_key => true)`)
	exec(t, conn, `SELECT weir.enqueue(q, 'k', key => 'a') FROM unnest($1::text[]) q`, names)
	limits := make([]int32, len(names))
	for i := range limits {
		limits[i] = 10
	}
	exec(t, conn, `SELECT * FROM weir._claim($1, $2, $3)`, worker, names, limits)
	since := value[string](t, conn, `SELECT pg_current_snapshot()::text`)
	exec(t, conn, `SELECT weir.enqueue('queue 5', 'k', key => 'b'), weir.enqueue('queue 7', 'k', key => 'b')`)
	exec(t, conn, `SET track_functions = 'pl'`)
	tx := begin(t, conn)
	got := column[string](t, tx, `SELECT queue FROM weir._claim($1, $2, $3, $4::text::pg_snapshot, '{"queue 9"}') WHERE id IS NOT NULL ORDER BY 1`, worker, names, limits, since)
	if looks := value[int](t, tx, `SELECT sum(calls)::int FROM pg_stat_xact_user_functions WHERE schemaname = 'weir' AND funcname = '_has_turns'`); len(got) != 2 || got[0] != "queue 5" || got[1] != "queue 7" || looks > 6 {
		t.Errorf("claimed from %v, and looked %d times for turns, want queues 5 and 7, and a look at each of them and at queue 9", got, looks)
	}
	commit(t, tx)
}
