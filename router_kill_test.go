package weir_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// moveForEver moves the first half of all slots, and stands still before or after a step, having said so. Its arguments are one of these words, the function that is the step, the number of the
// database to which the slots move, and the databases.
func moveForEver(args []string) error {
	to, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	stands := &standing{when: args[0], step: "weir." + args[1] + "("}
	var clients []*weir.Client
	for _, url := range args[3:] {
		config, err := pgxpool.ParseConfig(url)
		if err != nil {
			return err
		}
		config.ConnConfig.Tracer = stands
		pool, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil {
			return err
		}
		clients = append(clients, weir.NewClient(pool))
	}
	r, err := weir.NewRouter(context.Background(), clients...)
	if err != nil {
		return err
	}
	return r.Move(context.Background(), 0, firstHalf, clients[to], nil)
}

// standing keeps whoever has come to a step.
type standing struct{ when, step string }

func (s *standing) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if is := strings.Contains(q.SQL, s.step); is && s.when == "before" {
		s.still()
	} else if is {
		return context.WithValue(ctx, s, true)
	}
	return ctx
}

func (s *standing) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(s) != nil {
		s.still()
	}
}

func (s *standing) still() {
	fmt.Println("it stands")
	select {}
}

// TestAMoverThatIsKilledLosesNothing: a process, killed before and after each step of a move, while jobs of its slots are enqueued, run and become due. The move is gone on with, or given up, at
// once. Each job runs once.
func TestAMoverThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"gone on with", "given up"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			killMovers(t, how == "gone on with")
		})
	}
}

func killMovers(t *testing.T, goOn bool) {
	r, clients := spread(t, 2)
	slices.SortFunc(clients, byFirstSlot(t, r))
	loaded := loadOn(t, clients)
	at := 0                          // where the slots are
	later, planned := keyOf(0, 2), 0 // each move has a job to take along
	for _, function := range []string{"_leave_slots", "_holders_of_slots", "_depart", "_close_slots", "_taken_upto", "_departing", "_take_in", "_own_slots", "_clear_departed"} {
		for _, when := range []string{"before", "after"} {
			loaded.more(t)
			planned++
			if _, err := r.Enqueue(t.Context(), step{later, planned}, &weir.Options{Key: later, RunAt: time.Now().Add(time.Hour)}); err != nil {
				t.Fatal(err)
			}
			to := 1 - at
			killMover(t, when, function, to, clients)
			if goOn {
				at = to
			}
			if err := r.Move(t.Context(), 0, firstHalf, clients[at], nil); err != nil {
				t.Fatalf("%s %s: %v", when, function, err)
			}
			if all := owners(t, r); all[0].Client != clients[at] || all[0].High < firstHalf {
				t.Fatalf("%s %s: the slots are %+v", when, function, all[0])
			}
			for _, c := range clients {
				if gone := answer[int](t, c, departed); gone != 0 {
					t.Fatalf("%s %s: %d jobs are neither here nor there", when, function, gone)
				}
			}
		}
	}
	loaded.end(t)
	if here, there := unfinished(t, clients[0], later), unfinished(t, clients[1], later); len(here)+len(there) != planned {
		t.Errorf("of %d jobs that are for later, one database has %d, and the other %d", planned, len(here), len(there))
	}
}

// killMover runs a mover until it has come to a step, and kills it.
func killMover(t *testing.T, when, step string, to int, clients []*weir.Client) {
	t.Helper()
	args := []string{when, step, strconv.Itoa(to)}
	for _, c := range clients {
		args = append(args, c.Pool().Config().ConnString())
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), moveEnv+"=1"), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = bufio.NewReader(out).ReadString('\n')
	cmd.Process.Kill() //nolint:errcheck // it may have ended
	cmd.Wait()         //nolint:errcheck // it was killed
	if err != nil {
		t.Fatalf("the mover that was to be killed %s %s has ended: %v", when, step, err)
	}
}

// load is jobs of some keys that are enqueued all the time by routers, and run wherever they are.
type load struct {
	stop     context.CancelFunc
	all      sync.WaitGroup // those that enqueue
	mu       sync.Mutex
	ran      map[step]int
	enqueued atomic.Int64
}

// loadOn loads databases until the end of the test. Every third job is for a little later.
func loadOn(t *testing.T, clients []*weir.Client) *load {
	t.Helper()
	const ahead = 30 // jobs of a key that are enqueued and have not run
	l := &load{ran: map[step]int{}}
	var room [3]chan struct{}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(_ context.Context, job *weir.Job[step]) error {
		l.mu.Lock()
		l.ran[job.Args]++
		n := l.ran[job.Args]
		l.mu.Unlock()
		if n == 1 {
			for i, key := range [3]string{keyOf(0, 0), keyOf(0, 1), keyOf(1, 0)} {
				if key == job.Args.Key {
					<-room[i]
				}
			}
		}
		return nil
	})
	working, rest := context.WithCancel(context.WithoutCancel(t.Context()))
	var workers sync.WaitGroup
	t.Cleanup(func() { rest(); workers.Wait() })
	for _, c := range clients {
		w, err := c.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 4}, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		workers.Go(func() { _ = w.Run(working) })
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	l.stop = stop
	t.Cleanup(func() { stop(); l.all.Wait() })
	for i, key := range [3]string{keyOf(0, 0), keyOf(0, 1), keyOf(1, 0)} {
		room[i] = make(chan struct{}, ahead)
		own := routerOf(t, clients...)
		l.all.Go(func() {
			for n := 0; ; n++ {
				select {
				case room[i] <- struct{}{}:
				case <-ctx.Done():
					return
				}
				o := &weir.Options{Key: key}
				if n%3 == 0 {
					o.RunAt = time.Now().Add(100 * time.Millisecond)
				}
				if _, err := own.Enqueue(context.WithoutCancel(ctx), step{key, n}, o); err != nil {
					t.Errorf("enqueue job %d of %s: %v", n, key, err)
					return
				}
				l.enqueued.Add(1)
			}
		})
	}
	return l
}

// more waits until more jobs are enqueued than before.
func (l *load) more(t *testing.T) {
	t.Helper()
	n := l.enqueued.Load()
	pgtest.Until(t, "more jobs are enqueued", func() bool { return l.enqueued.Load() > n+10 })
}

// end stops what enqueues, and waits until all jobs have run.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.all.Wait()
	pgtest.Until(t, "all jobs run", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.ran) >= int(l.enqueued.Load())
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	for job, n := range l.ran {
		if n != 1 {
			t.Errorf("job %d of %s has run %d times", job.N, job.Key, n)
		}
	}
}
