package weir_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestHandlersThatUseUpThePoolDoNotSilenceTheirWorker: a worker keeps its lease while its handlers hold all connections of the pool.
func TestHandlersThatUseUpThePoolDoNotSilenceTheirWorker(t *testing.T) {
	pgtest.Alone(t, "a lease of two seconds is lost on a busy machine")
	const lease, jobs = 2 * time.Second, 8
	r := newRig(t)
	url := r.url + "&pool_max_conns=4"
	r.pool = pgtest.Pool(t, url)
	r.client = weir.NewClient(r.pool)
	release := make(chan struct{})
	var runs atomic.Int32
	stop := r.work(func(ctx context.Context, job *weir.Job[number]) error {
		runs.Add(1)
		conn, err := r.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}, func(c *weir.WorkerConfig) { c.Lease = lease })
	other := newRigOn(t, r.url) // with its own worker, which would rescue jobs
	other.work(func(context.Context, *weir.Job[number]) error { runs.Add(1); return nil },
		func(c *weir.WorkerConfig) { c.Queues = map[string]int{"other": 1} })
	var ids []int64
	for i := range jobs {
		ids = append(ids, other.enqueue(i, nil))
	}
	// Observe it for longer than two leases after it claimed them.
	eventually(t, func() error {
		var n int
		err := other.pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.batch b JOIN weir.workers() w ON w.id = b.worker
			WHERE w.seen_at > b.claimed_at + 2 * make_interval(secs => $1)`, lease.Seconds()).Scan(&n)
		if err == nil && n == 0 {
			err = errors.New("the worker has had no heartbeat two leases after its claim")
		}
		return err
	})
	close(release)
	for _, id := range ids {
		if info := other.await(id, weir.StateCompleted); info.Attempt != 1 {
			t.Errorf("job %d was run again: %+v", id, info)
		}
	}
	if n := runs.Load(); n != jobs {
		t.Errorf("there were %d runs of %d jobs", n, jobs)
	}
	workers, err := other.client.Workers(t.Context())
	if err != nil || len(workers) != 2 {
		t.Errorf("a worker had to start over: %+v (%v)", workers, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestJobsAreInterruptedBeforeOthersMayStartThem: a worker that loses its connections interrupts its jobs before another worker starts them.
func TestJobsAreInterruptedBeforeOthersMayStartThem(t *testing.T) {
	pgtest.Alone(t, "a lease of three seconds is lost on a busy machine")
	direct := newRig(t)
	line := newLine(t, direct.url)
	pool := pgtest.Pool(t, line.url)
	cutOff := &rig{t: t, url: line.url, pool: pool, client: weir.NewClient(pool)}
	var log pgtest.Log
	started, again, causes := make(chan struct{}, 1), make(chan struct{}, 1), make(chan error, 1)
	var interrupted atomic.Bool
	cutOff.work(func(ctx context.Context, job *weir.Job[number]) error {
		if interrupted.Load() {
			return nil
		}
		started <- struct{}{}
		<-ctx.Done()
		interrupted.Store(true)
		causes <- context.Cause(ctx)
		return ctx.Err()
	}, func(c *weir.WorkerConfig) { c.Lease, c.Logger = 3*time.Second, log.Logger() })
	id := direct.enqueue(1, nil)
	receive(t, started, "the job starts")
	line.cut()
	direct.work(func(context.Context, *weir.Job[number]) error {
		if !interrupted.Load() {
			t.Error("another worker has started the job while the first still runs it")
		}
		again <- struct{}{}
		return nil
	}, nil)
	if cause := receive(t, causes, "the job is interrupted"); !errors.Is(cause, weir.ErrLapsed) {
		t.Errorf("the cause is %v, want ErrLapsed", cause)
	}
	receive(t, again, "another worker runs it")
	direct.await(id, weir.StateCompleted)
	if n := log.Count("its jobs may soon be given to others"); n != 1 {
		t.Errorf("the log says %d times that jobs are interrupted, want once", n)
	}
	line.mend()
	eventually(t, func() error { // it continues with another id
		if log.Count("restarting with a new id") == 0 {
			return errors.New("the worker has not started over")
		}
		return nil
	})
}

// TestJobsThatAreInterruptedWithoutNeedAreHandedBackUncounted: a job that was interrupted, but not given to another worker, is released without using up its attempt.
func TestJobsThatAreInterruptedWithoutNeedAreHandedBackUncounted(t *testing.T) {
	pgtest.Alone(t, "a lease of a second is lost on a busy machine")
	r := newRig(t)
	var log pgtest.Log
	started, causes := make(chan int, 10), make(chan error, 1)
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		started <- job.Attempt
		if job.PutOff > 0 {
			return nil
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	}, func(c *weir.WorkerConfig) { c.Lease, c.Logger = time.Second, log.Logger() })
	id := r.enqueue(1, &weir.Options{MaxAttempts: 1})
	receive(t, started, "the job starts")
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE weir.worker IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	if cause := receive(t, causes, "the job is interrupted"); !errors.Is(cause, weir.ErrLapsed) {
		t.Errorf("the cause is %v, want ErrLapsed", cause)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.await(id, weir.StateCompleted) // although it had only one attempt
}

// newRigOn returns another rig on the same database, with its own connections.
func newRigOn(t *testing.T, url string) *rig {
	t.Helper()
	pool := pgtest.Pool(t, url)
	return &rig{t: t, url: url, pool: pool, client: weir.NewClient(pool)}
}

// line is a connection to the server that can be cut silently: nothing arrives any more, and no error is reported.
type line struct {
	url   string
	to    string
	mu    sync.Mutex
	open  *sync.Cond
	isCut bool
	ends  []net.Conn
}

func newLine(t *testing.T, target string) *line {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{to: to.Host}
	l.open = sync.NewCond(&l.mu)
	to.Host = listener.Addr().String()
	l.url = to.String()
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go l.carry(conn)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		l.mend()
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, end := range l.ends {
			end.Close()
		}
	})
	return l
}

func (l *line) carry(here net.Conn) {
	there, err := net.Dial("tcp", l.to)
	if err != nil {
		here.Close()
		return
	}
	l.mu.Lock()
	l.ends = append(l.ends, here, there)
	l.mu.Unlock()
	go l.pump(here, there)
	l.pump(there, here)
}

func (l *line) pump(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		l.mu.Lock()
		for l.isCut {
			l.open.Wait()
		}
		l.mu.Unlock()
		if _, unsent := to.Write(buffer[:n]); err != nil || unsent != nil {
			return
		}
	}
}

func (l *line) cut() { l.set(true) }

func (l *line) mend() { l.set(false) }

func (l *line) set(isCut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = isCut
	l.open.Broadcast()
}
