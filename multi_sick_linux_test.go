package weir_test

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
)

// stamp is a job that says when it was enqueued.
type stamp struct {
	At int64 `json:"at"` // in nanoseconds
}

func (stamp) Kind() string { return "stamp" }

// waits collects how long jobs have waited for their start.
type waits struct {
	mu  sync.Mutex
	all []time.Duration
}

func (w *waits) add(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, d)
}

// take returns what was collected since the last call.
func (w *waits) take() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.all
	w.all = nil
	return all
}

// quantile returns the smallest value that so many of them do not exceed; it sorts them.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(int(float64(len(all))*q), len(all)-1)]
}

// TestASickDatabaseDoesNotSlowTheOthers: one of four databases is on a server of its own, which runs for a tenth of the time, stands still, is killed, or whose claims wait for a lock. It compares how long jobs
// of the others wait for their start, in one run, while it is well and while it is sick, by turns.
func TestASickDatabaseDoesNotSlowTheOthers(t *testing.T) {
	pgtest.Alone(t, "it compares how long jobs wait")
	const healthy, each = 3, 4 * time.Second
	sick := pgtest.Installed(t, nil)
	home := pgtest.Server(t, nil)
	admin := pgtest.Pool(t, home.URL("postgres"))
	var urls []string
	for n := range healthy {
		name := "d" + strconv.Itoa(n)
		if _, err := admin.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
		migrate(t, home.URL(name))
		urls = append(urls, home.URL(name))
	}
	urls = append(urls, sick.URL("postgres"))

	var others waits
	var sicks atomic.Int64
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(_ context.Context, job *weir.Job[stamp]) error {
		if job.Client().Pool().Config().ConnConfig.Port == uint16(sick.Port()) {
			sicks.Add(1)
		} else {
			others.add(time.Duration(time.Now().UnixNano() - job.Args.At))
		}
		return nil
	})
	log := &pgtest.Log{}
	multi, err := weir.NewMultiWorker(weir.MultiWorkerConfig{
		WorkerConfig: weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 8}, Logger: log.Logger(), StopTimeout: time.Second},
		Databases:    func(context.Context) ([]string, error) { return urls, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	var clients []*weir.Client
	for _, url := range urls {
		clients = append(clients, weir.NewClient(pgtest.Pool(t, url)))
	}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = multi.Run(ctx) })
	t.Cleanup(func() {
		stop()
		all.Wait()
		if t.Failed() {
			t.Log(log)
		}
	})
	for n, client := range clients {
		all.Go(func() { // until stop
			every := time.NewTicker(10 * time.Millisecond)
			defer every.Stop()
			for ctx.Err() == nil {
				select {
				case <-every.C:
				case <-ctx.Done():
				}
				within, cancel := context.WithTimeout(ctx, time.Second)
				if _, err := client.Enqueue(within, stamp{time.Now().UnixNano()}, nil); err != nil && n < healthy && ctx.Err() == nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	works := func() {
		t.Helper()
		before := sicks.Load()
		pgtest.Until(t, "jobs of the sick database run", func() bool { return sicks.Load() > before+20 })
	}
	var crawl chan struct{}
	var crawls sync.WaitGroup
	for _, c := range []struct {
		how        string
		fall, heal func() error
	}{
		{"crawls", func() error {
			crawl = make(chan struct{})
			crawls.Go(func() { // until heal
				for {
					_ = sendAll(sick, syscall.SIGSTOP)
					select {
					case <-time.After(90 * time.Millisecond):
					case <-crawl:
						return
					}
					_ = sendAll(sick, syscall.SIGCONT)
					time.Sleep(10 * time.Millisecond)
				}
			})
			return nil
		}, func() error {
			close(crawl)
			crawls.Wait()
			return sendAll(sick, syscall.SIGCONT)
		}},
		{"stands still", func() error { return sendAll(sick, syscall.SIGSTOP) }, func() error { return sendAll(sick, syscall.SIGCONT) }},
		{"is dead", sick.Kill, func() error { return sick.Restart(context.Background()) }},
		{"waits for a lock", nil, nil},
	} {
		if c.how == "waits for a lock" {
			var held *pgx.Conn
			c.fall = func() (err error) {
				if held, err = pgx.Connect(ctx, sick.URL("postgres")); err == nil {
					_, err = held.Exec(ctx, `BEGIN; LOCK TABLE weir.batch IN ACCESS EXCLUSIVE MODE`)
				}
				return err
			}
			c.heal = func() error { return held.Close(context.Background()) }
		}
		works()
		time.Sleep(time.Second) // what it has missed meanwhile
		others.take()
		time.Sleep(each) // what happens meanwhile is what is measured
		well := others.take()
		if err := c.fall(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(each)
		ill := others.take()
		if err := c.heal(); err != nil {
			t.Fatal(err)
		}
		before, during := quantile(well, 0.99), quantile(ill, 0.99)
		t.Logf("while one database %s, jobs of the others wait %s at the median and %s at p99 (%d jobs); before, %s and %s (%d jobs): p99 %+.0f%%", c.how,
			quantile(ill, 0.5), during, len(ill), quantile(well, 0.5), before, len(well), 100*(float64(during)/float64(before)-1))
		if len(ill) < len(well)/2 {
			t.Errorf("while one database %s, %d jobs of the others ran, and %d before", c.how, len(ill), len(well))
		}
		if during > before+2*time.Second { // a bound for any machine, however busy: the figures are for whoever reads them
			t.Errorf("while one database %s, p99 of the others is %s, and %s before", c.how, during, before)
		}
	}
}

// sendAll sends a signal to all processes of a server.
func sendAll(s *embedded.Server, what syscall.Signal) error {
	postmaster := strconv.Itoa(s.PID())
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	for _, file := range files {
		if pid := filepath.Base(filepath.Dir(file)); pid == postmaster || parent(file) == postmaster {
			n, _ := strconv.Atoi(pid)
			_ = syscall.Kill(n, what) // it may have ended
		}
	}
	return nil
}
