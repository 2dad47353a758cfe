package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// awaitLine waits until n lines contain the text.
func awaitLine(t *testing.T, log *pgtest.Log, text string, n int) {
	t.Helper()
	pgtest.Until(t, fmt.Sprintf("%q is logged %d times", text, n), func() bool { return log.Count(text) == n })
}

// TestALostHubIsSaidOnceAndOnceWhenItIsOver: subscribers and workers log once that their hub is lost and once that it is back, however often
// they have tried.
func TestALostHubIsSaidOnceAndOnceWhenItIsOver(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	s := start(t, Config{Database: database, Web: web.Config{Anonymous: true}})
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: s.HTTPAddr().String()})
	proxy.FlushInterval = -1 // an event at a time
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	var away atomic.Bool
	var refused atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			refused.Add(1)
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	defer front.CloseClientConnections()

	var said pgtest.Log
	log := said.Logger()
	pool := pgtest.Pool(t, database)
	client := weir.NewClient(pool)
	sub, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Hubs: []string{front.URL}, Channels: []string{"news"}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	handlers := weir.NewHandlers()
	ran := make(chan struct{}, 100)
	weir.Handle(handlers, func(context.Context, *weir.Job[ping]) error {
		ran <- struct{}{}
		return nil
	})
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 4}, Hubs: []string{front.URL}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	defer func() { cancel(); <-done }()
	work := func() {
		t.Helper()
		if _, err := client.Enqueue(t.Context(), ping{time.Now()}, nil); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ran:
		case <-time.After(patience):
			t.Fatal("the job was not run")
		}
	}
	work()
	const subLost, subAgain, workLost, workAgain = "lost the hub", "subscribed at a hub again", "the hub can't be reached", "the hub can be reached again"
	for round := 1; round <= 2; round++ {
		away.Store(true)
		refused.Store(0)
		front.CloseClientConnections()
		for end := time.Now().Add(patience); refused.Load() < 8; <-time.After(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the hub was tried %d times", refused.Load())
			}
		}
		awaitLine(t, &said, subLost, round)
		awaitLine(t, &said, workLost, round)
		away.Store(false)
		awaitLine(t, &said, subAgain, round)
		for end := time.Now().Add(patience); said.Count(workAgain) < round && time.Now().Before(end); {
			work() // a wait at the hub ends when there is work
		}
		awaitLine(t, &said, workAgain, round)
	}
}
