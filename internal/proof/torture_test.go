package proof

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// errTorture fails an attempt.
var errTorture = errors.New("this attempt fails")

// torn is a job of the torture: whether it completes in a transaction with an effect, and how.
type torn struct {
	Key string
	Tx  bool
}

func (torn) Kind() string { return "torn" }

// torture is the state of one run.
type torture struct {
	*testing.T
	ctx      context.Context
	seed     uint64
	address  string // of the first primary
	primary  atomic.Int32
	server   *embedded.Server
	standby  *embedded.Server // nil once it is the primary
	common   *proxy           // of producers
	handlers *weir.Handlers

	mu       sync.Mutex
	ran      map[string]int
	workers  []*tortured
	everyone sync.WaitGroup

	enqueued, kills, cuts, crashes, ended atomic.Int64
}

// tortured is a worker with a way of its own to the database.
type tortured struct {
	proxy *proxy
	pool  *pgxpool.Pool
	stop  context.CancelFunc
}

// Whatever happens to servers, connections and workers: every job whose transaction the surviving log has was run, has ended, and had its
// effect once where effect and completion commit together; and none is running with nobody to run it.
func TestTorture(t *testing.T) {
	long := *longFlag
	if long == 0 {
		long = 8 * time.Second
	}
	w := &torture{T: t, seed: newSeed(t), ran: map[string]int{}, handlers: weir.NewHandlers()}
	var stop context.CancelFunc
	w.ctx, stop = context.WithCancel(t.Context())
	defer w.everyone.Wait()
	defer stop()

	w.server = pgtest.Server(t, nil)
	w.address = w.server.URL("postgres")
	conn := connect(t, w.address)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `CREATE TABLE produced (key text NOT NULL, tx boolean NOT NULL)`)
	exec(t, conn, `CREATE TABLE effect (key text NOT NULL)`)
	exec(t, conn, `SELECT weir.set('retention_bytes', '1048576')`)
	w.standby = pgtest.Standby(t, w.server, nil)
	w.primary.Store(int32(w.server.Port()))
	w.common = newProxy(t, &w.primary)
	weir.Handle(w.handlers, w.run)
	for range 3 {
		w.start()
	}
	produce, enough := context.WithCancel(w.ctx)
	defer enough()
	var producers sync.WaitGroup
	for i := range 3 {
		rng := rand.New(rand.NewPCG(w.seed, uint64(100+i)))
		producers.Go(func() { w.produce(produce, rng, i) })
	}

	rng := rand.New(rand.NewPCG(w.seed, 1))
	begun := time.Now()
	for time.Since(begun) < long {
		time.Sleep(time.Duration(200+rng.IntN(600)) * time.Millisecond) // the time in which there is no fault
		w.fault(rng, time.Since(begun) > long/2)
	}
	enough()
	producers.Wait()
	w.judge()
}

// fault does something bad.
func (w *torture) fault(rng *rand.Rand, failover bool) {
	switch {
	case failover && w.standby != nil:
		// What is committed from now on is lost, as far as it is not on its way yet.
		pgtest.CutOff(w, w.standby)
		time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
		if err := w.server.Kill(); err != nil {
			w.Error(err)
		}
		pgtest.Promote(w, w.standby)
		w.server, w.standby = w.standby, nil
		w.primary.Store(int32(w.server.Port()))
	case rng.IntN(4) == 0:
		w.crashes.Add(1)
		if err := errors.Join(w.server.Kill(), w.server.Restart(w.ctx)); err != nil {
			w.Error(err)
		}
	case rng.IntN(3) == 0:
		w.kills.Add(1)
		i := rng.IntN(len(w.workers))
		w.workers[i].proxy.kill()
		w.workers[i].stop()
		w.workers = append(w.workers[:i], w.workers[i+1:]...)
		w.start()
	case rng.IntN(2) == 0:
		w.cuts.Add(1)
		w.workers[rng.IntN(len(w.workers))].proxy.cut()
	default:
		w.ended.Add(1)
		if conn, err := pgx.Connect(w.ctx, w.common.url(w.T, w.address)); err == nil {
			_, _ = conn.Exec(w.ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.5`)
			_ = conn.Close(w.ctx)
		}
	}
}

// start starts a worker.
func (w *torture) start() {
	k := &tortured{proxy: newProxy(w.T, &w.primary)}
	config, err := pgxpool.ParseConfig(k.proxy.url(w.T, w.address))
	if err != nil {
		w.Fatal(err)
	}
	config.MaxConns = 4
	if k.pool, err = pgxpool.NewWithConfig(w.ctx, config); err != nil {
		w.Fatal(err)
	}
	worker, err := weir.NewClient(k.pool).NewWorker(weir.WorkerConfig{
		Handlers: w.handlers, Queues: map[string]int{"torture": 8}, Lease: 2 * time.Second, StopTimeout: time.Second, Name: "torture",
		Retry: func(int, error) time.Duration { return 100 * time.Millisecond }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithValue(w.ctx, poolOf{}, k.pool))
	k.stop = stop
	w.workers = append(w.workers, k)
	w.everyone.Go(func() {
		for ctx.Err() == nil {
			_ = worker.Run(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond): // a start that failed is tried again
			}
		}
		k.pool.Close()
	})
}

// poolOf is the key of the worker's pool in its jobs' contexts.
type poolOf struct{}

// run runs a job.
func (w *torture) run(ctx context.Context, job *weir.Job[torn]) error {
	w.mu.Lock()
	w.ran[job.Args.Key]++
	w.mu.Unlock()
	if rand.IntN(10) == 0 {
		return errTorture
	}
	if !job.Args.Tx {
		return nil
	}
	return pgx.BeginFunc(ctx, ctx.Value(poolOf{}).(*pgxpool.Pool), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO effect (key) VALUES ($1)`, job.Args.Key); err != nil {
			return err
		}
		if rand.IntN(20) == 0 {
			time.Sleep(300 * time.Millisecond)
		}
		return job.CompleteTx(ctx, tx)
	})
}

