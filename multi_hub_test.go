package weir_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hubtest"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAnIdleDatabaseWaitsAtItsHub: its first job starts when the hub tells of it. Without the hub, it is polled again.
func TestAnIdleDatabaseWaitsAtItsHub(t *testing.T) {
	t.Parallel()
	ran, asked := make(chan struct{}, 10), make(chan string, 1000)
	var hubs []string
	e := newEstate(t, 1, func(context.Context, *weir.Job[number]) error {
		ran <- struct{}{}
		return nil
	}, func(cfg *weir.MultiWorkerConfig) {
		cfg.HubsOf = func(string) ([]string, func(context.Context) (string, error)) { return hubs, nil }
	})
	hub := hubtest.Run(t, e.urls[0], e.log)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: hub.Address})
	var gone atomic.Bool
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if gone.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		asked <- r.URL.Query().Get("since")
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(between.Close)
	gone.Store(true)
	hubs = []string{between.URL}
	e.run() // it stops before the server does
	e.until(0, weir.DatabaseIdle)
	gone.Store(false)
	for since := ""; since == ""; {
		since = pgtest.Receive(t, asked, "the idle database waits at its hub")
	}
	began := time.Now()
	e.enqueue(0, 1)
	pgtest.Receive(t, ran, "the job runs")
	if took := time.Since(began); took > 6*time.Second { // the next poll would come after 7.5 s or more
		t.Errorf("the job started after %s: the hub did not wake the database", took)
	}
	gone.Store(true)
	between.CloseClientConnections()
	e.enqueue(0, 1)
	pgtest.Receive(t, ran, "the job runs though there is no hub")
}
