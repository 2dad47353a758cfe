package proof

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestJobsWithKeysAreMovedToQueuesThatHadNone: to a new queue, to one that has only jobs without keys, and to one that has only a limit or a weight: they are listed,
// counted and claimed there, whether they waited or were scheduled.
func TestJobsWithKeysAreMovedToQueuesThatHadNone(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]string{
		"a new queue":                  ``,
		"jobs without keys":            `SELECT weir.enqueue('r', 'unkeyed') FROM generate_series(1, 2)`,
		"a limit":                      `SELECT weir.set_limit('r', 10)`,
		"a limit of each key":          `SELECT weir.set_limit('r', 1, per_key => true, in_order => true)`,
		"a weight":                     `SELECT weir.set_weight('r', 'a', 2)`,
		"jobs without keys, scheduled": `SELECT weir.enqueue('r', 'unkeyed', run_at => now() + interval '1 hour')`,
	} {
		for _, c := range []struct{ what, at, filter string }{
			{"available", `NULL`, `'q'`}, {"available", `NULL`, `'q', key => 'a'`}, {"scheduled", `now() + interval '1 hour'`, `meta => '{"mine": true}'`},
		} {
			t.Run(name+", "+c.what+" "+c.filter, func(t *testing.T) {
				t.Parallel()
				conn := connect(t, pgtest.Database(t))
				exec(t, conn, prepare)
				ids := column[int64](t, conn, `SELECT weir.enqueue('q', 'k', key => 'a', run_at => `+c.at+`, meta => '{"mine": true}') FROM generate_series(1, 3)`)
				if n, _ := runSteps(t, conn, "move_where", c.filter+`, to_queue => 'r'`); n != 3 {
					t.Fatalf("moved %d jobs, want 3", n)
				}
				wantOfKey(t, conn, "r", c.what, ids)
				worker := startWorker(t, conn, "q", "r")
				exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
				wantOfKey(t, conn, "r", "available", ids)
				if got := claimedOfKeys(t, conn, worker, "r"); !slices.Equal(got, ids) {
					t.Errorf("claimed %v of r, want %v", got, ids)
				}
			})
		}
	}
}

// wantOfKey checks that these are the jobs of key a in a state and queue, in lists and counts.
func wantOfKey(t *testing.T, conn *pgx.Conn, queue, state string, ids []int64) {
	t.Helper()
	for _, list := range []string{`weir.jobs($1, $2)`, `weir.jobs($1, $2, key => 'a')`, `(SELECT j.* FROM weir.jobs($1, key => 'a') j WHERE j.queue = $2)`} {
		if got := column[int64](t, conn, `SELECT id FROM `+list+` j WHERE key = 'a' ORDER BY id`, state, queue); !slices.Equal(got, ids) {
			t.Errorf("%s: the jobs that are %s in %s are %v, want %v", list, state, queue, got, ids)
		}
	}
	if got := value[int](t, conn, `SELECT `+state+` FROM weir.queues() WHERE name = $1`, queue); got < len(ids) {
		t.Errorf("%s in %s are counted as %d jobs, want at least %d", state, queue, got, len(ids))
	}
}

// claimedOfKeys claims and completes all jobs of a queue, and returns those that have a key.
func claimedOfKeys(t *testing.T, conn *pgx.Conn, worker int32, queue string) (ids []int64) {
	t.Helper()
	for {
		all := mustClaim(t, conn, worker, queue, 10)
		if len(all) == 0 {
			return ids
		}
		mustComplete(t, conn, worker, all)
		for _, a := range all {
			if a.Kind == "k" {
				ids = append(ids, a.ID)
			}
		}
	}
}

// TestAKeyGoesOnWhenTheJobAheadOfItIsMovedAway: in order, the next job of a key starts once the one that was to be tried again is in another queue,
// whether the filter names the queue that it leaves or not.
func TestAKeyGoesOnWhenTheJobAheadOfItIsMovedAway(t *testing.T) {
	t.Parallel()
	for _, filter := range []string{`'q', kinds => '{first}'`, `kinds => '{first}', key => 'a'`, `key => 'a', priority => 2, kinds => '{first}'`} {
		t.Run(filter, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			worker := startWorker(t, conn, "q", "r")
			exec(t, conn, `SELECT weir.set_limit('q', per_key => true, in_order => true)`)
			exec(t, conn, `SELECT weir.enqueue('q', 'first', key => 'a'), weir.enqueue('q', 'second', key => 'a')`)
			first := mustClaim(t, conn, worker, "q", 10)
			if len(first) != 1 || first[0].Kind != "first" {
				t.Fatalf("claimed %+v, want the first job", first)
			}
			if ok, err := finish(t.Context(), conn, worker, first[0], "retried", time.Now().Add(time.Hour)); err != nil || !ok {
				t.Fatal(ok, err)
			}
			if got := mustClaim(t, conn, worker, "q", 10); len(got) != 0 {
				t.Fatalf("claimed %+v while the first job is to be tried again", got)
			}
			if n, _ := runSteps(t, conn, "move_where", filter+`, to_queue => 'r'`); n != 1 {
				t.Fatalf("moved %d jobs, want 1", n)
			}
			if got := mustClaim(t, conn, worker, "q", 10); len(got) != 1 || got[0].Kind != "second" {
				t.Errorf("claimed %+v, want the second job", got)
			}
		})
	}
}
