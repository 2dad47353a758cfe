package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-pg/weir/internal/pgtest"
)

// failing takes a new job of queue q and records that its attempt failed. It returns the job's state and attempt, and in how many seconds it runs again.
func failing(t *testing.T, conn *pgx.Conn, worker int32, kind string, attempt, putOff, most int, end map[string]any) (is string, after float64) {
	t.Helper()
	id := value[int64](t, conn, `SELECT weir.enqueue('q', $1, max_attempts => $2)`, kind, most)
	exec(t, conn, `UPDATE weir.job SET attempt = $2, put_off = $3 WHERE id = $1`, id, attempt, putOff)
	end["token"] = takeSome(t, conn, worker, atOnce(1))[0].Token
	if refused := recordEnds(t, conn, worker, ends{end}); len(refused) > 0 {
		t.Fatalf("refused: %v", refused)
	}
	after = value[float64](t, conn, `SELECT coalesce(extract(epoch FROM max(run_at) - now()), 0)::float8 FROM weir.later WHERE id = $1`, id)
	return value[string](t, conn, `SELECT state || ' ' || attempt FROM weir.job_info($1)`, id), after
}

// near reports whether a delay is within the jitter, and a few seconds for a slow machine.
func near(got, want float64) bool { return got > want*0.75-10 && got < want*1.25+1 }

// TestABackoffHasTheFormThatItsQueueSays: exponential, linear or fixed.
func TestABackoffHasTheFormThatItsQueueSays(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	exec(t, conn, `SELECT weir.set('q', 'backoff', '10 minutes'), weir.set('q', 'backoff_limit', '3 days')`)
	for form, minutes := range map[string][]float64{"linear": {10, 20, 50, 250}, "fixed": {10, 10, 10, 10}, "exponential": {10, 20, 160, 4320}} {
		exec(t, conn, `SELECT weir.set('q', 'backoff_form', $1)`, form)
		for i, attempt := range []int{1, 2, 5, 25} {
			if is, after := failing(t, conn, worker, "k", attempt, 0, 100, map[string]any{"outcome": "failed", "error": "e"}); !near(after, minutes[i]*60) {
				t.Errorf("%s: after attempt %d the job is %s and waits %.0f s, want about %.0f", form, attempt, is, after, minutes[i]*60)
			}
		}
	}
	for _, sql := range []string{`SELECT weir.set('q', 'backoff_form', 'quadratic')`, `SELECT weir.set('q', 'backoff_form', NULL)`} {
		_, err := conn.Exec(t.Context(), sql)
		wantCode(t, sql, err, "22023")
	}
}

// TestWhatFollowsAnErrorIsWhatTheRulesSay: retry rules decide by error, kind and queue, the most specific first, unless the worker has decided.
func TestWhatFollowsAnErrorIsWhatTheRulesSay(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	exec(t, conn, `SELECT weir.set('q', 'backoff', '10 minutes')`)
	exec(t, conn, `SELECT weir.set_retry_rule('a-other-queue', 'fail', queue => 'other'),
		weir.set_retry_rule('queue', backoff => '1 hour', queue => 'q', backoff_form => 'linear', backoff_limit => '1 day'),
		weir.set_retry_rule('mails', backoff => '2 hours', kind => 'mail', backoff_form => 'fixed'),
		weir.set_retry_rule('gone', 'cancel', error => '^(NotFound|Gone):'),
		weir.set_retry_rule('invalid', 'fail', error => 'ValueError: .*$', queue => 'q'),
		weir.set_retry_rule('busy', 'snooze', error => '429', backoff => '5 minutes'),
		weir.set_retry_rule('mail-429', 'retry', error => '429', kind => 'mail', backoff => '3 hours', backoff_form => 'fixed')`)
	traceback := "Traceback (most recent call last):\n" + strings.Repeat("  File \"a.py\", line 1, in <module>\n", 500) + "ValueError: no"
	for _, c := range []struct {
		kind, error           string
		attempt, putOff, most int
		delay, final, want    any
		minutes               float64
	}{
		{kind: "k", error: "boom", attempt: 2, most: 5, want: "scheduled 3", minutes: 120},
		{kind: "mail", error: "boom", attempt: 2, most: 5, want: "scheduled 3", minutes: 60}, // backoff_limit is the queue's, an hour
		{kind: "mail", error: "HTTP 429", attempt: 2, most: 5, want: "scheduled 3", minutes: 60},
		{kind: "k", error: "HTTP 429", attempt: 2, most: 5, want: "scheduled 2", minutes: 5},
		{kind: "k", error: "HTTP 429", attempt: 5, putOff: 9, most: 5, want: "scheduled 5", minutes: 5}, // uses up no attempt
		{kind: "k", error: "Gone: user 7", attempt: 1, most: 5, want: "cancelled 1"},
		{kind: "k", error: traceback, attempt: 1, most: 5, want: "failed 1"},
		{kind: "k", error: "boom", attempt: 5, most: 5, want: "failed 5"},
		{kind: "k", error: "Gone: user 7", attempt: 1, most: 5, delay: 60, want: "scheduled 2", minutes: 1},
		{kind: "k", error: "HTTP 429", attempt: 1, most: 5, final: true, want: "failed 1"},
	} {
		is, after := failing(t, conn, worker, c.kind, c.attempt, c.putOff, c.most, map[string]any{"outcome": "failed", "error": c.error, "delay": c.delay, "final": c.final})
		if is != c.want || !near(after, c.minutes*60) {
			t.Errorf("%s, %.20q, attempt %d: %s, runs in %.0f s, want %s in %.0f", c.kind, c.error, c.attempt, is, after, c.want, c.minutes*60)
		}
	}
	if got := column[string](t, conn, `SELECT name FROM weir.retry_rules()`); fmt.Sprint(got) != "[mail-429 invalid busy gone mails a-other-queue queue]" {
		t.Errorf("the rules are tried in the order %v", got)
	}
	if got := value[string](t, conn, `SELECT error FROM weir.jobs('cancelled')`); got != "Gone: user 7\n[cancelled by retry rule gone]" {
		t.Errorf("the error of a job that a rule has cancelled is %q", got)
	}
	if got := value[int](t, conn, `SELECT count(*) FROM weir.retry_rules() r WHERE weir.drop_retry_rule(r.name)`); got != 7 || value[bool](t, conn, `SELECT weir.drop_retry_rule('gone')`) {
		t.Errorf("%d rules were dropped", got)
	}
}

