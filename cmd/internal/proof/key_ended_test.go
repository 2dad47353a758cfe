package proof

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// claimLive claims from queue q until it says that there is nothing more, and returns the kinds of the jobs, and how many claims it took.
func claimLive(t *testing.T, conn *pgx.Conn, worker int32, limit int) (kinds []string, claims int) {
	t.Helper()
	for more := true; more; claims++ {
		more = false
		for _, kind := range column[*string](t, conn, `SELECT kind FROM weir._claim($1, '{q}', ARRAY[$2::int]) WHERE id IS NOT NULL OR queue IS NULL`, worker, limit) {
			if kind != nil {
				kinds = append(kinds, *kind)
			}
			more = true
		}
		if claims > 10_000 {
			t.Fatal("a claim always says that there may be more")
		}
	}
	return kinds, claims
}

// TestJobsThatDoNotRunTakeNoStartOfTheirKey: of a rate for each key, jobs that were cancelled by filter, duplicates, and jobs that a claim logs again use
// up nothing; and jobs of two priorities share one rate.
func TestJobsThatDoNotRunTakeNoStartOfTheirKey(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, conn *pgx.Conn, worker int32){
		"cancelled by filter": func(t *testing.T, conn *pgx.Conn, _ int32) {
			exec(t, conn, `SELECT weir.enqueue('q', 'old', key => 'a', priority => 1 + i % 2) FROM generate_series(1, 40) i`)
			exec(t, conn, `SELECT weir.cancel_where('q', kinds => '{old}')`)
		},
		"unique and cancelled by filter": func(t *testing.T, conn *pgx.Conn, _ int32) {
			exec(t, conn, `SELECT weir.enqueue_unique('q', 'old', unique_key => i::text, key => 'a', priority => 1 + i % 2) FROM generate_series(1, 40) i`)
			exec(t, conn, `SELECT weir.cancel_where('q', kinds => '{old}')`)
		},
		"replaced": func(t *testing.T, conn *pgx.Conn, worker int32) {
			for i := range 40 {
				exec(t, conn, `SELECT weir.enqueue_unique('q', 'old', unique_key => 'u', replace => true, key => 'a', priority => $1)`, 1+i%2)
			}
			exec(t, conn, `SELECT weir.enqueue_unique('q', 'good', unique_key => 'u', replace => true, key => 'a')`)
		},
	} {
		for _, limit := range []string{`rate => 2, per => '1 hour', burst => 2, per_key => true`, `rate => 2, per => '1 year', burst => 2, per_key => true`, `rate => 2, per => '1 hour', burst => 2, running => 2, per_key => true`} {
			t.Run(name+", "+limit, func(t *testing.T) {
				t.Parallel()
				conn := connect(t, pgtest.Database(t))
				worker := startWorker(t, conn, "q")
				exec(t, conn, `SELECT weir.set_limit('q', `+limit+`)`)
				prepare(t, conn, worker)
				exec(t, conn, `SELECT weir.enqueue('q', 'good', key => 'a', priority => 1 + i % 2) FROM generate_series(1, 6) i`)
				if got, _ := claimLive(t, conn, worker, 10); !slices.Equal(got, []string{"good", "good"}) {
					t.Errorf("started %v, want the two jobs that the rate allows", got)
				}
			})
		}
	}
}

