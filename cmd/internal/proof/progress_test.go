package proof

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// token identifies an attempt for the functions of the contract.
func (a attempt) token() string { return fmt.Sprintf("%d.%d.%d", a.Lane, a.Seq, a.ID) }

// report passes an entry with these fields for an attempt, and returns the refusals.
func report(t *testing.T, conn *pgx.Conn, worker int32, a attempt, fields string) []string {
	t.Helper()
	return column[string](t, conn, `SELECT refusal FROM weir.progress($1, $2)`, worker, fmt.Sprintf(`[{"token": %q, %s}]`, a.token(), fields))
}

func wantReported(t *testing.T, conn *pgx.Conn, when string, id int64, percent, checkpoint string) {
	t.Helper()
	got := value[string](t, conn, `SELECT coalesce((SELECT percent::text FROM weir.job_info($1)), 'none') || ' ' || coalesce(weir.checkpoint($1)::text, 'none')`, id)
	if got != percent+" "+checkpoint {
		t.Errorf("%s, job %d has reported %s, want %s %s", when, id, got, percent, checkpoint)
	}
}

// TestOnlyARunningAttemptReports: an attempt that has ended, or that its worker does not hold, is refused, and a fenced worker is refused altogether; so no late report hides
// one of the next attempt.
func TestOnlyARunningAttemptReports(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	first, second := startWorker(t, conn, "q"), startWorker(t, conn, "q")
	id := enqueueN(t, conn, "q", 1)[0]
	a := mustClaim(t, conn, first, "q", 1)[0]
	if refused := report(t, conn, first, a, `"percent": 10, "checkpoint": {"n": 1}`); len(refused) > 0 {
		t.Errorf("a running attempt: %v", refused)
	}
	if refused := report(t, conn, second, a, `"percent": 90`); !slices.Equal(refused, []string{"lost"}) {
		t.Errorf("another worker: %v", refused)
	}
	if _, err := finish(t.Context(), conn, first, a, "retried", time.Time{}); err != nil {
		t.Fatal(err)
	}
	if refused := report(t, conn, first, a, `"percent": 90, "checkpoint": 9`); !slices.Equal(refused, []string{"lost"}) {
		t.Errorf("an ended attempt: %v", refused)
	}
	b := mustClaim(t, conn, second, "q", 1)[0]
	wantReported(t, conn, "before the second attempt reports", id, "10", `{"n": 1}`)
	if refused := report(t, conn, second, b, `"percent": 20`); len(refused) > 0 {
		t.Errorf("the next attempt: %v", refused)
	}
	wantReported(t, conn, "without a new checkpoint", id, "20", `{"n": 1}`)
	exec(t, conn, `SELECT weir._fence($1, 'test')`, second)
	_, err := conn.Exec(t.Context(), `SELECT weir.progress($1, '[]')`, second)
	wantCode(t, "a fenced worker", err, "WR001")
	// Even a report that was written late, because the attempt ended meanwhile, is older than those of the attempts that were claimed after it.
	exec(t, conn, `INSERT INTO weir.report (job_id, claim, no, segment, at, attempt, percent, checkpoint) SELECT job_id, min(claim), nextval('weir.report_no'), 1, now(), 1, 99, '99' FROM weir.report GROUP BY 1`)
	if got := value[string](t, conn, `SELECT percent::text FROM weir.job_info($1)`, id); got != "20" {
		t.Errorf("a late report counts: %s", got)
	}
}

