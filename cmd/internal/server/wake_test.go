package server

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// polls counts the statements with which a worker polls for work.
type polls struct{ n atomic.Int64 }

func (l *polls) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "weir._watch") || strings.Contains(data.SQL, "weir._claim") {
		l.n.Add(1)
	}
	return ctx
}

func (l *polls) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

type ping struct{ At time.Time }

func (ping) Kind() string { return "ping" }

// TestWorkerWaitsAtTheHub: a worker with a hub is woken by it and rarely polls, misses no job between two waits, and continues to work
// without the hub.
func TestWorkerWaitsAtTheHub(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	s := start(t, Config{Database: database, Web: web.Config{Anonymous: true}})
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	counted := &polls{}
	config.ConnConfig.Tracer = counted
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	handlers := weir.NewHandlers()
	took := make(chan time.Duration, 100)
	weir.Handle(handlers, func(_ context.Context, job *weir.Job[ping]) error {
		took <- time.Since(job.Args.At)
		return nil
	})
	worker, err := weir.NewClient(pool).NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 4},
		Hubs: []string{"http://" + s.HTTPAddr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	defer func() { cancel(); <-done }()

	client := weir.NewClient(pgtest.Pool(t, database))
	enqueue := func() time.Duration {
		t.Helper()
		if _, err := client.Enqueue(t.Context(), ping{time.Now()}, nil); err != nil {
			t.Fatal(err)
		}
		select {
		case d := <-took:
			return d
		case <-time.After(patience):
			t.Fatal("the job was not run")
			return 0
		}
	}
	var all time.Duration
	for range 50 {
		all += enqueue()
	}
	t.Logf("woken and run after %v on average", all/50)
	before, began := counted.n.Load(), time.Now()
	<-time.After(2 * time.Second) // count the statements of an idle worker
	n := counted.n.Load() - before
	if took := time.Since(began); n > 3*int64(took/time.Second) { // which is longer on a machine that stands still for a while
		t.Errorf("an idle worker at a hub looked %d times in %s", n, took)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		enqueue()
	}
}
