package proof

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/pgtest"
)

// taken is a row of weir.take.
type taken struct {
	Event, Token string
	ID           int64
	Queue, Kind  *string
	Attempt      *int32
	Priority     *int32
	Key          *string
}

// taking holds the arguments of weir.take; nil is NULL.
type taking struct {
	limits      []int32
	kinds, held []string
	lost        *bool
	wait        string
}

func take(t *testing.T, q querier, worker int32, how taking) []taken {
	t.Helper()
	rows, err := q.Query(t.Context(), `SELECT event, token, id, queue, kind, attempt, priority, key FROM weir.take($1, NULL, $2, $3, $4, $5, nullif($6, '')::interval)`,
		worker, how.limits, how.kinds, how.held, how.lost, how.wait)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[taken])
	if err != nil {
		t.Fatalf("take: %v", err)
	}
	return all
}

// atOnce are the arguments to take without waiting.
func atOnce(limit int32) taking { return taking{limits: []int32{limit}, wait: "0"} }

// takeSome takes until it gets something, because a call that did chores may return nothing.
func takeSome(t *testing.T, q querier, worker int32, how taking) (all []taken) {
	t.Helper()
	until(t, "take has something", func() bool { all = take(t, q, worker, how); return len(all) > 0 })
	return all
}

func tokensOf(all []taken) (tokens []string) {
	for _, row := range all {
		tokens = append(tokens, row.Token)
	}
	return tokens
}

// ends is the argument of weir.record.
type ends []map[string]any

// recordEnds returns the refused tokens, each as "token refusal".
func recordEnds(t *testing.T, q querier, worker int32, all ends) []string {
	t.Helper()
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return column[string](t, q, `SELECT coalesce(token, '?') || ' ' || refusal FROM weir.record($1, $2)`, worker, string(text))
}

func stateOf(t *testing.T, q querier, id int64) string {
	t.Helper()
	return value[string](t, q, `SELECT concat_ws(' ', state, attempt, error, output) FROM weir.job_info($1)`, id)
}

// TestWhatIsTakenIsRecordedByItsToken: take returns jobs with tokens, and record ends attempts by their tokens, with every outcome.
func TestWhatIsTakenIsRecordedByItsToken(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	ids := enqueueN(t, conn, "q", 6)
	got := take(t, conn, worker, atOnce(10))
	if len(got) != len(ids) {
		t.Fatalf("take returned %d jobs of %d", len(got), len(ids))
	}
	for i, row := range got {
		if row.Event != "job" || row.ID != ids[i] || *row.Queue != "q" || *row.Attempt != 1 {
			t.Fatalf("row %d of take is %+v", i, row)
		}
	}
	tokens := tokensOf(got)
	all := ends{
		{"token": tokens[0]},
		{"token": tokens[1], "outcome": "completed", "output": "done"},
		{"token": tokens[2], "outcome": "failed", "error": "no", "final": true},
		{"token": tokens[3], "outcome": "failed", "error": "not yet"},
		{"token": tokens[4], "outcome": "failed", "error": "soon", "delay": 0},
		{"token": tokens[5], "outcome": "released"},
	}
	if refused := recordEnds(t, conn, worker, all); len(refused) > 0 {
		t.Fatalf("refused: %v", refused)
	}
	for i, want := range []string{"completed 1", "completed 1 done", "failed 1 no", "scheduled 2 not yet", "available 2 soon", "scheduled 1"} {
		if is := stateOf(t, conn, ids[i]); is != want {
			t.Errorf("job %d is %q, want %q", i, is, want)
		}
	}
	for _, id := range []int64{ids[3], ids[5]} { // the first retry of each: after a second, plus or minus a quarter
		if seconds := value[float64](t, conn, `SELECT extract(epoch FROM run_at - (SELECT max(finished_at) FROM weir.result))::float8 FROM weir.later WHERE id = $1`, id); seconds < 0.5 || seconds > 1.5 {
			t.Errorf("job %d is retried after %.2f s", id, seconds)
		}
	}
	if refused := recordEnds(t, conn, worker, all); len(refused) != len(all) || refused[0] != tokens[0]+" ended" {
		t.Errorf("recording the same again was refused: %v", refused)
	}
}

