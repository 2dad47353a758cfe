package main

import (
	"context"
	_ "embed"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/moving"
	"github.com/weir-pg/weir/internal/pgtest"
)

const movingPage = "../../docs/moving-from-river.md"

//go:embed moving_test.go
var movingSource string

type Welcome struct {
	Account int64 `json:"account"`
}

func (Welcome) Kind() string { return "welcome" }

type WelcomeWorker struct {
	river.WorkerDefaults[Welcome]
	mailer *Mailer
}

func (w *WelcomeWorker) Work(ctx context.Context, job *river.Job[Welcome]) error {
	return w.mailer.Welcome(ctx, job.Args)
}

// NextRetry is later than the test.
func (w *WelcomeWorker) NextRetry(*river.Job[Welcome]) time.Time { return time.Now().Add(time.Hour) }

// Jobs is what a program enqueues by during the move.
type Jobs struct {
	River       *river.Client[pgx.Tx]
	Weir        *weir.Client
	MovedToWeir bool
}

// EnqueueWelcome decides in one place, so that a kind can be moved, and moved back, by a setting.
func (q *Jobs) EnqueueWelcome(ctx context.Context, tx pgx.Tx, account int64) error {
	if q.MovedToWeir {
		_, err := q.Weir.EnqueueTx(ctx, tx, Welcome{account}, &weir.Options{Queue: "mail"})
		return err
	}
	_, err := q.River.InsertTx(ctx, tx, Welcome{account}, &river.InsertOpts{Queue: "mail"})
	return err
}

// Accounts that Mailer treats specially.
const (
	refused = 10_000 // from here on, mail is refused
	slow    = 20_000 // from here on, a mail takes until the test releases it
)

// Mailer sends welcome mails to accounts, and records them in a ledger.
type Mailer struct {
	pool *pgxpool.Pool
	slow chan struct{}
}

func (m *Mailer) Welcome(ctx context.Context, w Welcome) error {
	switch {
	case w.Account >= slow:
		select {
		case <-m.slow:
		case <-ctx.Done():
			return ctx.Err()
		}
	case w.Account >= refused:
		return errors.New("mailbox full")
	}
	_, err := m.pool.Exec(ctx, `INSERT INTO ledger (account) VALUES ($1)`, w.Account)
	return err
}

// both contains River's client and Weir's worker in one process, on a private database.
type both struct {
	pool   *pgxpool.Pool
	mailer *Mailer
	old    *river.Client[pgx.Tx]
	client *weir.Client
	worker *weir.Worker
}

func startBoth(t *testing.T) both {
	t.Helper()
	ctx := t.Context()
	pool := pgtest.Pool(t, pgtest.Database(t))
	if err := pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return riverEngine{}.Install(ctx, c.Conn()) }); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE ledger (account bigint NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	mailer := &Mailer{pool: pool, slow: make(chan struct{})}
	workers := river.NewWorkers()
	river.AddWorker(workers, &WelcomeWorker{mailer: mailer})
	old, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Workers: workers,
		Queues:  map[string]river.QueueConfig{"mail": {MaxWorkers: 20}},
	})
	if err != nil {
		t.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[Welcome]) error {
		return mailer.Welcome(ctx, job.Args)
	})
	client := weir.NewClient(pool)
	worker, err := client.NewWorker(weir.WorkerConfig{
		Handlers: handlers,
		Queues:   map[string]int{"mail": 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := both{pool, mailer, old, client, worker}
	if err := old.Start(context.WithoutCancel(ctx)); err != nil {
		t.Fatal(err)
	}
	ends, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ends) }() // ends with the test, which waits for it
	t.Cleanup(func() {
		stop()
		if err := pgtest.Receive(t, ended, "it has ended"); err != nil {
			t.Error(err)
		}
		bounded, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := old.Stop(bounded); err != nil {
			t.Error(err)
		}
	})
	return b
}

