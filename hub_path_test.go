package weir_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hubtest"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAHubMayBeBelowAPath: workers wait there, and subscriptions receive and ask who is on a channel.
func TestAHubMayBeBelowAPath(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	channels := filepath.Join(t.TempDir(), "channels.json")
	if err := os.WriteFile(channels, []byte(`{"channels": [{"match": "room.*", "presence": true}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	hub := hubtest.Run(t, database, &pgtest.Log{}, "--channels-file", channels)
	answered := make(chan string, 1000)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: hub.Address})
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.StatusCode == http.StatusOK {
			answered <- r.Request.URL.Path
		}
		return nil
	}
	between := httptest.NewServer(proxy)
	t.Cleanup(between.Close)
	hubs := []string{hubtest.Below(t, between.Listener.Addr().String(), "/databases/app")}

	sub, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Hubs: hubs, Channels: []string{"room.1"}, Presence: true})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if _, err := sub.Members(t.Context(), "room.1", ""); err != nil {
		t.Error(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[number]) error { return nil })
	worker, err := weir.NewClient(pgtest.Pool(t, database)).NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 1}, Hubs: hubs})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for _, path := range []string{"/v1/events", "/v1/presence", "/v1/jobs/wait"} {
		if got := pgtest.Receive(t, answered, "the hub answers "+path); got != path {
			t.Errorf("the hub has answered %s, want %s", got, path)
		}
	}
}
