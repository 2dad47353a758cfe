package proof

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// twinKey and otherTwin have the same hash, and so the same lanes.
const twinKey, otherTwin = "key 67266", "key 95827"

// TestJobsAreSelectedByTheirKey: lists, groups of failures and bulk operations take a key: they concern its jobs alone, even beside a key with the same hash, in one queue
// or in all.
func TestJobsAreSelectedByTheirKey(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	if !value[bool](t, conn, `SELECT weir._key_bits($1) = weir._key_bits($2)`, twinKey, otherTwin) {
		t.Fatal("the two keys do not have the same hash")
	}
	worker := startWorker(t, conn, "q", "r")
	enqueue := func(queue string) map[string]int64 {
		ids := map[string]int64{}
		for _, key := range []string{twinKey, otherTwin, ""} {
			ids[key] = value[int64](t, conn, `SELECT weir.enqueue($1, 'k', key => nullif($2, ''))`, queue, key)
		}
		return ids
	}
	in := map[string]map[string]int64{"q": enqueue("q"), "r": enqueue("r")}
	all := func(state string) {
		t.Helper()
		for _, queue := range []string{"q", "r"} {
			for key, id := range in[queue] {
				if key == "" {
					key = "none"
				}
				got := column[int64](t, conn, `SELECT id FROM weir.jobs($1, $2, key => $3)`, state, queue, key)
				if want := []int64{id}; key == "none" && len(got) != 0 || key != "none" && !slices.Equal(got, want) {
					t.Errorf("%s jobs of %s with the key %s are %v, want %v", state, queue, key, got, want)
				}
			}
		}
		if got := len(column[int64](t, conn, `SELECT id FROM weir.jobs($1, key => $2)`, state, twinKey)); got != 2 {
			t.Errorf("%d jobs with the key are %s in all queues, want 2", got, state)
		}
	}
	states := func(key string, want ...string) {
		t.Helper()
		for i, queue := range []string{"q", "r"} {
			wantState(t, conn, in[queue][key], want[i])
		}
	}
	all("available")
	for _, queue := range []string{"q", "r"} {
		for _, a := range claimAll(t, conn, worker, queue) {
			fail(t, conn, worker, a)
		}
	}
	all("failed")
	groups := func(args string) []string {
		return column[string](t, conn, `SELECT jobs::text FROM weir.failure_groups(`+args+`)`)
	}
	for args, want := range map[string]string{``: "6", `'q'`: "3", fmt.Sprintf(`'q', key => '%s'`, twinKey): "1", fmt.Sprintf(`key => '%s'`, twinKey): "2"} {
		if got := groups(args); !slices.Equal(got, []string{want}) {
			t.Errorf("failure_groups(%s) has %v jobs, want %s", args, got, want)
		}
	}
	filter := func(queue, key string) string { return fmt.Sprintf(`%s, key => '%s'`, queue, key) }
	if n, _ := runSteps(t, conn, "retry_where", filter(`'q'`, twinKey)); n != 1 {
		t.Errorf("retried %d jobs, want 1", n)
	}
	states(twinKey, "available", "failed")
	states(otherTwin, "failed", "failed")
	if n, _ := runSteps(t, conn, "delete_where", filter(`'r'`, otherTwin)); n != 1 {
		t.Errorf("deleted %d jobs, want 1", n)
	}
	states(otherTwin, "failed", "unknown")
	if n, _ := runSteps(t, conn, "retry_where", filter(`NULL`, otherTwin)); n != 1 {
		t.Errorf("retried %d jobs, want 1", n)
	}
	states(otherTwin, "available", "unknown")
	if n, _ := runSteps(t, conn, "move_where", filter(`'q'`, twinKey)+`, to_queue => 'r', to_priority => 1`); n != 1 {
		t.Errorf("moved %d jobs, want 1", n)
	}
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('available', 'r', key => $1)`, twinKey); !slices.Equal(got, []int64{in["q"][twinKey]}) {
		t.Errorf("the jobs of the key that wait in r are %v, want %d", got, in["q"][twinKey])
	}

	// A cancellation by key means no job of the other one, though claims get both from one lane.
	in = map[string]map[string]int64{"q": enqueue("q"), "r": enqueue("r")}
	exec(t, conn, `SELECT weir.cancel_where('q', key => $1)`, twinKey)
	states(twinKey, "cancelled", "available")
	states(otherTwin, "available", "available")
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('cancelled', 'q', key => $1)`, twinKey); !slices.Equal(got, []int64{in["q"][twinKey]}) {
		t.Errorf("the cancelled jobs of the key are %v, want %d", got, in["q"][twinKey])
	}
	live := takenIDs(takeAll(t, conn, worker, "q"))
	if slices.Contains(live, in["q"][twinKey]) || !slices.Contains(live, in["q"][otherTwin]) || !slices.Contains(live, in["q"][""]) {
		t.Errorf("claimed %v, want all of %v but the one of %s", live, in["q"], twinKey)
	}
	tidyUntil(t, conn, "retired a cancellation")
	if got := column[int64](t, conn, `SELECT id FROM weir.jobs('cancelled', 'q', key => $1)`, twinKey); !slices.Equal(got, []int64{in["q"][twinKey]}) {
		t.Errorf("once it has ended, the cancelled jobs of the key are %v, want %d", got, in["q"][twinKey])
	}
	states(otherTwin, "running", "available")
}

