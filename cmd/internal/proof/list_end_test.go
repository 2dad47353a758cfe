package proof

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAListSelectsByTheShapeOfTheErrorAndTheEnd: as the groups of failures do, in pages of any size; of finished jobs only those that ended in a time.
func TestAListSelectsByTheShapeOfTheErrorAndTheEnd(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	want := map[string][]int64{}
	for i := range 3 {
		want["user <n> not found"] = append(want["user <n> not found"], deadLetters(t, conn, worker, "q", 1, fmt.Sprintf("user %d not found", i))...)
		want["no route"] = append(want["no route"], deadLetters(t, conn, worker, "q", 200, "no route")...) // all of them are more than what one page compares
	}
	at := func(id int64) string {
		t.Helper()
		return value[string](t, conn, `SELECT coalesce(finished_at, enqueued_at)::text FROM weir.job_info($1)`, id)
	}
	all := func(args string, rows int) (ids []int64, pages int) {
		t.Helper()
		for after := ""; ; {
			var page []int64
			if err := conn.QueryRow(t.Context(), fmt.Sprintf(`SELECT ARRAY(SELECT (j->>'id')::bigint FROM jsonb_array_elements(jobs) WITH ORDINALITY k(j, n) ORDER BY n), coalesce(next, '')
				FROM weir.jobs_page(%s, after => $1, max_rows => %d)`, args, rows), after).Scan(&page, &after); err != nil {
				t.Fatalf("%s: %v", args, err)
			}
			ids = append(ids, page...)
			if pages++; after == "" {
				return ids, pages
			}
		}
	}
	for shape, ids := range want {
		newest := slices.Clone(ids)
		slices.Reverse(newest)
		for _, args := range []string{`'{failed}'`, `'{failed,failed}', queue => 'q'`} {
			for _, rows := range []int{70, 1000} {
				if got, _ := all(fmt.Sprintf(`%s, shape => '%s'`, args, shape), rows); !slices.Equal(got, newest) {
					t.Errorf("%s of shape %q, %d at a time: %v, want %v", args, shape, rows, got, newest)
				}
			}
		}
	}
	if got, pages := all(`'{failed}', shape => 'nothing'`, 100); len(got) != 0 || pages < 2 {
		t.Errorf("%d jobs of no shape on %d pages: one page reads them all", len(got), pages)
	}
	users := want["user <n> not found"]
	for args, ids := range map[string][]int64{
		fmt.Sprintf(`shape => 'user <n> not found', finished_after => '%s'`, at(users[1])):                                        {users[2], users[1]},
		fmt.Sprintf(`shape => 'user <n> not found', finished_before => '%s'`, at(users[1])):                                       {users[0]},
		fmt.Sprintf(`shape => 'user <n> not found', finished_after => '%s', finished_before => '%s'`, at(users[1]), at(users[2])): {users[1]},
	} {
		for _, rows := range []int{1, 100} {
			if got, _ := all(`'{failed}', `+args, rows); !slices.Equal(got, ids) {
				t.Errorf("%s, %d at a time: %v, want %v", args, rows, got, ids)
			}
		}
	}

	done := value[int64](t, conn, `SELECT weir.enqueue('q', 'done')`)
	if _, err := record(t.Context(), conn, worker, mustClaim(t, conn, worker, "q", 1), "completed", nil); err != nil {
		t.Fatal(err)
	}
	gone := value[int64](t, conn, `SELECT weir.enqueue('q', 'gone')`)
	exec(t, conn, `SELECT weir.cancel($1)`, gone)
	value[int64](t, conn, `SELECT weir.enqueue('q', 'waits')`)
	for args, ids := range map[string][]int64{
		fmt.Sprintf(`finished_after => '%s'`, at(done)):                                            {done, gone},
		fmt.Sprintf(`finished_after => '%s', finished_before => '%s'`, at(done), at(gone)):         {done},
		`finished_after => now() + interval '1 hour'`:                                              nil,
		`'{available}', finished_after => '2020-01-01'`:                                            nil,
		`kinds => '{done,gone,waits}', finished_before => now() + interval '1 hour', queue => 'q'`: {done, gone},
	} {
		if got, _ := all(args, 100); !slices.Equal(got, ids) {
			t.Errorf("%s: %v, want %v", args, got, ids)
		}
	}
}