// TestWhatIsWrongWithAReportIsSaid: each entry is judged by itself, and errors name the value.
func TestWhatIsWrongWithAReportIsSaid(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	id := enqueueN(t, conn, "q", 1)[0]
	a := mustClaim(t, conn, worker, "q", 1)[0]
	for fields, want := range map[string]string{
		`"percent": 101`: "percent must be a number from 0 to 100, got 101",
		`"percent": "x"`: "percent must be a number",
		`"message": 1`:   "message must be a text, got a JSON number",
		`"checkpoint": "` + strings.Repeat("x", 131071) + `"`: "the checkpoint has 131073 bytes, at most 131072",
		`"log": "x"`:           "log must be an array of lines, got a JSON string",
		`"log": ["x"]`:         "each line of log must be an object with a text",
		`"log": [{}]`:          "each line of log must be an object with a text",
		`"log": [{"text": 1}]`: "each line of log must be an object with a text",
		`"log": [` + strings.Repeat(`{"text": ""},`, 200) + `{"text": ""}]`: "log has 201 lines, at most 200",
		`"progress": 1`:                 `unknown field progress`,
		`"invalid": null`:               `unknown field invalid`,
		`"checkpoint": {"n": 1e400000}`: "it has a number that PostgreSQL does not take: value overflows numeric format",
	} {
		got := column[string](t, conn, `SELECT refusal || ': ' || detail FROM weir.progress($1, $2)`, worker, fmt.Sprintf(`[{"token": %q, %s}]`, a.token(), fields))
		if len(got) != 1 || !strings.HasPrefix(got[0], "invalid: ") || !strings.Contains(got[0], want) {
			t.Errorf("%.60s: %v, want %s", fields, got, want)
		}
	}
	got := column[string](t, conn, `SELECT coalesce(token, '?') || ' ' || refusal FROM weir.progress($1, $2)`, worker,
		fmt.Sprintf(`[1, {"token": "x"}, {"percent": 1}, {"token": "y", "checkpoint": 1e400000}, {"token": %q, "percent": 5, "message": "a\u0000", "checkpoint": null, "log": [{"text": "l", "level": "INFO"}]}]`, a.token()))
	if !slices.Equal(got, []string{"? invalid", "x invalid", "? invalid", "y invalid"}) {
		t.Errorf("of five, one valid, these were refused: %v", got)
	}
	wantReported(t, conn, "in the end", id, "5", "none")
	if log := value[string](t, conn, `SELECT (log #- '{0,at}')::text || message FROM weir.job_info($1)`, id); log != `[{"text": "l", "level": "INFO", "attempt": 1}]a`+"\uFFFD" {
		t.Errorf("log and message are %s", log)
	}
	for what, text := range map[string]string{"no array": "{}", "too many": "[" + strings.Repeat("1,", 1000) + "1]", "too long": strings.Repeat(" ", 16<<20+1)} {
		_, err := conn.Exec(t.Context(), `SELECT weir.progress($1, $2)`, worker, text)
		wantCode(t, what, err, "22023")
	}
	_, err := conn.Exec(t.Context(), `SELECT weir.progress($1, '[')`, worker)
	wantCode(t, "no JSON", err, "22P02")
}