// TestJobsOfTwoPrioritiesShareTheRateOfTheirKey: whatever lanes a key has, each start counts.
func TestJobsOfTwoPrioritiesShareTheRateOfTheirKey(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_limit('q', rate => 4, per => '1 hour', burst => 4, per_key => true)`)
	for i := range 6 {
		exec(t, conn, `SELECT weir.enqueue('q', 'k', key => $1, priority => p) FROM generate_series(1, 4) i CROSS JOIN generate_series(1, 2) p`, fmt.Sprint("key ", i))
	}
	if got := count(claimKeysUntil(t, conn, worker, "q", 12, 1000)); len(got) != 6 || got["key 1"] != 4 || got["key 5"] != 4 {
		t.Errorf("%v start at once, want the burst, 4 of each key", got)
	}
}

// TestManyCancelledJobsOfKeysAreEndedInFewClaims: by a claim for one job, too, whether they are of one key, in order or not, or of many; and no other job
// ends with them.
func TestManyCancelledJobsOfKeysAreEndedInFewClaims(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, prepare, key string
		jobs, limit, most  int
	}{
		{"one key", ``, `'a'`, 20_000, 1, 6},
		{"one key, in order", `SELECT weir.set_limit('q', per_key => true, in_order => true)`, `'a'`, 20_000, 10, 7},
		{"one key with a rate", `SELECT weir.set_limit('q', rate => 1, per => '1 hour', burst => 1, per_key => true)`, `'a'`, 20_000, 10, 7},
		{"1,000 keys", ``, `'key ' || i % 1000`, 20_000, 50, 60},
		{"10,000 keys", ``, `'key ' || i % 10000`, 20_000, 1, 100},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			exec(t, conn, c.prepare)
			late := begin(t, connect(t, conn.Config().ConnString()))
			exec(t, late, `SELECT weir.enqueue('q', 'old', key => `+c.key+`) FROM generate_series(1, 2000) i`)
			for n := 0; n < c.jobs; n += 10_000 {
				exec(t, conn, `SELECT weir.enqueue_many(array_agg('q'::text), array_agg('old'::text), key => array_agg((`+c.key+`)::text)) FROM generate_series(1, 10000) i`)
			}
			exec(t, conn, `SELECT weir.cancel_where('q', kinds => '{old}')`)
			exec(t, conn, `SELECT weir.enqueue('q', 'good', key => 'a')`)
			began := time.Now()
			got, claims := claimLive(t, conn, worker, c.limit)
			t.Logf("%d jobs in %d claims, %s", c.jobs, claims, time.Since(began))
			if !slices.Equal(got, []string{"good"}) || claims > c.most {
				t.Errorf("claimed %v in %d claims, want the good one in at most %d", got, claims, c.most)
			}
			if c.what == "one key with a rate" { // for an hour, it gets no turn
				return
			}
			exec(t, conn, `SELECT weir._record($1, ARRAY[h.lane], ARRAY[h.seq], '{1}', h.ids) FROM weir._holds($1) h`, worker)
			commit(t, late) // below the position
			if got, claims = claimLive(t, conn, worker, c.limit); len(got) > 0 || claims > c.most {
				t.Errorf("claimed %v in %d claims, want none in at most %d", got, claims, c.most)
			}
			if n := value[int](t, conn, `SELECT count(DISTINCT i) FROM weir.result r, unnest(r.ids) i WHERE r.outcome = 'cancelled'`); n != c.jobs+2000 {
				t.Errorf("%d jobs have ended as cancelled, want %d", n, c.jobs+2000)
			}
			if n := value[int](t, conn, `SELECT sum(cardinality(r.ids))::int FROM weir.result r`); n != c.jobs+2001 {
				t.Errorf("%d ends are recorded, want %d", n, c.jobs+2001)
			}
			if n := value[int](t, conn, `SELECT count(*) FROM (SELECT FROM weir.jobs('available') UNION ALL SELECT FROM weir.jobs('running')) j`); n != 0 {
				t.Errorf("%d jobs wait or run, want none", n)
			}
			if state := value[string](t, conn, `SELECT state FROM weir.job_info((SELECT min(id) + 19000 FROM weir.job))`); state != "cancelled" {
				t.Errorf("a job in their midst is %s", state)
			}
		})
	}
}

// TestKeysKeepTheirOrderAmongCancelledOnes: those whose jobs are not cancelled get their turns in the order in which they came, each once, and so does a
// key that comes in between.
func TestKeysKeepTheirOrderAmongCancelledOnes(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.enqueue('q', CASE WHEN i % 997 IN (0, 1) THEN 'good' ELSE 'old' END, key => i::text) FROM generate_series(1, 3500) i`)
	got := claimKeys(t, conn, worker, "q", 1)
	exec(t, conn, `SELECT weir.cancel_where('q', kinds => '{old}')`)
	for claims, new := 0, false; len(got) < 8; claims++ {
		if !new && len(got) >= 3 {
			new = true
			exec(t, conn, `SELECT weir.enqueue('q', 'good', key => 'new')`)
		}
		got = append(got, claimKeys(t, conn, worker, "q", 1)...)
		if claims > 100 {
			t.Fatalf("after %d claims, only %v have had their turns", claims, got)
		}
	}
	if more, _ := claimLive(t, conn, worker, 1); len(more) > 0 {
		t.Errorf("then %d more jobs are claimed, want none", len(more))
	}
	place := slices.Index(got, "new")
	if place < 0 || place > 6 {
		t.Errorf("the new key is number %d among %v, want it before the last ones", place+1, got)
	}
	if old := slices.DeleteFunc(slices.Clone(got), func(key string) bool { return key == "new" }); !slices.Equal(old, []string{"1", "997", "998", "1994", "1995", "2991", "2992"}) {
		t.Errorf("the keys have their turns in the order %v", old)
	}
}

// TestManyDuplicatesAreEndedInFewClaims: by a claim for one job, too; and the last one, which has replaced them all, runs.
func TestManyDuplicatesAreEndedInFewClaims(t *testing.T) {
	t.Parallel()
	for _, key := range []string{`NULL`, `'a'`} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q")
			exec(t, conn, `DO $$ BEGIN FOR i IN 1..1000 LOOP PERFORM weir.enqueue_unique('q', 'k', unique_key => 'u', replace => true, key => `+key+`); COMMIT; END LOOP; END $$`)
			last := value[int64](t, conn, `SELECT max(id) FROM weir.job`)
			began := time.Now()
			for claims := 1; ; claims++ {
				got := mustClaim(t, conn, worker, "q", 1)
				if len(got) == 1 && got[0].ID != last {
					t.Fatalf("claimed job %d, want %d", got[0].ID, last)
				} else if len(got) == 1 {
					t.Logf("%d claims, %s", claims, time.Since(began))
					break
				} else if claims > 50 {
					t.Fatal("1000 replaced jobs are not ended in 50 claims")
				}
			}
			if n := value[int](t, conn, `SELECT sum(cardinality(r.ids))::int FROM weir.result r WHERE r.outcome = 'cancelled'`); n != 999 {
				t.Errorf("%d jobs have ended as cancelled, want 999", n)
			}
			wantDropped(t, conn, last-500, fmt.Sprint("replaced by job ", last))
		})
	}
}