// TestARuleThatCannotBeUsedIsRefusedWhenItIsSet: with the value that is wrong.
func TestARuleThatCannotBeUsedIsRefusedWhenItIsSet(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.set_retry_rule('r' || i, error => 'x') FROM generate_series(1, 99) i`)
	for call, want := range map[string]string{
		`'r', error => 'a('`:                          "'a('",
		`'r', error => ''`:                            "1 to 1000 characters",
		`'r', error => repeat('x', 1001)`:             "not 1001",
		`'r', error => E'(a+)\\1'`:                    "back references",
		`'r', error => E'\\\\\\\\(a+)\\1'`:            "back references",
		`'r', error => 'a(?=b)'`:                      "lookahead",
		`'r', error => 'a(?<!b)'`:                     "lookahead",
		`'r', error => repeat('(a{0,50}){0,50}', 60)`: "regular expression",
		`'r'`:                          "every error",
		`'r', 'explode', error => 'x'`: "'explode'",
		`'r', 'snooze', error => 'x'`:  "for how long",
		`'r', 'fail', error => 'x', backoff => '1 s'`:                         "no attempt follows",
		`'r', error => 'x', backoff => '-1 s'`:                                "-00:00:01",
		`'r', error => 'x', backoff_limit => '2 years'`:                       "2 years",
		`'r', error => 'x', backoff_form => 'quadratic'`:                      "'quadratic'",
		`NULL, error => 'x'`:                                                  "null",
		`'a b', error => 'x'`:                                                 "'a b'",
		`'r101', error => 'x') FROM weir.set_retry_rule('r100', error => 'x'`: "no more are allowed",
	} {
		_, err := conn.Exec(t.Context(), `SELECT weir.set_retry_rule(`+call+`)`)
		wantCode(t, call, err, "22023")
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v does not say %q", call, err, want)
		}
	}
	exec(t, conn, `SELECT weir.set_retry_rule('good', error => E'a\\(?=b|\\\\\\\\1|^x{2,3}$', backoff => '365 days', backoff_limit => '366 days')`)
}

// TestABadRuleStopsNoRecording: a rule that fails, or takes long, leaves attempts to the other rules and to the queue's backoff.
func TestABadRuleStopsNoRecording(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	exec(t, conn, `INSERT INTO weir.retry_rule (name, error, action) VALUES ('bad', 'a(', 'fail')`) // as no call of set_retry_rule can
	exec(t, conn, `SELECT weir.set_retry_rule('worse', 'fail', error => '(x+x+)+(x+x+)+y', kind => 'k'), weir.set_retry_rule('zzz', 'cancel', error => 'boom')`)
	long := strings.Repeat("x", 60000)
	if is, _ := failing(t, conn, worker, "k", 1, 0, 5, map[string]any{"outcome": "failed", "error": long}); is != "scheduled 2" {
		t.Errorf("the job is %s, want scheduled 2", is)
	}
	if is, _ := failing(t, conn, worker, "k", 1, 0, 5, map[string]any{"outcome": "failed", "error": "boom"}); is != "cancelled 1" {
		t.Errorf("the job is %s, want cancelled 1", is)
	}
	if is, _ := failing(t, conn, worker, "k", 1, 0, 5, map[string]any{"outcome": "failed"}); is != "scheduled 2" {
		t.Errorf("a job that failed without a text is %s, want scheduled 2", is)
	}
}

// TestASlowRuleDoesNotHoldUpRecording: the time that rules may take for one call is one for all of its errors. Those that are left get the queue's backoff, and the log says so.
func TestASlowRuleDoesNotHoldUpRecording(t *testing.T) {
	t.Parallel()
	const n = 900
	warnings := 0
	config, err := pgx.ParseConfig(pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
		if strings.Contains(notice.Message, "rule slow, or those behind it, were left out for some errors") {
			warnings++
		}
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_retry_rule('slow', 'fail', error => '((a|b)*a(a|b){250}){1,20}c')`) // takes about 70 ms for each error below
	enqueueN(t, conn, "q", n)
	got := mustClaim(t, conn, worker, "q", n)
	rng := rand.New(rand.NewPCG(1, 2))
	errs, ids, outcomes, at := make([]string, n), idsOf(got), make([]string, n), make([]pgtype.Timestamptz, n)
	for i := range n {
		text := make([]byte, 4000)
		for j := range text {
			text[j] = "ab"[rng.IntN(2)]
		}
		if i == 0 || i == n-1 { // matched, but the last one not in time
			text[len(text)-252], text[len(text)-1] = 'a', 'c'
		}
		errs[i], outcomes[i], at[i] = string(text), "retried", pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	exec(t, conn, `SELECT weir._record($1, ARRAY[$2::bigint], ARRAY[$3::bigint], ARRAY[$4::int], $5, $6, $7, NULL, $8)`, worker, got[0].Lane, got[0].Seq, n, ids, outcomes, errs, at)
	failed, scheduled := value[int](t, conn, `SELECT count(*) FROM weir.jobs('failed', 'q')`), value[int](t, conn, `SELECT count(*) FROM weir.later WHERE attempt = 2`)
	if failed != 1 || scheduled != n-1 || warnings != 1 {
		t.Errorf("%d jobs have failed and %d are tried again, with %d warnings, want 1, %d and 1", failed, scheduled, warnings, n-1)
	}
}

