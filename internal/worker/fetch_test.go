package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// TestAClaimAfterOneThatTookTooLongMayTakeLonger: what a claim had to do is still to be done by the next one, so a time limit that it did not meet
// would never be met.
func TestAClaimAfterOneThatTookTooLongMayTakeLonger(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := pgtest.Pool(t, pgtest.Database(t))
	st := store.New(pool, 0)
	w := New(Config{Queues: map[string]int{"q": 1}, Lease: time.Hour, Store: st})
	id, err := st.StartWorker(ctx, "claims", w.queues, nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(w, id, time.Now())
	defer s.lease.stop()
	claim := func() error {
		_, _, _, err := s.claim(ctx, []int32{1}, &hint{session: s, left: map[string]bool{}})
		return err
	}
	if err := claim(); err != nil || s.patience != claimTimeout {
		t.Errorf("after a claim (%v), the next one may take %v, want %v", err, s.patience, claimTimeout)
	}

	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(1464158552, $1)`, id); err != nil { // the worker's claims
		t.Fatal(err)
	}
	s.patience = 10 * time.Millisecond
	if err := claim(); !errors.Is(err, context.DeadlineExceeded) || s.patience != longClaimTimeout {
		t.Errorf("after a claim that took too long (%v), the next one may take %v, want %v", err, s.patience, longClaimTimeout)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := claim(); err != nil || s.patience != claimTimeout {
		t.Errorf("after a claim that took longer (%v), the next one may take %v, want %v", err, s.patience, claimTimeout)
	}
}

// TestJobsGatherNoLongerThanAFullQueueIsFull: after a claim, jobs gather for a moment; but if a queue had more than room, its jobs are claimed once it has room.
func TestJobsGatherNoLongerThanAFullQueueIsFull(t *testing.T) {
	t.Parallel()
	s := newSession(New(Config{Queues: map[string]int{"full": 1, "other": 2}, Lease: time.Hour}), 1, time.Now())
	defer s.lease.stop()
	full, other := s.byName["full"], s.byName["other"]
	full.filled = true
	full.inFlight.Store(1)
	other.inFlight.Store(1)
	gathered := make(chan struct{})
	go func() {
		s.letGather(t.Context(), time.Hour)
		close(gathered)
	}()
	s.freed(other, time.Second)
	pgtest.Until(t, "the end of the other queue's job is noticed", func() bool { return len(s.room) == 0 })
	select {
	case <-gathered:
		t.Error("jobs gather no longer, because of a queue that had fewer than room")
	default:
	}
	s.freed(full, time.Second)
	pgtest.Receive(t, gathered, "the end of gathering")
}

// TestAWorkerThatAwaitsItsTurnWorksItsOtherQueues: others are before it in a queue at its limit, so it leaves that alone for minutes; meanwhile jobs of
// another queue start: one that is enqueued, one for which there is room again, and one for which an attempt has freed a slot of that queue's limit.
func TestAWorkerThatAwaitsItsTurnWorksItsOtherQueues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare string // with other, a worker of the other queue
		busy    int    // how many of the runners of the other queue
		before  func(t *testing.T, s *session, other int32, exec func(string, ...any))
	}{
		"a new job": {``, 0, func(_ *testing.T, _ *session, _ int32, exec func(string, ...any)) {
			exec(`SELECT weir.enqueue('other', 'k')`)
		}},
		"room": {`SELECT weir.enqueue('other', 'k'), $1::int`, 1, func(_ *testing.T, s *session, _ int32, _ func(string, ...any)) {
			s.freed(s.byName["other"], time.Second)
		}},
		"a slot": {`SELECT weir.set_limit('other', running => 1), weir.enqueue('other', 'k'), weir.enqueue('other', 'k'), $1::int`, 0, func(t *testing.T, s *session, other int32, exec func(string, ...any)) {
			exec(`SELECT weir._record($1, ARRAY[h.lane], ARRAY[h.seq], '{1}', h.ids) FROM weir._holds($1) h`, other)
			s.released <- struct{}{} // as if that attempt were this worker's
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			url := pgtest.Database(t)
			pool, observer := pgtest.Pool(t, url), pgtest.Pool(t, url)
			exec := func(query string, args ...any) {
				t.Helper()
				if _, err := observer.Exec(t.Context(), query, args...); err != nil {
					t.Fatal(err)
				}
			}
			st, log := store.New(pool, 0), slog.New(slog.NewTextHandler(t.Output(), nil))
			w := New(Config{Queues: map[string]int{"limited": 5, "other": 1}, Lease: time.Hour, Store: st, Poll: 5 * time.Millisecond, Log: log, Outage: outage.New(log)})
			exec(`SELECT weir.set_limit('limited', running => 1)`)
			exec(`SELECT weir.enqueue('limited', 'k')`)
			start := func() int32 {
				t.Helper()
				id, err := st.StartWorker(t.Context(), "turns", w.queues, nil, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				return id
			}
			other := start()
			if c.prepare != "" {
				exec(c.prepare, other)
			}
			if c.busy == 0 {
				exec(`SELECT count(c) FROM (SELECT weir._claim($1, '{other}', '{1}') c) c`, other)
			}
			s := newSession(w, start(), time.Now())
			defer s.lease.stop()
			started := make(chan struct{}, 1)
			s.byName["other"].start = func() { started <- struct{}{} }
			s.byName["other"].inFlight.Store(int64(c.busy))
			s.byName["limited"].start = func() { t.Error("a job starts in spite of those before it") }
			s.owes, s.missed = true, 2*missedMost
			s.sharing.Store(100_000)

			before, err := observer.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for place := range 4 { // others have the gate and the places behind it
				if _, err := before.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1464158560, gate # ($1 << 29)) FROM weir.queue WHERE name = 'limited'`, place); err != nil {
					t.Fatal(err)
				}
			}
			ended := make(chan struct{})
			go func() {
				_ = s.fetch(ctx)
				close(ended)
			}()
			pgtest.Until(t, "it has tried", func() bool {
				var tried bool
				return observer.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND query LIKE '%FROM weir.' || '_claim(%')
					OR EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%FROM weir.' || '_watch(%')`).Scan(&tried) == nil && tried
			})
			c.before(t, s, other, exec)
			pgtest.Receive(t, started, "the start of a job of the other queue")
			stop()
			pgtest.Receive(t, ended, "the end of the fetcher")
			_ = before.Rollback(t.Context())
		})
	}
}

