package proof

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestStoppedKeysAreLookedAtInSteps: after a change of limits, and after a cancellation by filter, all keys that a limit has stopped get their turns,
// however many they are, and no claim looks at more than some of them, even if the next change comes before all were looked at.
func TestStoppedKeysAreLookedAtInSteps(t *testing.T) {
	t.Parallel()
	const keys = 1500
	for name, c := range map[string]struct {
		limit, again, free string
		claimed            int
		put                bool // back, for an hour
	}{
		"limits are lifted":      {`SELECT weir.set_limit('q', running => 1, per_key => true)`, `SELECT weir.set_limit('q', running => 2, per_key => true)`, `SELECT weir.clear_limit('q', per_key => true)`, keys, false},
		"a rate is lifted":       {`SELECT weir.set_limit('q', rate => 1, per => '1 day', burst => 1, per_key => true)`, `SELECT weir.set_limit('q', rate => 1, per => '2 days', burst => 2, per_key => true)`, `SELECT weir.clear_limit('q', per_key => true)`, keys, false},
		"the first is cancelled": {`SELECT weir.set_limit('q', per_key => true, in_order => true)`, `SELECT weir.cancel_where('q', kinds => '{other}')`, `SELECT weir.cancel_where('q', kinds => '{first}')`, keys, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			exec(t, conn, c.limit)
			for _, kind := range []string{"first", "second"} {
				for from := range 3 {
					exec(t, conn, `SELECT weir.enqueue('q', $1, key => 'key ' || i) FROM generate_series($2::int * $3::int + 1, ($2 + 1) * $3) i`, kind, from, keys/3)
				}
			}
			var got []attempt
			for n := -1; n != len(got); {
				n = len(got)
				got = append(got, mustClaim(t, conn, worker, "q", 100)...)
			}
			if len(got) != c.claimed {
				t.Fatalf("claimed %d jobs, want %d", len(got), c.claimed)
			}
			if c.put {
				later := time.Now().Add(time.Hour)
				if refused, err := record(t.Context(), conn, worker, got, "retried", &later); err != nil || len(refused) > 0 {
					t.Fatal(refused, err)
				}
			}
			if again, _ := claimLive(t, conn, worker, 100); len(again) != 0 {
				t.Fatalf("claimed %d more jobs, want none", len(again))
			}
			seq := value[int64](t, conn, `SELECT max(seq) FROM weir.ring`)
			var kinds []string
			claims := 0
			for _, sql := range []string{c.free, c.again, c.free} {
				exec(t, conn, sql)
				for range 3 {
					for _, a := range mustClaim(t, conn, worker, "q", 100) {
						kinds = append(kinds, a.Kind)
					}
				}
			}
			rest, claims := claimLive(t, conn, worker, 100)
			kinds = append(kinds, rest...)
			slices.Sort(kinds)
			if kinds = slices.Compact(kinds); len(rest) == 0 || !slices.Equal(kinds, []string{"second"}) {
				t.Errorf("claimed jobs of kinds %v, the last %d in %d claims, want second", kinds, len(rest), claims)
			}
			if n := value[int](t, conn, `SELECT count(*) FROM (SELECT FROM weir.jobs('available', 'q', 2 * $1)) j`, keys); n != 0 {
				t.Errorf("%d jobs are left", n)
			}
			most := value[int](t, conn, `SELECT max(n) FROM (SELECT count(*)::int AS n FROM weir.turn WHERE seq > $1 GROUP BY seq) t`, seq)
			if most > 400 {
				t.Errorf("a claim wrote the states of %d keys", most)
			}
			if n := value[int](t, conn, `SELECT count(*)::int FROM (SELECT stopped_after FROM weir.ring ORDER BY seq DESC LIMIT 1) r WHERE stopped_after IS NOT NULL`); n != 0 {
				t.Error("the last claim has left keys to be looked at, and said that there was nothing more")
			}
		})
	}
}

