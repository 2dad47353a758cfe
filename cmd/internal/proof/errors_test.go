package proof

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// failWith records that an attempt has failed with an error, and that the job is retried at once.
func failWith(t *testing.T, conn *pgx.Conn, worker int32, a attempt, why string) {
	t.Helper()
	var place *int
	err := conn.QueryRow(t.Context(), `SELECT (SELECT place FROM weir._record($1, ARRAY[$2::bigint], ARRAY[$3::bigint], ARRAY[1], ARRAY[$4::bigint], ARRAY['retried'], ARRAY[$5]))`,
		worker, a.Lane, a.Seq, a.ID, why).Scan(&place)
	if err != nil || place != nil {
		t.Fatalf("fail job %d: refused %v, %v", a.ID, place != nil, err)
	}
}

// errorsOf returns the errors of a job, as "attempt outcome error".
func errorsOf(t *testing.T, conn *pgx.Conn, id int64) []string {
	t.Helper()
	return column[string](t, conn, `SELECT format('%s %s %s', e->>'attempt', e->>'outcome', e->>'error') FROM weir.job_info($1) i, jsonb_array_elements(i.errors) e`, id)
}

// TestABriefErrorThatIsEncryptedIsWholeOrNamesItsKey: a part of an encrypted text could not be decrypted.
func TestABriefErrorThatIsEncryptedIsWholeOrNamesItsKey(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, c := range []struct{ text, want string }{
		{`{"weir.encrypted":{"key":"2026-11","data":"` + strings.Repeat("A", 900) + `"}}`, ""},
		{`{"weir.encrypted":{"key":"2026-11","data":"` + strings.Repeat("A", 1000) + `"}}`, `{"weir.encrypted":{"key":"2026-11"}}`},
		{`{"weir.encrypted": {"key": "2026-11", "data": "` + strings.Repeat("A", 60000), `{"weir.encrypted":{"key":"2026-11"}}`},
		{`{"weir.encrypted":` + strings.Repeat("A", 1000), `{"weir.encrypted":` + strings.Repeat("A", 500-18) + ` ... ` + strings.Repeat("A", 495)},
	} {
		if c.want == "" {
			c.want = c.text
		}
		got := value[string](t, conn, `SELECT weir._brief_errors(jsonb_build_array(jsonb_build_object('error', $1::text)))->0->>'error'`, c.text)
		if got != c.want {
			t.Errorf("%.60s of %d bytes becomes %s", c.text, len(c.text), got)
		}
	}
}

// TestErrorsOfAllAttemptsOutliveTheirSegments: while a job is retried, and after it has failed, its errors are those of all attempts, even if the
// segments of these attempts have been reclaimed.
func TestErrorsOfAllAttemptsOutliveTheirSegments(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	smallSegments(t, conn)
	worker := startWorker(t, conn, "q", "filler")
	id := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', max_attempts => 4)`)
	var want []string
	check := func(when string) {
		t.Helper()
		if got := errorsOf(t, conn, id); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s the errors are %q, want %q", when, got, want)
		}
	}
	for n, why := range []string{"first", "the same", "the same", "last"} {
		got := mustClaim(t, conn, worker, "q", 10)
		if len(got) != 1 || int(got[0].Attempt) != n+1 {
			t.Fatalf("claimed %v, want attempt %d", got, n+1)
		}
		if n == 1 { // carried while it runs
			turn(t, conn, worker)
			turn(t, conn, worker)
			check("while the second attempt runs")
		}
		failWith(t, conn, worker, got[0], why)
		outcome := "retried"
		if n == 3 {
			outcome = "failed"
		}
		want = append(want, fmt.Sprintf("%d %s %s", n+1, outcome, why))
		check("after an attempt")
		for range 3 { // carried while it waits
			turn(t, conn, worker)
		}
		check("after the segments have turned")
	}
	wantState(t, conn, id, "failed")
	exec(t, conn, `SELECT weir.retry($1)`, id)
	check("after a retry")
	got := mustClaim(t, conn, worker, "q", 10)
	exec(t, conn, `SELECT weir._record($1, ARRAY[$2::bigint], ARRAY[$3::bigint], ARRAY[1], ARRAY[$4::bigint], ARRAY['snoozed'], NULL, NULL, ARRAY[now() + interval '1 day'])`, worker, got[0].Lane, got[0].Seq, got[0].ID)
	for range 3 {
		turn(t, conn, worker)
	}
	check("of a job that was retried and snoozed")
}

// TestErrorsThatAJobCarriesAreBounded: whatever the number and size of its errors, a job carries those of 24 attempts, each at most 1,000 characters;
// an error like the one before costs a few bytes. A job that did not fail carries nothing.
func TestErrorsThatAJobCarriesAreBounded(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	const fold = `WITH RECURSIVE r(n, errors) AS (
		SELECT 0, NULL::jsonb UNION ALL
		SELECT n + 1, weir._with_error(errors, n + 1, now(), 'retried', format($1, CASE WHEN $2 THEN n END, repeat(E'line\n', 5000))) FROM r WHERE n < 60) `
	for _, differ := range []bool{true, false} {
		var texts int
		var entries, longest, size int
		var first, last string
		err := conn.QueryRow(t.Context(), fold+`SELECT (SELECT count(*) FROM jsonb_array_elements(r.errors) e WHERE e ? 'error'), jsonb_array_length(f.full), (SELECT max(length(e->>'error')) FROM jsonb_array_elements(f.full) e),
			length(r.errors::text), (f.full->0->>'attempt') || (f.full->0->>'error'), f.full->-1->>'attempt'
			FROM r, LATERAL (SELECT weir._full_errors(r.errors) AS full) f WHERE n = 60`, "error %s\n%s at the end", differ).Scan(&texts, &entries, &longest, &size, &first, &last)
		if err != nil {
			t.Fatal(err)
		}
		if entries != 24 || longest != 1000 || last != "60" || !strings.HasPrefix(first, "37error") || !strings.HasSuffix(first, "at the end") {
			t.Errorf("%d entries from %.20q to %s, the longest of %d characters", entries, first, last, longest)
		}
		if differ && texts != 24 || !differ && (texts != 1 || size > 4000) {
			t.Errorf("errors that differ: %v: %d texts, %d bytes", differ, texts, size)
		}
	}
	// Added one by one or brought into the form at once, the errors are the same.
	if !value[bool](t, conn, `WITH RECURSIVE r(n, errors, every) AS (
		SELECT 0, NULL::jsonb, '[]'::jsonb UNION ALL
		SELECT n + 1, weir._with_error(errors, n, now(), 'retried', 'error ' || n / 10), every || jsonb_build_object('attempt', n, 'at', now(), 'outcome', 'retried', 'error', 'error ' || n / 10) FROM r WHERE n < 60)
		SELECT bool_and(errors = weir._brief_errors(every)) FROM r WHERE n > 0`) {
		t.Error("errors that were added one by one are not those that were added at once")
	}
	if !value[bool](t, conn, `SELECT weir._with_error(NULL, 1, now(), 'retried', NULL) IS NULL AND weir._brief_errors('[]') IS NULL`) {
		t.Error("a job carries a list without errors")
	}
}
