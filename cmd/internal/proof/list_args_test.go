package proof

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAListSelectsByArgsAndTime: in every state, jobs whose args contain a text, and that were enqueued in a time. Encrypted args match no text.
func TestAListSelectsByArgsAndTime(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	want := map[string][]int64{}
	enqueue := func(text, runAt string) int64 {
		t.Helper()
		return value[int64](t, conn, `SELECT weir.enqueue('q', 'k', jsonb_build_object('to', $1::text), run_at => $2::text::timestamptz)`, text, runAt)
	}
	now := value[string](t, conn, `SELECT now()::text`)
	for _, state := range []string{"completed", "failed", "cancelled", "running", "scheduled", "available"} {
		runAt := now
		if state == "scheduled" {
			runAt = value[string](t, conn, `SELECT (now() + interval '1 hour')::text`)
		}
		match := enqueue("Ada_100%@example.org", runAt)
		enqueue("Ada+1000@example.org", runAt)
		switch state {
		case "completed", "failed", "cancelled":
			for _, a := range mustClaim(t, conn, worker, "q", 2) {
				if _, err := record(t.Context(), conn, worker, []attempt{a}, state, nil); err != nil {
					t.Fatal(err)
				}
			}
		case "running":
			mustClaim(t, conn, worker, "q", 2)
		}
		want[state] = []int64{match}
	}
	exec(t, conn, `SELECT weir.enqueue('q', 'k', '{"weir.encrypted": {"key": "ada_100%", "data": "x"}}')`)
	page := func(state, args string) []int64 {
		t.Helper()
		return column[int64](t, conn, fmt.Sprintf(`SELECT (j ->> 'id')::bigint FROM weir.jobs_page(ARRAY['%s'], %s) p, jsonb_array_elements(p.jobs) j`, state, args))
	}
	for state, ids := range want {
		for _, args := range []string{`args_text => 'ada_100%'`, `args_text => '"TO": "ADA_'`, `queue => 'q', kinds => '{k}', args_text => '_100%@EXAMPLE', enqueued_after => now() - interval '1 hour', enqueued_before => now() + interval '1 second'`} {
			if got := page(state, args); !slices.Equal(got, ids) {
				t.Errorf("%s jobs with %s are %v, want %v", state, args, got, ids)
			}
		}
		for _, args := range []string{`args_text => 'weir.encrypted'`, `args_text => 'nobody'`, `args_text => 'ada', enqueued_before => now() - interval '1 hour'`, `enqueued_after => now() + interval '1 hour'`} {
			if got := page(state, args); len(got) != 0 {
				t.Errorf("%s jobs with %s are %v, want none", state, args, got)
			}
		}
	}
}

// TestCursorsOfTimesHoldInEveryTimeZone: the next page may be read in a session with another time zone; a cursor of another text or time is refused.
func TestCursorsOfTimesHoldInEveryTimeZone(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	enqueueN(t, conn, "q", 3)
	exec(t, conn, `SET timezone = 'Asia/Tokyo'`)
	after := value[string](t, conn, `SELECT next FROM weir.jobs_page(max_rows => 1, args_text => 'k', enqueued_after => '2026-01-01 00:00+00')`)
	exec(t, conn, `SET timezone = 'America/New_York'`)
	if n := value[int](t, conn, `SELECT jsonb_array_length(jobs) FROM weir.jobs_page(after => $1, args_text => 'k', enqueued_after => '2026-01-01 00:00+00')`, after); n != 2 {
		t.Errorf("the next page has %d jobs, want 2", n)
	}
	for _, args := range []string{``, `, args_text => 'k'`, `, args_text => 'K', enqueued_after => '2026-01-01 00:00+00'`, `, args_text => 'k', enqueued_after => '2026-01-02 00:00+00'`, `, args_text => 'k', enqueued_before => '2026-01-01 00:00+00'`} {
		_, err := conn.Exec(t.Context(), `SELECT * FROM weir.jobs_page(after => $1`+args+`)`, after)
		wantCode(t, "a cursor for"+args, err, "22023")
	}
}

// TestAPageThatSearchesLargeArgsIsBounded: it ends early, in proportion to their size, and the pages together find what there is.
func TestAPageThatSearchesLargeArgsIsBounded(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	last := value[int64](t, conn, `SELECT max(weir.enqueue('q', 'k', jsonb_build_object('n', n, 'text', repeat('x', 500000)))) FROM generate_series(1, 60) n`)
	seen, pages, after := 0, 0, ""
	for {
		var n int
		if err := conn.QueryRow(t.Context(), `SELECT jsonb_array_length(jobs), coalesce(next, '') FROM weir.jobs_page(ARRAY['available'], args_text => '"n": 60,', after => $1)`, after).Scan(&n, &after); err != nil {
			t.Fatal(err)
		}
		seen += n
		if pages++; after == "" {
			break
		}
	}
	if seen != 1 || pages < 2 {
		t.Errorf("%d jobs on %d pages, want job %d, and more than one page", seen, pages, last)
	}
}