// TestAWiderCancellationCoversThatOfAKey: one of the queue replaces one of a key in it, and one of a key does not replace that of another one.
func TestAWiderCancellationCoversThatOfAKey(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.enqueue('q', 'k', key => k) FROM unnest(ARRAY['a', 'b']) k`)
	left := func() []string {
		for retireCancellations(t, conn) != nil { //nolint:revive // until there is nothing left to do
		}
		return column[string](t, conn, `SELECT coalesce(key, 'all') FROM weir.cancellation_where ORDER BY no`)
	}
	exec(t, conn, `SELECT weir.cancel_where('q', key => 'a'), weir.cancel_where('q', key => 'b'), weir.cancel_where('q', key => 'a')`)
	if got := left(); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("the cancellations are of %v, want b and a", got)
	}
	exec(t, conn, `SELECT weir.cancel_where('q')`)
	if got := left(); !slices.Equal(got, []string{"all"}) {
		t.Errorf("the cancellations are of %v, want all", got)
	}
}

// TestOneKeysJobsAreReadBesideManyOthers: a list of the jobs of one key, whatever their state, and the groups of its failures read as much beside 100,000 jobs of other keys as
// beside a thousand.
func TestOneKeysJobsAreReadBesideManyOthers(t *testing.T) {
	pgtest.Alone(t, "it counts blocks")
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.set('retention_bytes', '68719476736')`)
	worker := startWorker(t, conn, "q")
	end := func(outcome string) {
		for {
			got := mustClaim(t, conn, worker, "q", 900)
			if len(got) == 0 {
				return
			}
			if refused, err := record(t.Context(), conn, worker, got, outcome, nil); err != nil || len(refused) > 0 {
				t.Fatal(err, refused)
			}
		}
	}
	enqueue := func(n int, options string) {
		for done := 0; done < n; done += 10_000 {
			exec(t, conn, fmt.Sprintf(`SELECT weir.enqueue_many(array_agg('q'::text), array_agg('k'::text), key => array_agg(CASE WHEN $2 = 1 THEN 'this' ELSE 'other ' || n / 1000 END)%s)
				FROM generate_series(1, least($1, 10000)) n`, options), n-done, n)
		}
	}
	fill := func(ended, running, waiting int) {
		for _, outcome := range []string{"completed", "failed", "cancelled"} {
			enqueue(ended, ``)
			end(outcome)
		}
		enqueue(running, ``)
		mustClaim(t, conn, worker, "q", int32(running))
		enqueue(ended, `, run_at => array_agg(now() + interval '1 hour')`)
		enqueue(waiting, ``)
		enqueue(1, ``)
	}
	measure := func() map[string]int64 {
		got := map[string]int64{"groups": settled(t, conn, `SELECT weir.failure_groups('q', key => 'this')`)}
		for _, state := range allStates {
			got[state] = settled(t, conn, fmt.Sprintf(`SELECT * FROM weir.jobs_page(ARRAY['%s'], 'q', key => 'this')`, state))
			queue, key := "q", "this"
			if jobs, _ := (list{states: []string{state}, queue: &queue, key: &key}).page(t, conn, "", 100); len(jobs) == 0 {
				t.Errorf("no job of the key is %s", state)
			}
		}
		return got
	}
	fill(1, 1, 1)
	fill(250, 100, 250)
	few := measure()
	fill(3000, 100, 100_000)
	many := measure()
	t.Logf("beside a thousand jobs it reads %v blocks, and beside 110,000 %v", few, many)
	for what, n := range many {
		if n > few[what]*3/2+100 && what != "running" { // of which all batches are read that workers have claimed since they were settled
			t.Errorf("%s: it reads %d blocks beside a thousand jobs of other keys, and %d beside 110,000", what, few[what], n)
		}
	}
}

// TestNoPageMissesAJobThatWasCommittedLate: jobs are listed in the order of their transactions, in which they are claimed, also if those that are pending began after one that has ended since.
func TestNoPageMissesAJobThatWasCommittedLate(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]*string{"without a key": nil, "with a key": new("a")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn, first, second := connect(t, url), connect(t, url), connect(t, url)
			worker := startWorker(t, conn, "q")
			var want []int64
			for _, c := range []*pgx.Conn{first, second} {
				exec(t, c, `BEGIN`)
				want = append(want, value[[]int64](t, c, `SELECT array_agg(weir.enqueue('q', 'k', key => $1)) FROM generate_series(1, 5)`, key)...)
			}
			exec(t, conn, `SELECT weir.enqueue('q', 'k', key => $1)`, key)
			mustClaim(t, conn, worker, "q", 1)
			exec(t, second, `COMMIT`)
			got := mustClaim(t, conn, worker, "q", 1) // the others of the second are pending now
			if len(got) != 1 || got[0].ID != want[5] {
				t.Fatalf("claimed %v, want job %d", got, want[5])
			}
			exec(t, first, `COMMIT`)
			want = slices.Delete(want, 5, 6)
			for _, limit := range []int{1, 3, 100} {
				jobs, _ := list{states: []string{"available"}}.all(t, conn, limit, nil)
				if ids := listedIDs(jobs); !slices.Equal(ids, want) {
					t.Errorf("in pages of %d, the jobs are %v, want %v", limit, ids, want)
				}
			}
			for _, id := range want {
				if got := mustClaim(t, conn, worker, "q", 1); len(got) != 1 || got[0].ID != id {
					t.Fatalf("claimed %v, want job %d, which is the next in the list", got, id)
				}
			}
		})
	}
}