// TestEachEndIsJudgedByItself: record refuses invalid ends one by one, and records the others.
func TestEachEndIsJudgedByItself(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	ids := enqueueN(t, conn, "q", 2)
	tokens := tokensOf(take(t, conn, worker, atOnce(2)))
	text := fmt.Sprintf(`[
		{"token": %q, "outcome": "failed", "error": "a \u0000 b \ud800 c \\u0000 d \ud83d\ude00 \udc00"},
		{"token": %q, "outcome": "finished"}, {"token": %[2]q, "delay": -1}, {"token": %[2]q, "delay": "soon"}, {"token": %[2]q, "final": 1}, {"token": %[2]q, "errors": []},
		{"token": %[2]q, "delay": 1e400000}, {"token": %[2]q, "output": [1e400000, "\u0000"]}, {"token": 1e400000}, 1e99999999999, [1e400000],
		{"token": %[1]q, "delay": 1e-400},
		{"token": "1.1.1"}, {"token": "x"}, {"token": 7}, {"token": "9223372036854775808.1.1"}, {}, 7, null,
		{"token": %[2]q, "output": {"a": 1}}]`, tokens[0], tokens[1])
	refused := column[string](t, conn, `SELECT refusal FROM weir.record($1, $2)`, worker, text)
	slices.Sort(refused)
	if got := strings.Join(refused, " "); got != "ended "+strings.Repeat("invalid ", 16)+"lost" {
		t.Errorf("refused: %s", got)
	}
	if is := value[string](t, conn, `SELECT error FROM weir.job_info($1)`, ids[0]); is != "a \uFFFD b \uFFFD c \\u0000 d 😀 \uFFFD" {
		t.Errorf("the stored error is %q", is)
	}
	if is := stateOf(t, conn, ids[1]); is != `completed 1 {"a": 1}` {
		t.Errorf("the job of the last end is %q", is)
	}
	for _, text := range []string{`{}`, `"x"`, `null`, `7`} {
		_, err := conn.Exec(t.Context(), `SELECT weir.record($1, $2)`, worker, text)
		wantCode(t, text, err, "22023")
	}
	_, err := conn.Exec(t.Context(), `SELECT weir.record($1, '[')`, worker)
	wantCode(t, "no JSON", err, "22P02")
	_, err = conn.Exec(t.Context(), `SELECT weir.record($1, repeat(' ', 64 * 1048576 + 1))`, worker)
	wantCode(t, "more than 64 MiB", err, "22023")
}

// TestEscapesThatCannotBeStoredAreReplaced: record replaces every escape that PostgreSQL's text can't contain, wherever it is, and nothing else.
func TestEscapesThatCannotBeStoredAreReplaced(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SET standard_conforming_strings = off`) // functions don't depend on it
	for escaped, want := range map[string]string{
		`\u0000`: "\uFFFD", `\u0000\u0000`: "\uFFFD\uFFFD", `\\u0000\u0000`: `\u0000` + "\uFFFD", `\\\u0000`: `\` + "\uFFFD", `\\\\u0000\u0000`: `\\u0000` + "\uFFFD",
		`\ud83d\ude00\u0000`: "😀\uFFFD", `\uD83D\uDE00\uD83D`: "😀\uFFFD", `\ud83d\ud83d\ude00`: "\uFFFD😀", `\ud83d\ude00\ude00`: "😀\uFFFD", `\ude00\ud83d`: "\uFFFD\uFFFD",
		`\\ud83d\ude00`: `\ud83d` + "\uFFFD", `\\\ud83d\ude00\u0000`: `\😀` + "\uFFFD", `\\\\ud83d\ude00`: `\\ud83d` + "\uFFFD", `\ud83d\\ude00`: "\uFFFD" + `\ude00`,
		`\ud83d\n\ude00`: "\uFFFD\n\uFFFD", `\"\u0000\"`: "\"\uFFFD\"", `\ud83dude00`: "\uFFFDude00", `\u00000`: "\uFFFD0",
	} {
		if got := value[string](t, conn, `SELECT weir._jsonb_of($1) ->> 0`, `["`+escaped+`"]`); got != want {
			t.Errorf("%s became %q, want %q", escaped, got, want)
		}
	}
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	id := enqueueN(t, conn, "q", 1)[0]
	token := takeSome(t, conn, worker, atOnce(1))[0].Token
	text := fmt.Sprintf(`[{"token": %q, "output": "x \\ud800\udc00"}, {"token": "x", "error": "\ud800"}]`, token)
	if refused := column[string](t, conn, `SELECT token || ' ' || refusal FROM weir.record($1, $2)`, worker, text); !slices.Equal(refused, []string{"x invalid"}) {
		t.Errorf("refused: %q", refused)
	}
	if is := stateOf(t, conn, id); is != `completed 1 x \ud800`+"\uFFFD" {
		t.Errorf("the job is %q", is)
	}
	exec(t, conn, `SET statement_timeout = '1 min'`) // 100,000 take a second, unless the time grows with their square
	value[string](t, conn, `SELECT jsonb_typeof(weir._jsonb_of('["' || repeat($1, 50000) || '"]'))`, `\u0000\udc00`)
}

