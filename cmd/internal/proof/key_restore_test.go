package proof

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestKeysSurviveAMove: in another cluster whose transaction ids are lower, claims from keys say so until the log is rebased. Then every job of a key that
// had not ended runs, and none that had; limits and weights hold; and in order, what had started comes before what had not, also if the move has
// interrupted it or it waits for its next attempt. The same is true of a second move.
func TestKeysSurviveAMove(t *testing.T) {
	t.Parallel()
	t.Run("in its cluster", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		conn := connect(t, url)
		want := keysToMove(t, url, conn)
		exec(t, conn, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle in transaction'`)
		moveElsewhere(t, conn)
		keysGoOn(t, conn, want)
	})
	t.Run("copied tables", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		conn := connect(t, url)
		want := keysToMove(t, url, conn)
		target := connect(t, pgtest.Server(t, nil).URL("postgres"))
		if err := schema.Up(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		copyAll(t, conn, target)
		keysGoOn(t, target, want)
	})
	t.Run("pg_dump", func(t *testing.T) {
		t.Parallel()
		url := pgtest.Database(t)
		conn := connect(t, url)
		dump := dumpProgram(t)
		want := keysToMove(t, url, conn)
		server := pgtest.Server(t, nil)
		run(t, bytes.NewReader(run(t, nil, dump, "--schema=weir", url)), filepath.Join(filepath.Dir(dump), "psql"), "-X", "-q", server.URL("postgres"))
		target := connect(t, server.URL("postgres"))
		if err := schema.Up(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		keysGoOn(t, target, want)
	})
}

// keysToMove makes a log with jobs of keys in every state. It returns what is to run of each, in order in the queue o.
func keysToMove(t *testing.T, url string, conn *pgx.Conn) map[string][]string {
	t.Helper()
	exec(t, conn, `DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
	exec(t, conn, `SELECT weir.set_limit('q', running => 2, per_key => true)`)
	exec(t, conn, `SELECT weir.set_limit('o', per_key => true, in_order => true)`)
	exec(t, conn, `SELECT weir.set_limit('p', per_key => true, in_order => true)`)
	exec(t, conn, `SELECT weir.set_weight('q', 'b', 3)`)
	worker := startWorker(t, conn, "q", "o", "p")
	enqueue := func(q querier, queue, key string, kinds ...string) {
		t.Helper()
		exec(t, q, `SELECT weir.enqueue_many(array_agg($1::text), $3, key => array_agg($2::text)) FROM unnest($3::text[])`, queue, key, kinds)
	}
	// Of key "d", the job that comes first in the log has the greater id.
	first, second := connect(t, url), connect(t, url)
	exec(t, first, `BEGIN`)
	exec(t, first, `SELECT pg_current_xact_id()`)
	exec(t, second, `BEGIN`)
	exec(t, second, `SELECT pg_current_xact_id()`)
	enqueue(second, "o", "d", "d2")
	enqueue(first, "o", "d", "d1")
	exec(t, first, `COMMIT`)
	exec(t, second, `COMMIT`)
	enqueue(conn, "o", "a", "ended", "a1", "a2", "a3")
	enqueue(conn, "o", "b", "b1", "b2", "b3")
	enqueue(conn, "o", "c", "c1", "c2")
	enqueue(conn, "p", "c", "c1", "c2") // of which nothing ever waits in front
	ends := map[string]func(attempt){
		"ended": func(a attempt) { mustComplete(t, conn, worker, []attempt{a}) },
		"a1":    func(a attempt) { mustFinish(t, conn, worker, a, "retried", time.Time{}) },
		"c1":    func(a attempt) { mustFinish(t, conn, worker, a, "retried", time.Now().Add(time.Hour)) },
		"b1":    func(attempt) {}, // runs, and so does d1
		"d1":    func(attempt) {},
	}
	for _, a := range claimAll(t, conn, worker, "p") {
		mustFinish(t, conn, worker, a, "retried", time.Now().Add(time.Hour))
		// As if the segment of its first attempt had been reclaimed.
		exec(t, conn, `DELETE FROM weir.job WHERE id = $1`, a.ID)
		exec(t, conn, `DELETE FROM weir.result WHERE ids = ARRAY[$1::bigint]`, a.ID)
	}
	for len(ends) > 0 {
		for _, a := range claimAll(t, conn, worker, "o") {
			end := ends[a.Kind]
			if end == nil {
				t.Fatalf("claimed %s", a.Kind)
			}
			end(a)
			delete(ends, a.Kind)
		}
	}
	// In q, some run, and others have ended.
	late, open := connect(t, url), connect(t, url)
	exec(t, late, `BEGIN`)
	enqueue(late, "q", "a", "late")
	exec(t, open, `BEGIN`)
	enqueue(open, "q", "a", "never")
	enqueue(open, "q", "never", "never")
	enqueue(conn, "q", "a", "ended", "run", "run", "wait", "wait")
	enqueue(conn, "q", "b", "ended", "run", "run", "wait")
	for running := 0; running < 4; {
		for _, a := range claimAll(t, conn, worker, "q") {
			if running++; a.Kind == "ended" {
				running--
				mustComplete(t, conn, worker, []attempt{a})
			}
		}
	}
	exec(t, late, `COMMIT`) // behind the position of its key, and not announced
	return map[string][]string{
		"o a": {"a1", "a2", "a3"}, "o b": {"b1", "b2", "b3"}, "o c": {"c1", "c2"}, "o d": {"d1", "d2"}, "p c": {"c1", "c2"},
		"q a": {"late", "run", "run", "wait", "wait"}, "q b": {"run", "run", "wait"},
	}
}

func mustFinish(t *testing.T, q querier, worker int32, a attempt, outcome string, runAt time.Time) {
	t.Helper()
	if ok, err := finish(t.Context(), q, worker, a, outcome, runAt); err != nil || !ok {
		t.Fatalf("job %d ends as %s: %v %v", a.ID, outcome, ok, err)
	}
}

// keysGoOn checks what becomes of a log that was moved, moves it again in the middle, and enqueues more.
func keysGoOn(t *testing.T, conn *pgx.Conn, want map[string][]string) {
	t.Helper()
	_, err := claim(t.Context(), conn, value[int32](t, conn, `SELECT min(id) FROM weir.worker`), []string{"o"}, []int32{1})
	wantCode(t, "a claim before the rebase", err, "WR003")
	if n := value[int64](t, conn, `SELECT weir.rebase()`); n == 0 {
		t.Error("nothing was logged again")
	}
	if got := column[string](t, conn, `SELECT concat_ws(' ', queue, key, weight) FROM weir.weights()`); !slices.Equal(got, []string{"q b 3"}) {
		t.Errorf("the weights are %v", got)
	}
	worker := startWorker(t, conn, "q", "o", "p")
	got := map[string][]string{}
	step := func() (n int) {
		t.Helper()
		for queue, most := range map[string]int{"q": 2, "o": 1, "p": 1} {
			all := claimAll(t, conn, worker, queue)
			running := map[string]int{}
			for _, a := range all {
				key := queue + " " + value[string](t, conn, `SELECT DISTINCT key FROM weir.job WHERE id = $1`, a.ID)
				got[key] = append(got[key], a.Kind)
				if running[key]++; running[key] > most {
					t.Errorf("%d attempts of %s run, at most %d may", running[key], key, most)
				}
			}
			mustComplete(t, conn, worker, all)
			n += len(all)
		}
		return n
	}
	if n := step(); n != 3+4 { // c1 is not due, and c2 waits for it
		t.Errorf("%d jobs start at first, want 7: %v", n, got)
	}
	moveElsewhere(t, conn)
	exec(t, conn, `SELECT weir.rebase()`)
	worker = startWorker(t, conn, "q", "o", "p")
	for step() > 0 {
	}
	if early := append(got["o c"], got["p c"]...); early != nil {
		t.Errorf("%v of c start before what waits for its next attempt", early)
	}
	exec(t, conn, `SELECT weir.enqueue('q', 'new', key => 'a'), weir.enqueue('o', 'new', key => 'a'), weir.enqueue('q', 'new', key => 'new')`)
	exec(t, conn, `SELECT weir._promote(upto => now() + interval '2 hours')`)
	for step() > 0 {
	}
	want = maps.Clone(want)
	want["q a"] = append(want["q a"], "new")
	want["o a"] = append(want["o a"], "new")
	want["q new"] = []string{"new"}
	show := func(of map[string][]string) string {
		var b strings.Builder
		for _, key := range slices.Sorted(maps.Keys(of)) {
			kinds := slices.Clone(of[key])
			if key[0] == 'q' {
				slices.Sort(kinds)
			}
			fmt.Fprintf(&b, "%s: %v\n", key, kinds)
		}
		return b.String()
	}
	if show(got) != show(want) {
		t.Errorf("what ran is\n%swant\n%s", show(got), show(want))
	}
	if n := value[int64](t, conn, `SELECT sum(available + running + scheduled)::bigint FROM weir.queues()`); n != 0 {
		t.Errorf("%d jobs are left", n)
	}
}
