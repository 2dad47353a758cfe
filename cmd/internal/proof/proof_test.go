package proof

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/pgtest"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0: WEIR_TEST_SEED, or else a new seed")
	longFlag = flag.Duration("long", 0, "how long the random tests load the server; 0: a few seconds")
	update   = flag.Bool("update", false, "write the golden file")
)

// patience limits every wait in these tests.
const patience = time.Minute

func TestMain(m *testing.M) {
	if text := os.Getenv(partOf); text != "" {
		if err := playPart(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	pgtest.Main(m)
}

// querier is a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// attempt is a row of weir._claim.
type attempt struct {
	Queue   string
	Lane    int64
	Seq     int64
	ID      int64
	Attempt int32
	Max     int32
	Kind    string
	Key     string // args->>'k'
	Dropped *string
	PutOff  int32
}

// step is the number of an attempt, and how often it was snoozed or released before.
type step struct{ attempt, putOff int32 }

func (a attempt) step() step { return step{a.Attempt, a.PutOff} }

// someEndings are outcomes of attempts for random tests, each as often as it stands there.
var someEndings = []string{"completed", "completed", "completed", "failed", "cancelled", "retried", "snoozed", "released"}

// after returns the step that comes after an attempt with an outcome; final: none does.
func (t step) after(outcome string) (next step, final bool) {
	switch outcome {
	case "retried":
		return step{t.attempt + 1, 0}, false
	case "snoozed", "released":
		return step{t.attempt, t.putOff + 1}, false
	}
	return t, true
}

// follows reports whether a step comes right after another.
func (t step) follows(before step) bool {
	return t == step{before.attempt + 1, 0} || t == step{before.attempt, before.putOff + 1}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, q querier, sql string, args ...any) {
	t.Helper()
	if _, err := q.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value returns the single value of a query.
func value[T any](t *testing.T, q querier, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := q.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// column returns the values of a query with a single column.
func column[T any](t *testing.T, q querier, sql string, args ...any) []T {
	t.Helper()
	rows, err := q.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return all
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	pgtest.Until(t, what, holds)
}

// sqlstate returns the error's SQLSTATE, or "" if it has none.
func sqlstate(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// wantCode fails the test unless the error has the SQLSTATE.
func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	if sqlstate(err) != code {
		t.Errorf("%s: got %v, want SQLSTATE %s", what, err, code)
	}
}

// newSeed returns the seed of a random test and prints it.
func newSeed(t *testing.T) uint64 {
	t.Helper()
	seed := *seedFlag
	if text := os.Getenv("WEIR_TEST_SEED"); seed == 0 && text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("WEIR_TEST_SEED=%s must be a number", text)
		}
	}
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("reproduce the plan with: go test ./cmd/internal/proof -run '^%s$' -seed %d", t.Name(), seed)
	return seed
}

// startWorker registers a worker.
func startWorker(t *testing.T, q querier, queues ...string) int32 {
	t.Helper()
	return value[int32](t, q, `SELECT weir._start($1, $2)`, t.Name(), queues)
}

func claim(ctx context.Context, q querier, worker int32, queues []string, limits []int32) ([]attempt, error) {
	rows, err := q.Query(ctx, `SELECT queue, lane, seq, id, attempt, max_attempts, kind, coalesce(args->>'k', ''), dropped, put_off
		FROM weir._claim($1, $2, $3) WHERE id IS NOT NULL`, worker, queues, limits)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[attempt])
}

// mustClaim claims from one queue.
func mustClaim(t *testing.T, q querier, worker int32, queue string, limit int32) []attempt {
	t.Helper()
	got, err := claim(t.Context(), q, worker, []string{queue}, []int32{limit})
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	return got
}

// claimAll claims from one queue until it is empty.
func claimAll(t *testing.T, q querier, worker int32, queue string) []attempt {
	t.Helper()
	var all []attempt
	for range 10_000 {
		got := mustClaim(t, q, worker, queue, 960)
		if len(got) == 0 {
			return all
		}
		all = append(all, got...)
	}
	t.Fatalf("queue %s does not become empty", queue)
	return nil
}

// endedBatches inserts batches of one job each, which a worker has claimed and completed, in a separate lane. Claiming that many would take long.
func endedBatches(t *testing.T, q querier, worker int32, n int) {
	t.Helper()
	exec(t, q, `SELECT weir.enqueue('ended', 'k')`)
	exec(t, q, `WITH made AS (
			INSERT INTO weir.batch (lane, segment, origin, worker, seq, from_xid, to_xid, pos_xid, pos_id, total, claimed_at, no, ids)
			SELECT (SELECT j.lane FROM weir.job j JOIN weir.queue q ON q.id = j.lane >> 39 WHERE q.name = 'ended'),
				1, 1, $1, i, '3', '3', '3', i, i, now(), nextval('weir.batch_no'), ARRAY[-i] FROM generate_series(1, $2::int) i
			RETURNING lane, segment, worker, seq, ids)
		INSERT INTO weir.result (lane, segment, worker, seq, finished_at, outcome, ids)
		SELECT m.lane, m.segment, m.worker, m.seq, now(), 'completed', m.ids FROM made m`, worker, n)
}

// complete records attempts as completed in one call. If any is refused, the error is that of the first, with WR002 for a lost one.
func complete(ctx context.Context, q querier, worker int32, done []attempt) error {
	refused, err := record(ctx, q, worker, done, "completed", nil)
	for _, r := range refused {
		if r.Refusal != "ended" {
			return refusalError(r)
		}
	}
	return err
}

// refusal is a row of weir._record.
type refusal struct {
	Place   int
	Refusal string
	Detail  string
}

func refusalError(r refusal) error {
	code := map[string]string{"lost": "WR002", "busy": "55P03", "invalid": "22023"}[r.Refusal]
	return &pgconn.PgError{Code: code, Message: fmt.Sprintf("element %d is %s: %s", r.Place, r.Refusal, r.Detail)}
}

// record records the same outcome for attempts, with those of a batch next to each other, in one call.
func record(ctx context.Context, q querier, worker int32, done []attempt, outcome string, runAt *time.Time) ([]refusal, error) {
	done = slices.Clone(done)
	slices.SortStableFunc(done, func(a, b attempt) int { return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Seq, b.Seq)) })
	lanes, seqs, sizes, ids := []int64{}, []int64{}, []int32{}, []int64{}
	for i, a := range done {
		if i == 0 || a.Lane != done[i-1].Lane || a.Seq != done[i-1].Seq {
			lanes, seqs, sizes = append(lanes, a.Lane), append(seqs, a.Seq), append(sizes, 0)
		}
		sizes[len(sizes)-1]++
		ids = append(ids, a.ID)
	}
	sql, args := `SELECT place, refusal, coalesce(detail, '') FROM weir._record($1, $2, $3, $4, $5)`, []any{worker, lanes, seqs, sizes, ids}
	if outcome != "completed" {
		outcomes, errors, runAts := []string{}, []string{}, []*time.Time{}
		for _, a := range done {
			outcomes, errors, runAts = append(outcomes, outcome), append(errors, "said by "+a.Kind), append(runAts, runAt)
		}
		sql, args = `SELECT place, refusal, coalesce(detail, '') FROM weir._record($1, $2, $3, $4, $5, $6, $7, NULL, $8)`, append(args, outcomes, errors, runAts)
	}
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[refusal])
}