// TestWhatARuleDecidesIsReturned: a worker that records an end learns the outcome that a rule has given it, also if the answer was lost and the call is repeated.
func TestWhatARuleDecidesIsReturned(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	exec(t, conn, `SELECT weir.set_retry_rule('gone', 'cancel', error => 'gone')`)
	exec(t, conn, `SELECT weir.enqueue('q', 'k'), weir.enqueue('q', 'k')`)
	got := mustClaim(t, conn, worker, "q", 2)
	for _, want := range []string{"2  cancelled", "1 ended retried,2 ended cancelled"} {
		answer := value[string](t, conn, `SELECT string_agg(format('%s %s %s', place, refusal, outcome), ',' ORDER BY place)
			FROM weir._record($1, ARRAY[$2::bigint], ARRAY[$3::bigint], ARRAY[2], ARRAY[$4::bigint, $5], ARRAY['retried', 'retried'], ARRAY['here', 'gone'], NULL, ARRAY['-infinity'::timestamptz, '-infinity'])`,
			worker, got[0].Lane, got[0].Seq, got[0].ID, got[1].ID)
		if answer != want {
			t.Errorf("the answer is %q, want %q", answer, want)
		}
	}
}

// TestTheRuleOfTheGuideMatchesErrorsOfCommands: they begin with how the command ended, before what it wrote to its standard error, one line or a traceback.
func TestTheRuleOfTheGuideMatchesErrorsOfCommands(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../../docs/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	rule := regexp.MustCompile(`error => '([^']*NotFound[^']*)'`).FindSubmatch(guide)
	if rule == nil {
		t.Fatal("the guide has no rule for NotFound")
	}
	conn := connect(t, pgtest.Database(t))
	for text, want := range map[string]bool{
		"NotFound: 7": true, "exit status 1: NotFound: 7": true, "exit status 1: Traceback (most recent call last):\n  File x\nGone: 7": true,
		"exit status 1: FileNotFound: 7": false, "exit status 1": false,
	} {
		if got := value[bool](t, conn, `SELECT $1::text ~ $2::text`, text, string(rule[1])); got != want {
			t.Errorf("the rule %s matches %q: %t", rule[1], text, got)
		}
	}
}