// produce enqueues, in every isolation level, at once and late, and rolls back.
func (w *torture) produce(ctx context.Context, rng *rand.Rand, producer int) {
	levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	for n := 0; ctx.Err() == nil; {
		conn, err := pgx.Connect(ctx, w.common.url(w.T, w.address))
		for err == nil && ctx.Err() == nil {
			var tx pgx.Tx
			if tx, err = conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: levels[rng.IntN(len(levels))]}); err != nil {
				break
			}
			for range 1 + rng.IntN(3) {
				n++
				job := torn{Key: fmt.Sprintf("%d.%d", producer, n), Tx: rng.IntN(2) == 0}
				if _, err = tx.Exec(ctx, `INSERT INTO produced VALUES ($1, $2)`, job.Key, job.Tx); err == nil {
					_, err = tx.Exec(ctx, `SELECT weir.enqueue('torture', 'torn', jsonb_build_object('Key', $1::text, 'Tx', $2::boolean), priority => $3,
						run_at => now() + $4 * interval '1 millisecond')`, job.Key, job.Tx, 1+rng.IntN(4), max(rng.IntN(1000)-800, 0))
				}
				if err != nil {
					break
				}
			}
			if rng.IntN(5) == 0 {
				time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond) // others commit meanwhile
			}
			if rng.IntN(8) == 0 || err != nil {
				_ = tx.Rollback(ctx)
			} else if err = tx.Commit(ctx); err == nil {
				w.enqueued.Add(1)
			}
			time.Sleep(time.Duration(rng.IntN(10)) * time.Millisecond)
		}
		if conn != nil {
			_ = conn.Close(context.Background())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// judge waits until nothing is to be done any more, and compares.
func (w *torture) judge() {
	conn := connect(w.T, w.server.URL("postgres"))
	left := func() string {
		return value[string](w.T, conn, `SELECT format('%s later, %s available, %s running',
			(SELECT count(*) FROM weir.jobs('later', most => 1000)), (SELECT count(*) FROM weir.jobs('available', most => 1000)),
			(SELECT count(*) FROM weir.jobs('running', most => 1000)))`)
	}
	const none = "0 later, 0 available, 0 running"
	for end := time.Now().Add(2 * patience); left() != none; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("after %v there are still %s", 2*patience, left())
		}
	}
	rows, err := conn.Query(w.ctx, `SELECT p.key, p.tx, (SELECT count(*) FROM effect e WHERE e.key = p.key) FROM produced p`)
	if err != nil {
		w.Fatal(err)
	}
	n, effects := 0, 0
	var key string
	var tx bool
	var count int
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err = pgx.ForEachRow(rows, []any{&key, &tx, &count}, func() error {
		n++
		effects += count
		switch {
		case w.ran[key] == 0:
			w.Errorf("job %s was committed and never run", key)
		case tx && count != 1 || !tx && count != 0:
			w.Errorf("job %s has %d effects", key, count)
		}
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	if failed := value[int](w.T, conn, `SELECT count(*)::integer FROM weir.jobs('failed')`); failed > 0 {
		w.Errorf("%d jobs failed for good", failed)
	}
	w.Logf("%d jobs, %d effects; 1 failover, %d crashes of the server, %d workers killed, %d connections cut, %d times half of all backends ended",
		n, effects, w.crashes.Load(), w.kills.Load(), w.cuts.Load(), w.ended.Load())
}