// TestCheckpointsOfUnfinishedJobsOutliveTheirSegment: of waiting, running, scheduled and failed jobs the last report and checkpoint stay while segments of reports and of jobs
// are reclaimed, with other reports in between, and across a rebase; those of completed jobs go with their retention.
func TestCheckpointsOfUnfinishedJobsOutliveTheirSegment(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, reader := connect(t, url), connect(t, url)
	smallSegments(t, conn)
	exec(t, conn, `SELECT weir.set('failed_retention', '0 s')`)
	worker := startWorker(t, conn, "q", "filler")
	ends := []string{"", "retried", "snoozed", "released", "completed"}
	ids := enqueueN(t, conn, "q", len(ends))
	for i, a := range mustClaim(t, conn, worker, "q", 10) {
		for n := range 3 {
			fields := fmt.Sprintf(`"percent": %d, "log": [{"text": "x"}]`, 10*n)
			if n == 1 {
				fields += fmt.Sprintf(`, "checkpoint": {"job": %d, "long": %q}`, i, strings.Repeat("x", 5000))
			}
			if refused := report(t, conn, worker, a, fields); len(refused) > 0 {
				t.Fatal(refused)
			}
		}
		if ends[i] != "" {
			at := time.Time{}
			if ends[i] == "snoozed" {
				at = time.Now().Add(time.Hour)
			}
			if _, err := finish(t.Context(), conn, worker, a, ends[i], at); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(when string) {
		t.Helper()
		for i, id := range ids {
			percent, want := "20", fmt.Sprintf(`{"job": %d, "long": %q}`, i, strings.Repeat("x", 5000))
			if ends[i] == "completed" && when != "at first" {
				if got := value[int](t, conn, `SELECT count(*) FROM weir.report WHERE job_id = $1`, id); got != 0 {
					t.Errorf("%s, %d reports of a completed job are kept", when, got)
				}
				continue
			}
			wantReported(t, conn, when, id, percent, want)
		}
	}
	check("at first")
	for round := range 6 {
		rotateUntil(t, conn, "opened report")
		if round == 1 { // a reader that stays delays it, and waits for nothing
			exec(t, reader, `BEGIN; SELECT * FROM weir.report`)
			for range 5 {
				exec(t, conn, `SELECT weir._rotate_history()`)
			}
			check("while a segment is read")
			exec(t, reader, `COMMIT`)
		}
		rotateUntil(t, conn, "reclaimed report")
		check(fmt.Sprintf("after turn %d", round))
	}
	turn(t, conn, worker)
	turn(t, conn, worker)
	check("after the segments of jobs")
	moveElsewhere(t, conn)
	exec(t, conn, `SELECT weir.rebase()`)
	check("after a rebase")
	if dead := value[int](t, conn, `SELECT coalesce(sum(n_dead_tup + n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables WHERE relname LIKE 'report%'`); dead != 0 {
		t.Errorf("%d rows of reports were updated, deleted or dead", dead)
	}
}

// TestReportsAreCarriedInBoundedSteps: a segment with the reports of thousands of jobs is emptied in steps, of which each can be repeated, and misses no job.
func TestReportsAreCarriedInBoundedSteps(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.set('completed_retention', '0 s'), weir.set('failed_retention', '0 s')`)
	worker := startWorker(t, conn, "q")
	ids := enqueueN(t, conn, "q", 2500)
	for _, a := range claimAll(t, conn, worker, "q") {
		exec(t, conn, `INSERT INTO weir.report (job_id, claim, no, segment, at, attempt, checkpoint)
			SELECT $1, b.no, nextval('weir.report_no'), 1, now(), 1, to_jsonb($1::bigint) FROM weir.batch b WHERE b.lane = $2 AND b.seq = $3 LIMIT 1`, a.ID, a.Lane, a.Seq)
	}
	rotateUntil(t, conn, "opened report 2")
	rotateUntil(t, conn, "closed report 1")
	carried := 0
	for did, steps := "", 0; did != "reclaimed report 1"; steps++ {
		if steps > 20 {
			t.Fatalf("after %d steps it says %s", steps, did)
		}
		// A step that is rolled back is done again.
		exec(t, conn, `BEGIN; SELECT weir._rotate_history(); ROLLBACK`)
		if did = value[string](t, conn, `SELECT coalesce(weir._rotate_history(), '')`); did == "carried from report 1" {
			carried++
		}
	}
	if carried != 3 {
		t.Errorf("it was carried in %d steps, want three, of up to 1000 jobs each", carried)
	}
	if n := value[int](t, conn, `SELECT count(DISTINCT r.job_id) FROM weir.report r WHERE r.segment <> 1 AND r.checkpoint = to_jsonb(r.job_id)`); n != len(ids) {
		t.Errorf("%d of %d checkpoints were carried", n, len(ids))
	}
}

// TestALineWithoutTimeAndLevelHasThem: in place of what a line of a log leaves out, or of a time that is none, is when it was stored, and INFO.
func TestALineWithoutTimeAndLevelHasThem(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	enqueueN(t, conn, "q", 1)
	a := take(t, conn, worker, atOnce(1))[0]
	began := value[time.Time](t, conn, `SELECT clock_timestamp()`)
	exec(t, conn, `SELECT weir.progress($1, $2)`, worker, fmt.Sprintf(`[{"token": %q, "log": [{"text": "a"}, {"text": "b", "at": null, "level": null}, {"text": "c", "at": "yesterday", "level": 30},
		{"text": "d", "at": 17}, {"text": "e", "at": "2026-11-22T10:00:00", "level": "WARN"}, {"text": "f", "at": "2026-11-22T10:00:00.5+01:00", "level": "WARN"},
		{"text": "g", "at": "2026-11-22 10:00:00.500000+01:00"}, {"text": "h", "at": "2026-11-22 09:00:00.5Z"}, {"text": "i", "at": "2026-02-30T10:00:00Z"}, {"text": "j", "at": "9999-12-31T23:59:59-15:00"},
		{"text": "k", "at": "2026-11-22T10:00:00+99:00"}, {"text": "l", "at": "2026-11-21T24:00:00Z"}, {"text": "m", "at": "0001-01-01T00:00:00+15:00"}, {"text": "n", "at": "2026-13-41T61:00:00Z"}]}]`, a.Token))
	given := map[int]time.Time{11: time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)}
	for _, i := range []int{5, 6, 7} { // as Python prints it, too
		given[i] = time.Date(2026, 11, 22, 9, 0, 0, 5e8, time.UTC)
	}
	var lines []struct {
		Attempt     int
		At          time.Time
		Level, Text string
	}
	if err := json.Unmarshal([]byte(value[string](t, conn, `SELECT log::text FROM weir.job_info($1)`, a.ID)), &lines); err != nil {
		t.Fatal(err)
	}
	if len(lines) != 14 {
		t.Fatalf("the log is %+v", lines)
	}
	levels := map[int]string{2: "30", 4: "WARN", 5: "WARN"}
	for i, line := range lines {
		if want, ok := given[i]; line.Level != cmp.Or(levels[i], "INFO") || line.Attempt != 1 || ok && !line.At.Equal(want) || !ok && line.At.Before(began) {
			t.Errorf("line %d is %+v", i, lines[i])
		}
	}
}
