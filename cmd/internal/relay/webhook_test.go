package relay_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/pgtest"
)

// webhook is a request that an endpoint got.
type webhook struct {
	id      string
	Kind    string
	Attempt int
	Args    struct {
		Channel, Position string
		Payload           struct{ N int }
	}
}

func newSecret() string {
	random := make([]byte, 32)
	_, _ = rand.Read(random)
	return "whsec_" + base64.StdEncoding.EncodeToString(random)
}

// shop is an endpoint. Of each message it gets the first request in vain: it fails, or it does the work and its answer is lost.
type shop struct {
	t       *testing.T
	webhook *standardwebhooks.Webhook

	mu   sync.Mutex
	got  map[int][]webhook // by message
	done map[string]bool   // webhook-ids
	work map[int]int       // how often it was done, by message
}

func (s *shop) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the hub has given up
	}
	h := webhook{id: r.Header.Get(standardwebhooks.HeaderWebhookID)}
	if err := s.webhook.Verify(body, r.Header); err != nil {
		s.t.Errorf("a request is not signed: %v: %v", err, r.Header)
	}
	if err := json.Unmarshal(body, &h); err != nil {
		s.t.Errorf("%v: %s", err, body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := h.Args.Payload.N
	s.got[n] = append(s.got[n], h)
	first := len(s.got[n]) == 1
	if first && n%2 == 0 {
		http.Error(rw, "not now", http.StatusInternalServerError)
		return
	}
	if !s.done[h.id] {
		s.done[h.id] = true
		s.work[n]++
	}
	if first {
		if conn, _, err := http.NewResponseController(rw).Hijack(); err == nil {
			_ = conn.Close()
		}
	}
}

// TestMessagesBecomeSignedWebhooks: from a relay into the same database, whose hub pushes the queue. An endpoint that knows repeats by webhook-id does the work of each message once, although it fails and its answers
// are lost; and the args have the message's position each time.
func TestMessagesBecomeSignedWebhooks(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	secret := newSecret()
	verifier, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{t: t, webhook: verifier, got: map[int][]webhook{}, done: map[string]bool{}, work: map[int]int{}}
	endpoint := httptest.NewServer(s)
	t.Cleanup(endpoint.Close)
	file := filepath.Join(t.TempDir(), "push.toml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "[endpoint.shop]\nurl = %q\nqueues = {hooks = 4}\nsecrets = [%q]\n", endpoint.URL, secret), 0o600); err != nil {
		t.Fatal(err)
	}
	starting, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	hub, err := server.Start(starting, server.Config{Database: url, Name: t.Name(), ListenHTTP: "127.0.0.1:0", Jobs: true, PushFile: file, Logger: slog.Default(), Drain: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stopping, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := hub.Stop(stopping); err != nil {
			t.Error(err)
		}
	})
	runFile(t, pgtest.Pool(t, url), fmt.Sprintf("[relay.hooks]\nsince = \"oldest\"\nroute = [{ channels = \"orders.*\", subject = \"hooks\" }]\n[relay.hooks.database]\nurl = %q\nkind = \"order.changed\"\n", url))
	const messages = 20
	if _, err := pool.Exec(t.Context(), `SELECT weir.set('hooks', 'backoff', '50 milliseconds')`); err != nil {
		t.Fatal(err)
	}
	for n := range messages {
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish('orders.made', jsonb_build_object('n', $1::int)::text), weir.publish('others', 'x')`, n); err != nil {
			t.Fatal(err)
		}
	}
	pgtest.Until(t, "all jobs are completed", func() bool {
		var n int
		if err := pool.QueryRow(t.Context(), `SELECT jsonb_array_length(jobs) FROM weir.jobs_page(ARRAY['completed'], queue => 'hooks')`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == messages
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	positions := map[string]bool{}
	for n := range messages {
		got := s.got[n]
		if len(got) != 2 || s.work[n] != 1 {
			t.Fatalf("message %d: %d requests, and its work was done %d times: %+v", n, len(got), s.work[n], got)
		}
		first, again := got[0], got[1]
		if first.id == "" || again.id != first.id || first.Args.Position == "" || again.Args != first.Args || first.Kind != "order.changed" || first.Args.Channel != "orders.made" || first.Attempt != 1 || again.Attempt != 2 {
			t.Errorf("message %d: %+v, and again %+v", n, first, again)
		}
		positions[first.Args.Position] = true
	}
	if len(positions) != messages || len(s.done) != messages || len(s.got) != messages {
		t.Errorf("%d positions and %d webhook-ids of %d messages", len(positions), len(s.done), len(s.got))
	}
}