// count returns the number that a query returns.
func (b both) count(t *testing.T, query string, args ...any) (n int64) {
	t.Helper()
	if err := b.pool.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// insert puts jobs for n accounts into River.
func (b both) insert(t *testing.T, from, n int64, options river.InsertOpts) {
	t.Helper()
	options.Queue = "mail"
	var jobs []river.InsertManyParams
	for account := from; account < from+n; account++ {
		jobs = append(jobs, river.InsertManyParams{Args: Welcome{account}, InsertOpts: &options})
	}
	if _, err := b.old.InsertManyFast(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
}

// TestMovingFromRiverLosesNoJobAndRunsNoneTwice: after the steps of the page, every job has run once.
func TestMovingFromRiverLosesNoJobAndRunsNoneTwice(t *testing.T) {
	t.Parallel()
	page := moving.Read(t, movingPage)
	b := startBoth(t)
	const waiting, scheduled, retried, discarded = 5_000, 300, 200, 7
	in := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	b.insert(t, slow, 1, river.InsertOpts{})
	b.insert(t, refused, retried, river.InsertOpts{})
	b.insert(t, refused+retried, discarded, river.InsertOpts{MaxAttempts: 1})
	pgtest.Until(t, "River has a job running, some that failed, and some that failed for good", func() bool {
		return b.count(t, `SELECT count(*) FROM river_job WHERE state IN ('running', 'retryable', 'discarded')`) == 1+retried+discarded
	})
	b.insert(t, 0, waiting, river.InsertOpts{Priority: 3})
	b.insert(t, waiting, scheduled, river.InsertOpts{ScheduledAt: in})

	// Two movers run at the same time, while River's workers work, until no job waits.
	var movers sync.WaitGroup
	failed := make(chan error, 2)
	moved := make(chan int64, 1_000)
	statement := page.Block(t, "4. Move what waits", "sql")
	for range 2 {
		movers.Go(func() {
			for {
				var n int64
				if err := b.pool.QueryRow(t.Context(), statement).Scan(&n); err != nil || n == 0 {
					failed <- err
					return
				}
				moved <- n
			}
		})
	}
	movers.Wait()
	close(moved)
	if err := errors.Join(<-failed, <-failed); err != nil {
		t.Fatal(err)
	}
	var total int64
	for n := range moved {
		total += n
	}
	if total < scheduled+retried {
		t.Fatalf("%d jobs were moved, want at least the %d scheduled and %d failed ones", total, scheduled, retried)
	}
	if left := b.count(t, `SELECT count(*) FROM river_job WHERE state IN ('available', 'scheduled', 'retryable')`); left != 0 {
		t.Errorf("%d jobs still wait in River", left)
	}

	pgtest.Until(t, "every waiting job has run", func() bool {
		return b.count(t, `SELECT count(DISTINCT account) FROM ledger WHERE account < $1`, waiting) == waiting
	})
	close(b.mailer.slow)
	rows := page.Block(t, "5. Stop River", "sql")
	pgtest.Until(t, "River has nothing left to do", func() bool {
		return b.count(t, `SELECT count(*) FROM (`+strings.TrimRight(rows, ";\n")+`) AS left_over`) == 0
	})
	if twice := b.count(t, `SELECT count(*) FROM (SELECT FROM ledger GROUP BY account HAVING count(*) > 1)`); twice != 0 {
		t.Errorf("%d jobs ran twice", twice)
	}
	if n := b.count(t, `SELECT count(*) FROM ledger`); n != waiting+1 {
		t.Errorf("the ledger has %d accounts, want %d", n, waiting+1)
	}
	if n := b.count(t, `SELECT count(*) FROM river_job WHERE state = 'discarded'`); n != discarded {
		t.Errorf("River's history has %d discarded jobs, want %d", n, discarded)
	}

	// Scheduled jobs keep their time, their priority, and their remaining attempts.
	if n := b.count(t, `SELECT count(*) FROM weir.scheduled_jobs WHERE run_at = $1 AND max_attempts = 25 AND priority = 1`, in); n != scheduled {
		t.Errorf("%d jobs have kept their schedule, want %d", n, scheduled)
	}
	if n := b.count(t, `SELECT count(*) FROM weir.scheduled_jobs WHERE max_attempts = 24 AND (meta->'river'->>'attempt')::int = 1`); n != retried {
		t.Errorf("%d failed jobs have 24 attempts left, want %d", n, retried)
	}
	if n := b.count(t, `SELECT count(*) FROM weir.scheduled_jobs`); n != scheduled+retried {
		t.Errorf("%d jobs wait for their time, want %d", n, scheduled+retried)
	}
}

// TestMovingFromRiverIsOneStatementThatCanBeEnded: the move can be rolled back, and then leaves all jobs in River.
func TestMovingFromRiverIsOneStatementThatCanBeEnded(t *testing.T) {
	t.Parallel()
	b := startBoth(t)
	ctx := t.Context()
	b.insert(t, 0, 100, river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)})
	tx, err := b.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var moved int
	if err := tx.QueryRow(ctx, moving.Read(t, movingPage).Block(t, "4. Move what waits", "sql")).Scan(&moved); err != nil || moved != 100 {
		t.Fatalf("moved %d: %v", moved, err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if old, now := b.count(t, `SELECT count(*) FROM river_job`), b.count(t, `SELECT count(*) FROM weir.scheduled_jobs`); old != 100 || now != 0 {
		t.Errorf("after a rollback River has %d jobs and Weir %d, want 100 and 0", old, now)
	}
}

// TestMovingFromRiverMovesNothingWhereWeirRefusesAJob: if Weir refuses a job, the move moves nothing, until the job is left out.
func TestMovingFromRiverMovesNothingWhereWeirRefusesAJob(t *testing.T) {
	t.Parallel()
	b := startBoth(t)
	ctx := t.Context()
	b.insert(t, 0, 10, river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)})
	if _, err := b.pool.Exec(ctx, `UPDATE river_job SET args = jsonb_build_object('account', repeat('9', 1 << 20)) WHERE args->>'account' = '5'`); err != nil {
		t.Fatal(err)
	}
	statement := moving.Read(t, movingPage).Block(t, "4. Move what waits", "sql")
	var moved int
	if err := b.pool.QueryRow(ctx, statement).Scan(&moved); err == nil || !strings.Contains(err.Error(), "22023") {
		t.Fatalf("moved %d jobs although one is too large: %v", moved, err)
	}
	if n := b.count(t, `SELECT count(*) FROM river_job`); n != 10 {
		t.Errorf("River has %d of 10 jobs after that", n)
	}
	without := strings.Replace(statement, "AND kind", "AND octet_length(args::text) <= 1048576 AND kind", 1)
	if err := b.pool.QueryRow(ctx, without).Scan(&moved); err != nil || moved != 9 {
		t.Errorf("moved %d, want the 9 others: %v", moved, err)
	}
}

