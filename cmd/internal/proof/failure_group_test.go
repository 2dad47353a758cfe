package proof

import (
	"fmt"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestFailuresAreGroupedByKindAndShape: each group has its number of jobs, its times, and one of its jobs; jobs that were retried are left out.
func TestFailuresAreGroupedByKindAndShape(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q", "other")
	var last int64
	failAs := func(queue, kind, why string) int64 {
		t.Helper()
		last = value[int64](t, conn, `SELECT weir.enqueue($1, $2, max_attempts => 1)`, queue, kind)
		failWith(t, conn, worker, mustClaim(t, conn, worker, queue, 1)[0], why)
		return last
	}
	for n := range 5 {
		failAs("q", "mail", fmt.Sprintf("user %d not found", n))
	}
	mail := last
	failAs("q", "mail", "no route")
	failAs("q", "charge", "user 7 not found")
	failAs("other", "mail", "user 8 not found")
	exec(t, conn, `SELECT weir.retry($1)`, failAs("q", "mail", "user 9 not found"))
	groups := func(args string) string {
		t.Helper()
		return fmt.Sprint(column[string](t, conn, `SELECT format('%s %s: %s', jobs, kind, shape) FROM weir.failure_groups(`+args+`)`))
	}
	for args, want := range map[string]string{
		`'q'`:                                 "[5 mail: user <n> not found 1 charge: user <n> not found 1 mail: no route]",
		`'other'`:                             "[1 mail: user <n> not found]",
		`'none'`:                              "[]",
		`kind => 'mail', max_rows => 1`:       "[6 mail: user <n> not found]",
		`since => now() + interval '1 hour'`:  "[]",
		`before => now() - interval '1 hour'`: "[]",
	} {
		if got := groups(args); got != want {
			t.Errorf("the groups of %s are\n\t%s\nwant\t%s", args, got, want)
		}
	}
	if !value[bool](t, conn, `SELECT job_id = $1 AND g.error = 'user 4 not found' AND first_at < last_at AND last_at BETWEEN i.claimed_at AND now() AND rest IS NULL
		FROM weir.failure_groups('q', 'mail', max_rows => 1) g, weir.job_info(job_id) i`, mail) {
		t.Error("the group's example or times are wrong")
	}
	_, err := conn.Exec(t.Context(), `SELECT weir.failure_groups(max_rows => 0)`)
	wantCode(t, "no rows", err, "22023")
}

// TestOfAMillionFailuresABoundedNumberIsRead: a call looks at the newest 5,000, however many there are, says where it stopped, and the next call
// continues there; no failure is counted twice or left out.
func TestOfAMillionFailuresABoundedNumberIsRead(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	// As recorded, in a way that takes less time. Pairs of failures end at the same time.
	exec(t, conn, `INSERT INTO weir.failure (id, segment, lane, attempt, max_attempts, enqueued_at, claimed_at, finished_at, worker, kind, args, error)
		SELECT n, 1 + n % 2, (SELECT (id::bigint << 39) + 1 FROM weir.queue), 1, 1, now(), now(), '2026-01-01'::timestamptz + n / 2 * interval '1 ms', 1, 'k', '{}', 'job ' || n || CASE n % 10 WHEN 0 THEN ' is late' ELSE ' is gone' END
		FROM generate_series(1, 35001) n`)
	total, pages := map[string]int{}, 0
	var before *string
	for {
		rows, err := conn.Query(t.Context(), `SELECT shape, jobs, rest::text FROM weir.failure_groups(before => $1::text::timestamptz)`, before)
		if err != nil {
			t.Fatal(err)
		}
		before = nil
		for rows.Next() {
			var shape string
			var n int
			if err := rows.Scan(&shape, &n, &before); err != nil {
				t.Fatal(err)
			}
			total[shape] += n
		}
		if rows.Err() != nil {
			t.Fatal(rows.Err())
		}
		if pages++; before == nil || pages > 20 {
			break
		}
	}
	if pages != 8 || total["job <n> is gone"] != 31501 || total["job <n> is late"] != 3500 {
		t.Errorf("%v in %d pages", total, pages)
	}
	if got := column[string](t, conn, `SELECT jobs || ' ' || (rest IS NOT NULL) FROM weir.failure_groups('none')`); fmt.Sprint(got) != "[0 true]" {
		t.Errorf("of a queue without failures: %v", got)
	}
	// With VACUUM, which a table that is only inserted into and truncated needs not, deleted rows cost nothing.
	many := blocks(t, conn, `SELECT weir.failure_groups()`)
	exec(t, conn, `DELETE FROM weir.failure WHERE id <= 24000`)
	exec(t, conn, `VACUUM weir.failure_1, weir.failure_2`)
	if few := blocks(t, conn, `SELECT weir.failure_groups()`); many > few*3/2+100 {
		t.Errorf("of 35,001 failures it reads %d blocks, of 11,001 %d", many, few)
	}
}