// TestAStoppedKeyIsFoundBehindThoseThatWereStopped: a change of limits gives its turn to a key in the last lane, though many before it, which were stopped
// once, have nothing to do any more.
func TestAStoppedKeyIsFoundBehindThoseThatWereStopped(t *testing.T) {
	t.Parallel()
	const keys = 900
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_limit('q', running => 1, per_key => true)`)
	for _, kind := range []string{"first", "second"} {
		exec(t, conn, `SELECT weir.enqueue('q', $1, key => 'key ' || i) FROM generate_series(1, $2::int) i`, kind, keys)
	}
	last := value[int64](t, conn, `SELECT id FROM weir.job WHERE kind = 'first' ORDER BY lane DESC LIMIT 1`)
	claimAll := func() (all []attempt) {
		for n := -1; n != len(all); {
			n = len(all)
			all = append(all, mustClaim(t, conn, worker, "q", 100)...)
		}
		return all
	}
	firsts := claimAll()
	ended := slices.DeleteFunc(slices.Clone(firsts), func(a attempt) bool { return a.ID == last })
	if refused, err := record(t.Context(), conn, worker, ended, "completed", nil); err != nil || len(refused) > 0 || len(ended) != keys-1 {
		t.Fatal(len(ended), refused, err)
	}
	if seconds := claimAll(); len(seconds) != keys-1 {
		t.Fatalf("claimed %d jobs, want %d", len(seconds), keys-1)
	}
	exec(t, conn, `SELECT weir.clear_limit('q', per_key => true)`)
	if kinds, claims := claimLive(t, conn, worker, 100); !slices.Equal(kinds, []string{"second"}) || claims < 2 {
		t.Errorf("claimed %v in %d claims, want the second job of the last key", kinds, claims)
	}
}

// TestEachStoppedKeyIsLookedAtAfterAChange: of the keys of a queue, and of its twin, but of no other; once for one change, and if more changes come
// meanwhile, at least once after each.
func TestEachStoppedKeyIsLookedAtAfterAChange(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	want := map[int64]bool{}
	for _, queue := range []int64{5, 6, 9} {
		for range 40 {
			key := queue<<39 + (1+rng.Int64N(60))<<3
			if queue != 6 {
				want[key] = true
			}
			for old := range 1 + rng.IntN(4) { // the newest row may say something else
				exec(t, conn, `INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked, again_at)
					SELECT $1::bigint + $2, nextval('weir.batch_no'), '3', 0, 0, 1, false, $3 <> 1, CASE WHEN $3 > 0 THEN now() END`, key, rng.IntN(4), (old+rng.IntN(3))%3)
			}
			if rng.IntN(8) == 0 {
				exec(t, conn, `INSERT INTO weir.turn (lane, seq, pos_xid, pos_id, tag, segment, waits, parked) VALUES ($1, nextval('weir.batch_no'), '3', 0, 0, 1, true, false)`, key)
			}
		}
	}
	for range 60 {
		most, changes := 1+rng.IntN(20), rng.IntN(4)
		plan := fmt.Sprintf("seed %d, %d a step", seed, most)
		seen := map[int64]int{} // since the last change
		var at *int64
		var upto *int64
		for steps := 0; at != nil || steps == 0; steps++ {
			if steps == 0 || changes > 0 && rng.IntN(6) == 0 {
				if steps > 0 {
					changes--
				}
				if at == nil {
					at = new(int64)
				}
				upto, seen = new(*at), map[int64]int{}
			}
			var keys []int64
			if err := conn.QueryRow(t.Context(), `SELECT n.after, n.upto, n.keys FROM weir._next_stopped('{5,9}', $1, $2, $3) n`, at, upto, most).Scan(&at, &upto, &keys); err != nil {
				t.Fatal(err)
			}
			if len(keys) > most || steps > 1000 {
				t.Fatalf("%s: step %d has %d keys", plan, steps, len(keys))
			}
			for _, key := range keys {
				if seen[key]++; seen[key] > 1 {
					t.Fatalf("%s: key %d comes again", plan, key)
				}
			}
		}
		if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			t.Fatalf("%s: looked at %d keys, want %d", plan, len(got), len(want))
		}
	}
}

// TestAnAttemptCountsOnceHoweverLimitsChange: one that runs while the limit of its key is taken away, and set again, fills one place and not two.
func TestAnAttemptCountsOnceHoweverLimitsChange(t *testing.T) {
	t.Parallel()
	for name, between := range map[string][]string{
		"no limit":       {`SELECT weir.clear_limit('q')`},
		"another limit":  {`SELECT weir.set_limit('q', rate => 1000, per_key => true)`},
		"the queue's":    {`SELECT weir.clear_limit('q', per_key => true)`, `SELECT weir.set_limit('q', running => 9)`},
		"the same limit": {`SELECT weir.set_limit('q', running => 2, per_key => true)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			exec(t, conn, `SELECT weir.set_limit('q', running => 2, per_key => true)`)
			exec(t, conn, `SELECT weir.enqueue('q', 'k', key => 'a') FROM generate_series(1, 5)`)
			first := mustClaim(t, conn, worker, "q", 1)
			for _, sql := range between {
				exec(t, conn, sql)
			}
			exec(t, conn, `SELECT weir.set_limit('q', running => 2, per_key => true)`)
			n := 0
			startsUpto := func(want int) {
				t.Helper()
				pgtest.Until(t, fmt.Sprintf("%d more have started", want), func() bool {
					n += len(mustClaim(t, conn, worker, "q", 10))
					return n >= want
				})
				if n += len(mustClaim(t, conn, worker, "q", 10)); n != want {
					t.Errorf("%d started, want %d", n, want)
				}
			}
			startsUpto(1)
			mustComplete(t, conn, worker, first)
			startsUpto(2)
		})
	}
}
