package weir_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
)

// step is a job of a key: the Nth.
type step struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

func (step) Kind() string { return "step" }

// spread has some databases, among which a router spreads keys.
func spread(t *testing.T, databases int) (r *weir.Router, clients []*weir.Client) {
	t.Helper()
	for range databases {
		clients = append(clients, weir.NewClient(pgtest.Pool(t, pgtest.Database(t))))
	}
	r = routerOf(t, clients...)
	if err := r.Assign(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r, clients
}

func routerOf(t *testing.T, clients ...*weir.Client) *weir.Router {
	t.Helper()
	r, err := weir.NewRouter(t.Context(), clients...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// keyOf returns a key in the first half of all slots, or in the second.
func keyOf(half, nr int) string {
	for n := 0; ; n++ {
		key := fmt.Sprintf("key %d.%d", nr, n)
		if weir.SlotOf(key)*2/weir.Slots == half {
			return key
		}
	}
}

// keyIn returns a key in one of these slots.
func keyIn(low, high int) string {
	for n := 0; ; n++ {
		if key := fmt.Sprint("key in ", n); weir.SlotOf(key) >= low && weir.SlotOf(key) <= high {
			return key
		}
	}
}

const firstHalf = weir.Slots/2 - 1 // its last slot

// unfinished returns the jobs of a key that wait or are scheduled, as "N" or "N/attempt".
func unfinished(t *testing.T, c *weir.Client, key string) (all []string) {
	t.Helper()
	for _, state := range []weir.State{weir.StateAvailable, weir.StateScheduled} {
		page, err := c.Jobs(t.Context(), weir.JobsParams{States: []weir.State{state}, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		for _, job := range page.Jobs {
			all = append(all, fmt.Sprintf("%s %s %s/%d", state, job.Kind, job.Args, job.Attempt))
		}
	}
	return all
}

// TestKeysAreSpreadOverDatabases: each key's jobs are in one database, whichever router enqueues them, and each database has its part. One that is added changes nothing.
func TestKeysAreSpreadOverDatabases(t *testing.T) {
	t.Parallel()
	r, clients := spread(t, 3)
	added := weir.NewClient(pgtest.Pool(t, pgtest.Database(t)))
	wider := routerOf(t, added, clients[2], clients[0], clients[1])
	if err := wider.Assign(t.Context()); err != nil { // nobody owns nothing
		t.Fatal(err)
	}
	counts := map[*weir.Client]int{}
	for n := range 60 {
		o := &weir.Options{Key: fmt.Sprint("tenant ", n)}
		first, err := r.Enqueue(t.Context(), step{o.Key, 1}, o)
		if err != nil {
			t.Fatal(err)
		}
		second, err := wider.Enqueue(t.Context(), step{o.Key, 2}, o)
		if err != nil {
			t.Fatal(err)
		}
		owner, err := r.Client(t.Context(), o.Key)
		if first.Client != second.Client || err != nil || owner != first.Client {
			t.Errorf("%s is in two databases (%v)", o.Key, err)
		}
		counts[first.Client]++
		if n == 0 {
			if got := unfinished(t, first.Client, o.Key); len(got) != 2 {
				t.Errorf("the database has %v", got)
			}
		}
	}
	for _, c := range clients {
		if counts[c] == 0 {
			t.Errorf("of 60 keys, the databases have %v", counts)
		}
	}
	owners, err := r.Owners(t.Context())
	if err != nil || len(owners) != 3 || owners[0].Low != 0 || owners[2].High != weir.Slots-1 || owners[1].Client == nil {
		t.Errorf("%+v, %v", owners, err)
	}
	for what, o := range map[string]*weir.Options{"a key": nil, "the client of that database": {Key: "a", Flow: 1}} {
		if _, err := r.Enqueue(t.Context(), step{}, o); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := weir.NewRouter(t.Context(), clients[0], weir.NewClient(clients[0].Pool())); err == nil {
		t.Error("two clients of one database are taken for two")
	}
	fewer := routerOf(t, clients[:2]...)
	for n := range 60 {
		o := &weir.Options{Key: fmt.Sprint("tenant ", n)}
		if owner, err := r.Client(t.Context(), o.Key); err != nil || owner != clients[2] {
			continue
		}
		if _, err := fewer.Enqueue(t.Context(), step{}, o); err == nil || !strings.Contains(err.Error(), "no database of this router owns slot") {
			t.Errorf("a key of a database that is left out: %v", err)
		}
		break
	}
}

// TestTheSlotOfAKeyIsThatOfItsLane: the database and the router agree on it.
func TestTheSlotOfAKeyIsThatOfItsLane(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	for _, key := range []string{"a", "order 7", "ключ", strings.Repeat("x", 200)} {
		var slot int
		if err := pool.QueryRow(t.Context(), `SELECT weir._key_bits($1) >> 25`, key).Scan(&slot); err != nil || slot != weir.SlotOf(key) {
			t.Errorf("%q is in slot %d, or %d (%v)", key, weir.SlotOf(key), slot, err)
		}
	}
}

// TestWhatARouterRemembersDoesNotCount: the database that a key has left refuses its jobs, in a transaction of the application, too; and the router finds the other one.
func TestWhatARouterRemembersDoesNotCount(t *testing.T) {
	t.Parallel()
	r, clients := spread(t, 2)
	slices.SortFunc(clients, byFirstSlot(t, r))
	from, to := clients[0], clients[1]
	key := keyOf(0, 1)
	stale := routerOf(t, clients...)
	if err := r.Move(t.Context(), 0, firstHalf, to, nil); err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(t.Context(), from.Pool(), func(tx pgx.Tx) error { return stale.HoldTx(t.Context(), tx, key) })
	if !errors.Is(err, weir.ErrMoving) || !strings.Contains(err.Error(), "has moved to database") {
		t.Errorf("a transaction in the database that the key has left: %v", err)
	}
	if err := pgx.BeginFunc(t.Context(), to.Pool(), func(tx pgx.Tx) error {
		if err := stale.HoldTx(t.Context(), tx, key); err != nil {
			return err
		}
		_, err := to.EnqueueTx(t.Context(), tx, step{key, 1}, &weir.Options{Key: key})
		return err
	}); err != nil {
		t.Error(err)
	}
	stale = routerOf(t, clients...)
	if err := r.Move(t.Context(), 0, firstHalf, from, nil); err != nil {
		t.Fatal(err)
	}
	job, err := stale.Enqueue(t.Context(), step{key, 2}, &weir.Options{Key: key})
	if err != nil || job.Client != from {
		t.Errorf("%+v, %v", job, err)
	}
	if got := unfinished(t, from, key); len(got) != 2 || len(unfinished(t, to, key)) != 0 {
		t.Errorf("its jobs are %v, and elsewhere %v", got, unfinished(t, to, key))
	}
	err = pgx.BeginTxFunc(t.Context(), from.Pool(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error { return stale.HoldTx(t.Context(), tx, key) })
	if err == nil || !strings.Contains(err.Error(), "READ COMMITTED") {
		t.Errorf("with an old snapshot: %v", err)
	}
}

// byFirstSlot orders clients by the slots that they own.
func byFirstSlot(t *testing.T, r *weir.Router) func(a, b *weir.Client) int {
	t.Helper()
	owners, err := r.Owners(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	place := func(c *weir.Client) int {
		return slices.IndexFunc(owners, func(o weir.SlotOwner) bool { return o.Client == c })
	}
	return func(a, b *weir.Client) int { return place(a) - place(b) }
}

// TestAMoveWaitsForOpenTransactions: one that has enqueued a job of the slots, and commits later, loses none, also if it is prepared first. Those that begin later, with other
// slots, are not waited for, of which there may always be some.
func TestAMoveWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	r, clients := spread(t, 2)
	slices.SortFunc(clients, byFirstSlot(t, r))
	from, to := clients[0], clients[1]
	const last = firstHalf / 2 // of the slots that move
	key, other := keyIn(0, last), keyIn(last+1, firstHalf)
	tx, err := from.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if err := r.HoldTx(t.Context(), tx, key); err != nil {
		t.Fatal(err)
	}
	waits, ended := make(chan struct{}), make(chan error, 1)
	once := sync.OnceFunc(func() { close(waits) })
	go func() {
		ended <- r.Move(t.Context(), 0, last, to, func(p weir.MoveProgress) {
			if p.Producers == 1 {
				once()
			}
		})
	}()
	pgtest.Receive(t, waits, "the move waits for the transaction")
	if err := r.Move(t.Context(), 0, last-1, to, nil); err == nil || !strings.Contains(err.Error(), "moving already") {
		t.Errorf("a move of some of the same slots: %v", err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Enqueue(brief, step{key, 2}, &weir.Options{Key: key}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a job is enqueued while its slot moves: %v", err)
	}
	if _, err := from.EnqueueTx(t.Context(), tx, step{key, 1}, &weir.Options{Key: key}); err != nil {
		t.Fatal(err)
	}
	later, err := from.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer later.Rollback(context.WithoutCancel(t.Context()))
	if err := r.HoldTx(t.Context(), later, other); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `PREPARE TRANSACTION 'TestAMoveWaitsForOpenTransactions'`); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Errorf("the move has not waited for a prepared transaction: %v", err)
	case <-time.After(100 * time.Millisecond): // it looks all the time
	}
	if _, err := from.Pool().Exec(t.Context(), `COMMIT PREPARED 'TestAMoveWaitsForOpenTransactions'`); err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Receive(t, ended, "the move ends"); err != nil {
		t.Fatal(err)
	}
	if got := unfinished(t, to, key); len(got) != 1 || len(unfinished(t, from, key)) != 0 {
		t.Errorf("its jobs are %v, and where they were %v", got, unfinished(t, from, key))
	}
}

// TestAJobMovesAsItIs: one that waits, one that is scheduled, one that is to be tried again with its error and checkpoint, a unique one; neither members of flows, nor jobs of other
// slots or without a key.
func TestAJobMovesAsItIs(t *testing.T) {
	t.Parallel()
	r, clients := spread(t, 2)
	slices.SortFunc(clients, byFirstSlot(t, r))
	from, to := clients[0], clients[1]
	key, other := keyOf(0, 1), keyOf(1, 1)
	exec := func(c *weir.Client, sql string, args ...any) {
		t.Helper()
		if _, err := c.Pool().Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(c *weir.Client, into any, sql string, args ...any) {
		t.Helper()
		if err := c.Pool().QueryRow(t.Context(), sql, args...).Scan(into); err != nil {
			t.Fatal(err)
		}
	}
	// The first one is tried, reports, and fails.
	var worker int32
	var token string
	exec(from, `SELECT weir.enqueue('q', 'tried', '{"x": [1, null, 1.50]}', key => $1, meta => '{"m": 1}', max_attempts => 7)`, key)
	ask(from, &worker, `SELECT weir.start('w', '{q}')`)
	ask(from, &token, `SELECT token FROM weir.take($1, wait => '0 s') WHERE event = 'job'`, worker)
	exec(from, `SELECT weir.progress($1, jsonb_build_array(jsonb_build_object('token', $2::text, 'checkpoint', 42))::text)`, worker, token)
	exec(from, `SELECT weir.record($1, jsonb_build_array(jsonb_build_object('token', $2::text, 'outcome', 'failed', 'error', 'no luck', 'delay', 3600))::text)`, worker, token)
	exec(from, `SELECT weir.enqueue('q', 'waits', key => $1, priority => 3)`, key)
	exec(from, `SELECT weir.enqueue('r', 'scheduled', key => $1, run_at => now() + interval '2 hours')`, key)
	exec(from, `SELECT weir.enqueue_unique('q', 'unique', '{"u": 1}', key => $1)`, key)
	exec(from, `SELECT weir.enqueue('q', 'of a flow', key => $1, flow => weir.flow('f'))`, key)
	exec(from, `SELECT weir.enqueue('q', 'cancelled', key => $1)`, key)
	exec(from, `SELECT weir.cancel_where(key => $1, kinds => '{cancelled}')`, key)
	exec(from, `SELECT weir.enqueue('q', 'other', key => $1), weir.enqueue('q', 'of nobody')`, other)
	const shown = `SELECT coalesce(jsonb_object_agg(j.kind, jsonb_build_array(j.queue, j.state, j.priority, j.args, j.meta, j.attempt, j.max_attempts, j.key, j.run_at, jsonb_path_query_array(j.errors, '$[*].error'), j.enqueued_at) ORDER BY j.kind), '{}')::text
		FROM unnest(ARRAY['available', 'scheduled']) s(state) CROSS JOIN LATERAL weir.jobs(s.state) k CROSS JOIN LATERAL weir.job_info(k.id) j WHERE j.key = $1 AND j.kind <> 'of a flow'`
	var before, after, left string
	ask(from, &before, shown, key)
	if err := r.Move(t.Context(), 0, firstHalf, to, nil); err != nil {
		t.Fatal(err)
	}
	ask(to, &after, shown, key)
	ask(from, &left, `SELECT string_agg(j.kind, ', ' ORDER BY j.kind) FROM weir.jobs('available') j`)
	if before != after || !strings.Contains(after, "no luck") || !strings.Contains(after, "scheduled") {
		t.Errorf("jobs were\n%s\nand are\n%s", before, after)
	}
	if left != "of a flow, of nobody, other" {
		t.Errorf("what stays is %s", left)
	}
	var checkpoint string
	ask(to, &checkpoint, `SELECT weir.checkpoint(j.id)::text FROM weir.jobs('scheduled') j WHERE j.kind = 'tried'`)
	var duplicate bool
	ask(to, &duplicate, `SELECT duplicate FROM weir.enqueue_unique('q', 'unique', '{"u": 1}', key => $1)`, key)
	if checkpoint != "42" || !duplicate {
		t.Errorf("the checkpoint is %s; the unique job is known: %v", checkpoint, duplicate)
	}
	var rest int
	for _, c := range clients {
		if ask(c, &rest, `SELECT count(*) FROM weir.departed`); rest != 0 {
			t.Errorf("%d jobs are neither here nor there", rest)
		}
	}
}

// breaker ends a context when so many statements have begun, or ended.
type breaker struct {
	left atomic.Int32
	end  context.CancelFunc
}

func (b *breaker) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	b.step()
	return ctx
}

func (b *breaker) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) { b.step() }

func (b *breaker) step() {
	if b.left.Add(-1) == 0 {
		b.end()
	}
}

// TestAMoveThatIsInterruptedAnywhereIsGoneOnWith: before and after each of its statements, and another time by two at once; each job is in one of the databases in the end.
func TestAMoveThatIsInterruptedAnywhereIsGoneOnWith(t *testing.T) {
	t.Parallel()
	r, clients := spread(t, 2)
	slices.SortFunc(clients, byFirstSlot(t, r))
	var keys []string
	for n := range 3 {
		keys = append(keys, keyOf(0, n))
	}
	enqueued := 0
	at := 0 // where the slots are
	broken := &breaker{}
	var own []*weir.Client
	for _, c := range clients {
		config := c.Pool().Config()
		config.ConnConfig.Tracer = broken
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		own = append(own, weir.NewClient(pool))
	}
	broken.end = func() {}
	mover := routerOf(t, own...)
	for after := int32(1); ; after++ {
		for _, key := range keys {
			enqueued++
			o := &weir.Options{Key: key}
			if enqueued%2 == 0 {
				o.RunAt = time.Now().Add(time.Hour)
			}
			if _, err := r.Enqueue(t.Context(), step{key, enqueued}, o); err != nil {
				t.Fatal(err)
			}
		}
		to := 1 - at
		ctx, end := context.WithCancel(t.Context())
		broken.end = end
		broken.left.Store(after)
		err := mover.Move(ctx, 0, firstHalf, own[to], nil)
		end()
		broken.left.Store(0)
		was := err
		for try := 0; err != nil; try++ { // a connection may still be busy with what was interrupted
			if try == 20 {
				t.Fatalf("interrupted at step %d: %v", after, err)
			}
			done := make(chan error, 2)
			for range 2 {
				go func() { done <- r.Move(t.Context(), 0, firstHalf, clients[to], nil) }()
			}
			err = errors.Join(<-done, <-done)
		}
		at = to
		found := 0
		for n, c := range clients {
			here := 0
			for _, key := range keys {
				here += len(unfinished(t, c, key))
			}
			if n != at && here != 0 {
				t.Errorf("interrupted at step %d: %d jobs are where they were", after, here)
			}
			found += here
			var departed int
			if err := c.Pool().QueryRow(t.Context(), `SELECT count(*) FROM weir.departed`).Scan(&departed); err != nil || departed != 0 {
				t.Errorf("interrupted at step %d: %d jobs are neither here nor there (%v)", after, departed, err)
			}
		}
		if found != enqueued {
			t.Fatalf("interrupted at step %d: there are %d jobs, want %d", after, found, enqueued)
		}
		if was == nil {
			if after < 12 {
				t.Errorf("a move has only %d steps: is it interrupted at all?", after)
			}
			return
		}
	}
}

// TestKeysKeepTheirOrderAcrossMoves: while jobs of keys that run in order are enqueued, run, fail and are tried again, their slots move to and fro. Each job completes once, and after
// those before it.
func TestKeysKeepTheirOrderAcrossMoves(t *testing.T) {
	t.Parallel()
	const keys, jobs, moves = 4, 40, 6
	r, clients := spread(t, 2)
	slices.SortFunc(clients, byFirstSlot(t, r))
	var mu sync.Mutex
	done := map[string][]int{}
	where := map[*pgxpool.Pool]int{}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(_ context.Context, job *weir.Job[step]) error {
		if job.Args.N%5 == 0 && job.Attempt == 1 {
			return weir.RetryAfter(time.Duration(job.Args.N)*5*time.Millisecond, errors.New("the first attempt fails"))
		}
		mu.Lock()
		defer mu.Unlock()
		done[job.Args.Key] = append(done[job.Args.Key], job.Args.N)
		where[job.Client().Pool()]++
		return nil
	})
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for _, c := range clients {
		if err := c.SetLimit(t.Context(), "default", weir.Limit{PerKey: true, InOrder: true}); err != nil {
			t.Fatal(err)
		}
		w, err := c.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 8}, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() { _ = w.Run(ctx) })
	}
	for n := range keys {
		key, own := keyOf(0, n), routerOf(t, clients...) // which remembers what was
		all.Go(func() {
			for i := range jobs {
				if _, err := own.Enqueue(ctx, step{key, i}, &weir.Options{Key: key}); err != nil && ctx.Err() == nil {
					t.Errorf("enqueue: %v", err)
				}
				time.Sleep(5 * time.Millisecond) // so that moves come in between
			}
		})
	}
	for n := range moves {
		if err := r.Move(t.Context(), 0, firstHalf, clients[1-n%2], nil); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Until(t, "all jobs complete", func() bool {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, ran := range done {
			n += len(ran)
		}
		return n >= keys*jobs
	})
	mu.Lock()
	defer mu.Unlock()
	for key, ran := range done {
		if len(ran) != jobs || !slices.IsSorted(ran) {
			t.Errorf("%s: %v", key, ran)
		}
	}
	if len(where) != 2 {
		t.Errorf("jobs ran in %d databases", len(where))
	}
}

// TestAMoveSurvivesACrashOfEitherServer: each server is killed in the middle of moves, and comes back; each job is in one of the databases in the end.
func TestAMoveSurvivesACrashOfEitherServer(t *testing.T) {
	t.Parallel()
	servers := []*embedded.Server{pgtest.Installed(t, nil), pgtest.Installed(t, nil)}
	var clients, own []*weir.Client
	broken := &breaker{end: func() {}}
	for _, s := range servers {
		clients = append(clients, weir.NewClient(pgtest.Pool(t, s.URL("postgres"))))
		config := clients[len(own)].Pool().Config()
		config.ConnConfig.Tracer = broken
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		own = append(own, weir.NewClient(pool))
	}
	r := routerOf(t, clients...)
	if err := r.Assign(t.Context()); err != nil {
		t.Fatal(err)
	}
	mover, key, enqueued, at := routerOf(t, own...), keyOf(0, 1), 0, 0
	if owner, err := r.Client(t.Context(), key); err != nil {
		t.Fatal(err)
	} else if owner == clients[1] {
		at = 1
	}
	for n, after := range []int32{9, 14, 17, 20, 23, 26} {
		for range 3 {
			enqueued++
			if _, err := r.Enqueue(t.Context(), step{key, enqueued}, &weir.Options{Key: key}); err != nil {
				t.Fatal(err)
			}
		}
		victim, to := servers[n/2%2], 1-at
		broken.end = func() {
			if err := victim.Kill(); err != nil {
				t.Error(err)
			}
		}
		broken.left.Store(after)
		_ = mover.Move(t.Context(), 0, firstHalf, own[to], nil) // whether it notices depends on where it is
		broken.left.Store(0)
		if victim.PID() == 0 {
			if err := victim.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		pgtest.Eventually(t, func() error { return r.Move(t.Context(), 0, firstHalf, clients[to], nil) })
		at = to
		if here, there := unfinished(t, clients[at], key), unfinished(t, clients[1-at], key); len(here) != enqueued || len(there) != 0 {
			t.Fatalf("interrupted at step %d: of %d jobs, %d are where they should be, and %d where they were", after, enqueued, len(here), len(there))
		}
	}
}