func mustComplete(t *testing.T, q querier, worker int32, done []attempt) {
	t.Helper()
	if err := complete(t.Context(), q, worker, done); err != nil {
		t.Fatalf("complete: %v", err)
	}
}

// finish records an attempt with an outcome, and with the time of the next attempt unless runAt is zero; false: it had already ended.
func finish(ctx context.Context, q querier, worker int32, a attempt, outcome string, runAt time.Time) (bool, error) {
	var at *time.Time
	if !runAt.IsZero() {
		at = &runAt
	}
	refused, err := record(ctx, q, worker, []attempt{a}, outcome, at)
	switch {
	case err != nil:
		return false, err
	case len(refused) == 0:
		return true, nil
	case refused[0].Refusal == "ended":
		return false, nil
	}
	return false, refusalError(refused[0])
}

// completeTx completes an attempt in the caller's transaction.
func completeTx(ctx context.Context, q querier, worker int32, a attempt) error {
	_, err := q.Exec(ctx, `SELECT weir._complete($1, $2, $3, $4)`, worker, a.Lane, a.Seq, a.ID)
	return err
}

// settle logs the unfinished attempts of a fenced worker again, and returns their number.
func settle(t *testing.T, q querier, worker int32) (relogged int) {
	t.Helper()
	for more := true; more; {
		var n int
		if err := q.QueryRow(t.Context(), `SELECT relogged, more FROM weir._settle($1)`, worker).Scan(&n, &more); err != nil {
			t.Fatalf("settle: %v", err)
		}
		relogged += n
	}
	return relogged
}

// reconcile reports the attempts that a worker holds, and returns how many others were released.
func reconcile(ctx context.Context, q querier, worker int32, held []attempt) (released int, err error) {
	held = slices.Clone(held)
	slices.SortStableFunc(held, func(a, b attempt) int { return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Seq, b.Seq)) })
	lanes, seqs, sizes, ids := []int64{}, []int64{}, []int32{}, []int64{}
	for i, a := range held {
		if i == 0 || a.Lane != held[i-1].Lane || a.Seq != held[i-1].Seq {
			lanes, seqs, sizes = append(lanes, a.Lane), append(seqs, a.Seq), append(sizes, 0)
		}
		sizes[len(sizes)-1]++
		ids = append(ids, a.ID)
	}
	for next := new(int64); next != nil; {
		var n int
		if err := q.QueryRow(ctx, `SELECT released, next FROM weir._reconcile($1, $2, $3, $4, $5, $6)`, worker, lanes, seqs, sizes, ids, *next).Scan(&n, &next); err != nil {
			return released, err
		}
		released += n
	}
	return released, nil
}

// enqueueN enqueues n jobs of one kind, with their numbers from 1 as keys.
func enqueueN(t *testing.T, q querier, queue string, n int) []int64 {
	t.Helper()
	return value[[]int64](t, q, `SELECT weir.enqueue_many(array_agg($1::text), array_agg('k'::text),
		array_agg(jsonb_build_object('k', n::text) ORDER BY n)) FROM generate_series(1, $2::integer) n`, queue, n)
}

// idsOf returns the ids in the order of the attempts.
func idsOf(all []attempt) []int64 {
	ids := []int64{}
	for _, a := range all {
		ids = append(ids, a.ID)
	}
	return ids
}

// rotateUntil rotates until a step is reported that starts with the prefix.
func rotateUntil(t *testing.T, q querier, prefix string) string {
	t.Helper()
	var did string
	until(t, "rotate reports "+prefix, func() bool {
		did = value[string](t, q, `SELECT coalesce(weir._rotate(), weir._rotate_history(), '')`)
		return strings.HasPrefix(did, prefix)
	})
	return did
}