// TestASilentServerHoldsUpNoStop: a worker that stops waits for answers, but not for as long as its calls may take. What was claimed all the same is logged again.
func TestASilentServerHoldsUpNoStop(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	st := store.New(pool, 0)
	id, err := st.StartWorker(t.Context(), "stops", []string{"q"}, nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for range pool.Config().MaxConns { // nobody answers from now on
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	stopping, stop := context.WithCancel(t.Context())
	stop()
	ended := map[string]chan error{}
	for what, call := range map[string]func(*session) error{
		"a claim": func(s *session) error {
			s.patience = time.Hour
			_, _, _, err := s.claim(stopping, []int32{1}, &hint{session: s, left: map[string]bool{}})
			return err
		},
		"a poll": func(s *session) error {
			_, err := s.rest(stopping, &watch{store: st}, false, time.Now(), time.Time{})
			return err
		},
		"a comparison": func(s *session) error {
			s.doubtful = true
			return (&reconciler{session: s}).compare(stopping)
		},
	} {
		s := newSession(New(Config{Queues: map[string]int{"q": 1}, Lease: time.Hour, Poll: PollEvery, Store: st}), id, time.Now())
		defer s.lease.stop()
		done := make(chan error, 1)
		ended[what] = done
		go func() { done <- call(s) }()
	}
	for what, err := range ended {
		if err := pgtest.Receive(t, err, what+" is given up"); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// mute is a hub that never has anything to tell.
type mute struct{}

func (mute) Wait(ctx context.Context, _ []string, _ string) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

// TestASilentServerHoldsUpAStopOnce: a worker that waits at a hub gives up a poll, and begins no other.
func TestASilentServerHoldsUpAStopOnce(t *testing.T) {
	t.Parallel()
	config := pgtest.Pool(t, pgtest.Database(t)).Config()
	polls := make(chan struct{}, 1)
	config.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) {
		polls <- struct{}{}
		<-ctx.Done() // nobody answers
		return false, ctx.Err()
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := newSession(New(Config{Queues: map[string]int{"q": 1}, Lease: time.Hour, Idle: time.Millisecond, Hub: mute{}, Store: store.New(pool, 0)}), 1, time.Now())
	defer s.lease.stop()
	h := &hubWait{session: s}
	defer h.stop()
	stopping, stop := context.WithCancel(t.Context())
	defer stop()
	over := make(chan bool, 1)
	go func() { over <- h.rest(stopping, &watch{store: s.Store}) }()
	pgtest.Receive(t, polls, "the worker polls")
	stop()
	if !pgtest.Receive(t, over, "the poll is given up") {
		t.Error("another poll begins")
	}
}

// gone is a hub that can't be reached.
type gone struct{ asked func() }

func (g gone) Wait(context.Context, []string, string) (string, error) {
	g.asked()
	return "", errors.New("it is gone")
}

// TestAPollThatIsGivenUpHasNotWorked: a worker that stops while its server is silent does not say that it answers again.
func TestAPollThatIsGivenUpHasNotWorked(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	id, err := store.New(pgtest.Pool(t, url), 0).StartWorker(t.Context(), "stops", []string{"q"}, nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	var silent atomic.Bool
	polls := make(chan struct{}, 1)
	config.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) {
		if !silent.Load() {
			return true, nil
		}
		polls <- struct{}{}
		<-ctx.Done()
		return false, ctx.Err()
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	out := outage.New(log)
	out.Failed("polls for work", errors.New("the one before"))
	s := newSession(New(Config{
		Queues: map[string]int{"q": 1}, Lease: time.Hour, Poll: time.Millisecond, Hub: gone{func() { silent.Store(true) }}, Store: store.New(pool, 0), Log: log, Outage: out,
	}), id, time.Now())
	defer s.lease.stop()
	stopping, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.fetch(stopping) }()
	pgtest.Receive(t, polls, "the worker polls")
	stop()
	if err := pgtest.Receive(t, ended, "the poll is given up"); err != nil {
		t.Error(err)
	}
	if len(out.Troubles()) != 1 {
		t.Error("polls are said to work")
	}
}

// TestCallsOutlastTheStopALittle: no call that a worker makes before it stops is given up at once, and none goes on for long.
func TestCallsOutlastTheStopALittle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		defer stop()
		short, cancel := outlasting(stopping, time.Second)
		defer cancel()
		long, cancel := outlasting(stopping, time.Hour)
		defer cancel()
		began := time.Now()
		<-short.Done()
		if took := time.Since(began); took != time.Second {
			t.Errorf("without a stop, a call may take %v", took)
		}
		stop()
		began = time.Now()
		<-long.Done()
		if took := time.Since(began); took != stopGrace {
			t.Errorf("after the stop, a call may take %v", took)
		}
	})
}

// TestAClaimWithoutAnAnswerUsesUpNoAttempt: nobody has begun the jobs of a claim that a worker gave up when it stopped, not even those that have a single attempt.
func TestAClaimWithoutAnAnswerUsesUpNoAttempt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := pgtest.Pool(t, pgtest.Database(t))
	st, log := store.New(pool, 0), slog.New(slog.NewTextHandler(t.Output(), nil))
	var ids [2]int32
	for i := range ids {
		id, err := st.StartWorker(ctx, "claims", []string{"q"}, nil, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = id
	}
	if _, err := pool.Exec(ctx, `SELECT weir.enqueue('q', 'k', max_attempts => 1)`); err != nil {
		t.Fatal(err)
	}
	claims := func(id int32) (attempts []int32) {
		_, _, err := st.Claim(ctx, id, []string{"q"}, []int32{1}, nil, nil, func(c store.Claim) { attempts = append(attempts, c.Attempt) })
		if err != nil {
			t.Fatal(err)
		}
		return attempts
	}
	if got := claims(ids[0]); len(got) != 1 {
		t.Fatalf("the claim got %v", got)
	}
	s := newSession(New(Config{Queues: map[string]int{"q": 1}, Lease: time.Minute, Store: st, Log: log}), ids[0], time.Now())
	defer s.lease.stop()
	(&reconciler{session: s}).doubt() // the answer has not arrived
	s.leave(time.Now().Add(time.Minute))
	if got := claims(ids[1]); len(got) != 1 || got[0] != 1 {
		t.Errorf("another worker has the attempts %v, want the first", got)
	}
}