// TestMovingFromRiverEnqueuesIntoOneOfTheTwoInOneTransaction: the page's switch puts each job into one of the two queues, or none after a rollback.
func TestMovingFromRiverEnqueuesIntoOneOfTheTwoInOneTransaction(t *testing.T) {
	t.Parallel()
	moving.Read(t, movingPage).IsIn(t, "go", movingSource)
	b := startBoth(t)
	ctx := t.Context()
	undo := errors.New("undo")
	for i, movedToWeir := range []bool{false, true} {
		q := &Jobs{River: b.old, Weir: b.client, MovedToWeir: movedToWeir}
		for account, want := range map[int64]error{int64(10 + i): nil, int64(20 + i): undo} {
			err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
				if err := q.EnqueueWelcome(ctx, tx, account); err != nil {
					return err
				}
				return want
			})
			if !errors.Is(err, want) {
				t.Fatal(err)
			}
		}
	}
	pgtest.Until(t, "both jobs that were committed have run", func() bool {
		return b.count(t, `SELECT count(*) FROM ledger WHERE account IN (10, 11)`) == 2
	})
	if n := b.count(t, `SELECT count(*) FROM river_job`); n != 1 {
		t.Errorf("River has %d jobs, want the one that was committed before the move", n)
	}
	if n := b.count(t, `SELECT count(*) FROM ledger`); n != 2 {
		t.Errorf("%d jobs have run, want the two that were committed", n)
	}
}