// TestTakeWaitsForWork: take returns a job as soon as it is committed, no matter when it was enqueued.
func TestTakeWaitsForWork(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	for _, when := range []string{"before", "meanwhile"} {
		exec(t, other, `BEGIN`)
		if when == "before" {
			enqueueN(t, other, "q", 1)
		}
		got := make(chan []taken, 1)
		go func() { defer close(got); got <- takeSome(t, conn, worker, taking{}) }()
		if when != "before" {
			until(t, "take waits", func() bool {
				return value[bool](t, other, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep' AND query LIKE '%weir.take(%' AND pid <> pg_backend_pid())`)
			})
			enqueueN(t, other, "q", 1)
		}
		exec(t, other, `COMMIT`)
		if rows := pgtest.Receive(t, got, "take returns"); len(rows) != 1 {
			t.Errorf("enqueued %s: take returned %v", when, rows)
		}
	}
}

// TestAnIdleTakeUsesUpNoTransactionID: an idle take writes nothing until a third of the lease has passed.
func TestAnIdleTakeUsesUpNoTransactionID(t *testing.T) {
	pgtest.Alone(t, "it counts transaction ids of the whole server")
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	words := func() int { return value[int](t, conn, `SELECT count(*) FROM weir.last_word`) }
	before := words()
	exec(t, conn, `BEGIN`)
	if got := take(t, conn, worker, taking{held: []string{}, wait: "50ms"}); len(got) > 0 {
		t.Errorf("took %v", got)
	}
	if !value[bool](t, conn, `SELECT pg_current_xact_id_if_assigned() IS NULL`) {
		t.Error("an idle take has used a transaction id")
	}
	exec(t, conn, `COMMIT`)
	if words() != before {
		t.Error("take has renewed the lease although no time has passed")
	}
	exec(t, conn, `SELECT setval('weir.watched', pg_sequence_last_value('weir.watched') + 10000)`)
	take(t, conn, worker, taking{held: []string{}})
	if words() != before+1 {
		t.Error("the lease was not renewed after a third of it")
	}
}

// TestTakeTellsOfCancellations: take reports the cancellation of each running job of the worker, and returns no job that was cancelled before.
func TestTakeTellsOfCancellations(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	ids := enqueueN(t, conn, "q", 3)
	held := tokensOf(take(t, conn, worker, atOnce(2)))
	exec(t, conn, `SELECT weir.cancel($1), weir.cancel($2)`, ids[0], ids[2])
	if got := take(t, conn, worker, taking{limits: []int32{5}, held: held, wait: "0"}); len(got) != 1 || got[0].Event != "cancel" || got[0].Token != held[0] {
		t.Errorf("took %+v", got)
	}
	if is := stateOf(t, conn, ids[2]); is != "cancelled 1" { // take ends it, and returns only jobs that are to be run
		t.Errorf("the job that had not started is %q", is)
	}
	got := make(chan []taken, 1)
	go func() { defer close(got); got <- take(t, conn, worker, taking{limits: []int32{0}, held: held[1:]}) }()
	until(t, "take waits", func() bool {
		return value[bool](t, other, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep' AND query LIKE '%weir.take(%' AND pid <> pg_backend_pid())`)
	})
	exec(t, other, `SELECT weir.cancel($1)`, ids[1])
	if rows := append(<-got, take(t, conn, worker, taking{limits: []int32{0}, held: held[1:], wait: "0"})...); len(rows) == 0 || rows[0].Token != held[1] {
		t.Errorf("took %+v", rows)
	}
}

// TestALostAnswerIsMadeGood: the jobs of a lost answer are released at once if the worker reports the loss, and otherwise when its lease is renewed;
// no attempt is used up.
func TestALostAnswerIsMadeGood(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	ids := enqueueN(t, conn, "q", 3)
	kept := takeSome(t, conn, worker, atOnce(1))
	yes := true
	for _, how := range []taking{{limits: []int32{2}, held: tokensOf(kept), lost: &yes, wait: "0"}, {limits: []int32{2}, held: tokensOf(kept), wait: "0"}} {
		if lost := take(t, conn, worker, atOnce(2)); len(lost) != 2 {
			t.Fatalf("took %v", lost)
		}
		if how.lost == nil {
			exec(t, conn, `SELECT setval('weir.watched', pg_sequence_last_value('weir.watched') + 10000)`)
		}
		got := takeSome(t, conn, worker, how)
		if len(got) != 2 || got[0].ID != ids[1] || *got[0].Attempt != 1 {
			t.Fatalf("took %+v", got)
		}
		if refused := recordEnds(t, conn, worker, ends{{"token": got[0].Token, "outcome": "released", "delay": 0}, {"token": got[1].Token, "outcome": "released", "delay": 0}}); len(refused) > 0 {
			t.Fatalf("refused: %v", refused)
		}
	}
	if refused := recordEnds(t, conn, worker, ends{{"token": kept[0].Token}}); len(refused) > 0 {
		t.Errorf("the end of an attempt that was held all the time was refused: %v", refused)
	}
	_, err := conn.Exec(t.Context(), `SELECT weir.take($1, lost => true)`, worker)
	wantCode(t, "lost without held", err, "22023")
}

// TestJobsOfOtherKindsAreHandedBack: jobs of other kinds are released, each time with a longer delay, without using up an attempt.
func TestJobsOfOtherKindsAreHandedBack(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	id := value[int64](t, conn, `SELECT weir.enqueue('q', 'strange')`)
	mine := value[int64](t, conn, `SELECT weir.enqueue('q', 'known')`)
	got := take(t, conn, worker, taking{limits: []int32{10}, kinds: []string{"known"}, wait: "0"})
	if len(got) != 1 || got[0].ID != mine {
		t.Fatalf("took %+v", got)
	}
	if is := value[string](t, conn, `SELECT concat_ws(' ', state, attempt, error) FROM weir.job_info($1)`, id); is != "scheduled 1 no handler for kind strange" {
		t.Errorf("the job of the other kind is %q", is)
	}
	for tries := range 4 {
		if tries > 0 {
			exec(t, conn, `UPDATE weir.later SET run_at = now() WHERE id = $1`, id)
			until(t, "the job is promoted", func() bool {
				exec(t, conn, `CALL weir.chores()`)
				return strings.HasPrefix(stateOf(t, conn, id), "available")
			})
			take(t, conn, worker, taking{limits: []int32{10}, kinds: []string{"known"}, wait: "0"})
		}
		after := value[float64](t, conn, `SELECT extract(epoch FROM run_at - now())::float8 FROM weir.job_info($1)`, id)
		if want := float64(int(1) << tries); after < want*0.75-10 || after > want*1.25 {
			t.Errorf("after %d tries the job waits for %.1f s, want about %.0f", tries+1, after, want)
		}
	}
}

// TestAQueueHasABackoffOfItsOwn: a queue's backoff doubles after each failure, up to its limit; it can be set before the queue is used.
func TestAQueueHasABackoffOfItsOwn(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	if !value[bool](t, conn, `SELECT weir.set('q', 'backoff', '10 minutes') AND weir.set('q', 'backoff_limit', '30 minutes') AND NOT weir.set('none', 'backoff', '2 s') AND weir.set('none', 'backoff_form', 'fixed')`) {
		t.Error("set does not return whether the queue existed")
	}
	if got := column[string](t, conn, `SELECT value FROM weir.settings() WHERE queue = 'none' AND name = 'backoff'`); !slices.Equal(got, []string{"00:00:02"}) {
		t.Errorf("the setting of a queue that was not used yet is %v", got)
	}
	id := enqueueN(t, conn, "q", 1)[0]
	for _, minutes := range []float64{10, 20, 30, 30} {
		got := takeSome(t, conn, worker, atOnce(1))
		recordEnds(t, conn, worker, ends{{"token": got[0].Token, "outcome": "failed"}})
		if after := value[float64](t, conn, `SELECT extract(epoch FROM run_at - now())::float8 / 60 FROM weir.job_info($1)`, id); after < minutes*0.75-1 || after > minutes*1.25 {
			t.Errorf("the job waits for %.1f minutes, want about %.0f", after, minutes)
		}
		exec(t, conn, `UPDATE weir.later SET run_at = now() WHERE id = $1 AND run_at > now()`, id)
		until(t, "the job is promoted", func() bool {
			exec(t, conn, `CALL weir.chores()`)
			return strings.HasPrefix(stateOf(t, conn, id), "available")
		})
	}
	for _, sql := range []string{`SELECT weir.set('q', 'colour', 'red')`, `SELECT weir.set('q', 'backoff', '-1 s')`, `SELECT weir.set('q', 'backoff', NULL)`, `SELECT weir.set('', 'backoff', '1 s')`,
		`SELECT weir.set(repeat('x', 129), 'backoff', '1 s')`, `SELECT weir.set('unborn', 'backoff', '-1 s')`} {
		_, err := conn.Exec(t.Context(), sql)
		wantCode(t, sql, err, "22023")
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.queue WHERE name NOT IN ('q', 'none')`); n != 0 {
		t.Errorf("%d queues were created by what was refused", n)
	}
}

// TestStopHandsBackWhatIsHeld: stop releases the worker's jobs at once, without using up an attempt, and calling it again changes nothing.
func TestStopHandsBackWhatIsHeld(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	ids := enqueueN(t, conn, "q", 3)
	held := take(t, conn, worker, atOnce(3))
	recordEnds(t, conn, worker, ends{{"token": held[0].Token}})
	for range 2 {
		if !value[bool](t, conn, `SELECT weir.stop($1)`, worker) {
			t.Error("stop returned false: it wants to be called again")
		}
	}
	for i, want := range []string{"completed 1", "available 1", "available 1"} {
		if is := value[string](t, conn, `SELECT concat_ws(' ', state, attempt) FROM weir.job_info($1)`, ids[i]); is != want {
			t.Errorf("job %d is %q, want %q", i, is, want)
		}
	}
	_, err := conn.Exec(t.Context(), `SELECT weir.take($1)`, worker)
	wantCode(t, "take after stop", err, "WR001")
	_, err = conn.Exec(t.Context(), `SELECT weir.record($1, $2)`, worker, fmt.Sprintf(`[{"token": %q}]`, held[1].Token))
	wantCode(t, "record after stop", err, "WR001")
	var refused *pgconn.PgError // drivers of other languages show its context
	if !errors.As(err, &refused) || len(refused.Where) > 300 {
		t.Errorf("the context of %v is long:\n%s", err, refused.Where)
	}
	_, err = conn.Exec(t.Context(), `SELECT weir.stop(12345)`)
	wantCode(t, "stop of an unknown worker", err, "WR001")
}

// TestEffectsCommitWithTheirCompletion: complete ends an attempt by its token in the caller's transaction.
func TestEffectsCommitWithTheirCompletion(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	id := enqueueN(t, conn, "q", 1)[0]
	token := take(t, conn, worker, atOnce(1))[0].Token
	for _, end := range []string{`ROLLBACK`, `COMMIT`} {
		exec(t, conn, `BEGIN`)
		exec(t, conn, `SELECT weir.complete($1, $2)`, worker, token)
		exec(t, conn, end)
		if is, want := stateOf(t, conn, id), map[string]string{`ROLLBACK`: "running 1", `COMMIT`: "completed 1"}[end]; is != want {
			t.Errorf("after %s the job is %q", end, is)
		}
	}
	_, err := conn.Exec(t.Context(), `SELECT weir.complete($1, 'x')`, worker)
	wantCode(t, "complete without a token", err, "22023")
}

// TestChoresDoWhatThereIsToDo: chores runs in autocommit, for the role weir_work, in any isolation level; it reports a chore that fails, and
// continues with the next.
func TestChoresDoWhatThereIsToDo(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	left := enqueueN(t, conn, "q", 1)[0]
	take(t, conn, worker, atOnce(1))
	later := value[int64](t, conn, `SELECT weir.enqueue('q', 'k', run_at => now() + interval '1 second')`)
	exec(t, conn, `SET ROLE weir_work`)
	until(t, "both are available", func() bool {
		exec(t, conn, `CALL weir.chores()`)
		exec(t, conn, `RESET ROLE`)
		defer exec(t, conn, `SET ROLE weir_work`)
		exec(t, conn, `SELECT setval('weir.watched_at', pg_sequence_last_value('weir.watched_at') - 2000)`) // lets time pass
		return strings.HasPrefix(stateOf(t, conn, left), "available 2") && strings.HasPrefix(stateOf(t, conn, later), "available")
	})
	exec(t, conn, `RESET ROLE`)
	var warned []string
	config := conn.Config().Copy()
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { warned = append(warned, n.Message) }
	other, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context())
	exec(t, other, `SET default_transaction_isolation = serializable`)
	exec(t, other, `ALTER FUNCTION weir._promote RENAME TO promote_not`)
	exec(t, other, `SELECT weir.enqueue('q', 'k')`)
	exec(t, other, `UPDATE weir.segment SET at = at - interval '2 days'`)
	_, err = other.Exec(t.Context(), `BEGIN; CALL weir.chores(); COMMIT`, pgx.QueryExecModeSimpleProtocol)
	wantCode(t, "in a transaction", err, "2D000")
	exec(t, other, `ROLLBACK`)
	exec(t, other, `CALL weir.chores()`)
	if len(warned) != 1 || !strings.Contains(warned[0], "promote") {
		t.Errorf("warned %v", warned)
	}
	if n := value[int](t, other, `SELECT count(*) FROM weir.segment WHERE log = 'job' AND at > now() - interval '1 day'`); n == 0 {
		t.Error("no segment was opened")
	}
}

// TestStartRebasesALogFromElsewhere: start rebases a log that was moved from another cluster, so that workers in SQL need not know about it.
func TestStartRebasesALogFromElsewhere(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	old := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	enqueueN(t, conn, "q", 2)
	take(t, conn, old, atOnce(1))
	moveElsewhere(t, conn)
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	if got := take(t, conn, worker, atOnce(5)); len(got) != 2 {
		t.Errorf("took %+v", got)
	}
	_, err := conn.Exec(t.Context(), `SELECT weir.take($1)`, old)
	wantCode(t, "take by a worker from before the move", err, "WR001")
}

// TestTakeRefusesWhatCannotBeRight: take refuses invalid arguments, and claims nothing.
func TestTakeRefusesWhatCannotBeRight(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	worker := value[int32](t, conn, `SELECT weir.start('w', ARRAY['q'])`)
	enqueueN(t, conn, "q", 1)
	for sql, code := range map[string]string{
		`SELECT weir.take(%d, ARRAY['other'])`:                           "22023",
		`SELECT weir.take(%d, ARRAY['q'], ARRAY[1, 2])`:                  "22023",
		`SELECT weir.take(%d, ARRAY['q'], ARRAY[NULL]::integer[])`:       "22023",
		`SELECT weir.take(%d, ARRAY['q'], ARRAY[-5])`:                    "22023",
		`BEGIN READ ONLY; SELECT weir.take(%d)`:                          "WR004",
		`SELECT weir.take(%d, held => ARRAY['x'])`:                       "22023",
		`SELECT weir.take(%d, held => ARRAY[NULL])`:                      "22023",
		`SELECT weir.take(-%d)`:                                          "WR001",
		`BEGIN; SELECT pg_current_xact_id(); SELECT weir.take(%d)`:       "WR004",
		`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT weir.take(%d)`:    "WR004",
		`BEGIN; SELECT pg_sleep(1.1); SELECT weir.take(%d, wait => '0')`: "55000",
	} {
		_, err := conn.PgConn().Exec(t.Context(), fmt.Sprintf(sql, worker)).ReadAll()
		wantCode(t, sql, err, code)
		exec(t, conn, `ROLLBACK`)
	}
	for args, says := range map[string]string{
		`ARRAY['q'], ARRAY[1, 2]`: "take got 1 queues and 2 limits", `NULL, ARRAY[0, 0]`: "take got 1 queues and 2 limits", `ARRAY['q'], '{}'`: "take got 1 queues and 0 limits",
		`NULL, ARRAY[-5]`: `take got the limit -5, for queue "q"`,
	} {
		_, err := conn.Exec(t.Context(), `SELECT weir.take($1, `+args+`)`, worker)
		if sqlstate(err) != "22023" || !strings.Contains(err.Error(), says) {
			t.Errorf("take says %v, want %q", err, says)
		}
	}
	if got := take(t, conn, worker, atOnce(1)); len(got) != 1 {
		t.Errorf("took %+v", got)
	}
	for _, lease := range []string{"0.5 s", "6 minutes"} {
		_, err := conn.Exec(t.Context(), `SELECT weir.start('w', ARRAY['q'], $1::text::interval)`, lease)
		wantCode(t, lease, err, "22023")
	}
	for _, queues := range []string{`NULL`, `'{}'`, `ARRAY['q', NULL]`} {
		_, err := conn.Exec(t.Context(), `SELECT weir.start('w', `+queues+`)`)
		wantCode(t, "queues "+queues, err, "22023")
	}
}
