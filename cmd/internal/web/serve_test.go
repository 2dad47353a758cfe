package web

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// waiter is a Jobs that answers when the test sends it work.
type waiter struct{ work chan []string }

func (w waiter) Wait(ctx context.Context, queues []string, since string) ([]string, string, error) {
	if since == "" {
		return nil, "0", nil
	}
	select {
	case found := <-w.work:
		return found, since + "+", nil
	case <-ctx.Done():
		return nil, since, ctx.Err()
	}
}

func TestWaitForJobs(t *testing.T) {
	t.Parallel()
	jobs := waiter{make(chan []string, 1)}
	r := newRig(t, newMemory(), func(c *Config) { c.Jobs, c.JobsWait = jobs, 50*time.Millisecond })
	wait := func(query string) (int, string) {
		response, _ := r.get("/v1/jobs/wait"+query, nil)
		b, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, strings.TrimSpace(string(b))
	}
	if status, body := wait("?queue=mail&queue=files"); status != 200 || body != `{"queues":[],"token":"0"}` {
		t.Errorf("without a token: %d %s", status, body)
	}
	jobs.work <- []string{"mail"}
	if status, body := wait("?queue=mail&queue=files&since=0"); status != 200 || body != `{"queues":["mail"],"token":"0+"}` {
		t.Errorf("with work: %d %s", status, body)
	}
	if status, body := wait("?queue=mail&since=1"); status != 200 || body != `{"queues":[],"token":"1"}` {
		t.Errorf("without work: %d %s", status, body)
	}
	if status, _ := wait(""); status != 400 {
		t.Errorf("without a queue: %d, want 400", status)
	}
	without := newRig(t, newMemory(), nil)
	if response, _ := without.get("/v1/jobs/wait?queue=a", nil); response.StatusCode != 404 {
		t.Errorf("without Config.Jobs: %d, want 404", response.StatusCode)
	}
}

func TestShutdownAnswersWhoWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { c.Jobs, c.JobsWait = waiter{}, time.Hour })
	answered := make(chan int)
	go func() {
		response, _ := r.get("/v1/jobs/wait?queue=a&since=0", nil)
		answered <- response.StatusCode
	}()
	eventually(t, func() error {
		if r.web.count() == 0 {
			return errors.New("no request waits yet")
		}
		return nil
	})
	r.stopHub()
	if err := r.web.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if status := pgtest.Receive(t, answered, "the request was answered"); status != 200 {
		t.Errorf("status %d, want 200", status)
	}
}

func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	var broken, stuck error
	r := newRig(t, newMemory(), func(c *Config) {
		c.Ready = func() error { return broken }
		c.Stuck = func() error { return stuck }
	})
	body := func(path string, want int) string {
		t.Helper()
		response, _ := r.get(path, nil)
		b, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != want {
			t.Errorf("%s: status %d, want %d: %s", path, response.StatusCode, want, b)
		}
		return string(b)
	}
	body("/healthz", 200)
	body("/readyz", 200)
	broken = errors.New("the moon is full")
	var answer Failure
	if err := json.Unmarshal([]byte(body("/readyz", 503)), &answer); err != nil || !strings.Contains(answer.Text, "moon") {
		t.Errorf("%+v %v", answer, err)
	}
	body("/healthz", 200)
	broken, stuck = nil, errors.New("the clock has stopped")
	for _, path := range []string{"/healthz", "/readyz"} {
		if text := body(path, 503); !strings.Contains(text, "the clock has stopped: restart this process") {
			t.Errorf("%s answers %s", path, text)
		}
	}
	stuck = nil

	c := r.sse("?channel=a", "")
	c.next()
	r.post("?channel=a", "x", nil)
	expect(t, c, "a=x")
	r.post("?channel=", "x", nil)
	r.ws("")
	eventually(t, func() error {
		text := body("/metrics", 200)
		for _, want := range []string{
			`weir_hub_live 1`, `weir_hub_subscribers 2`, `weir_hub_channels 1`, `weir_hub_tick 2`, `weir_hub_deliveries_total 1`,
			`weir_hub_published_messages_total 1`, `weir_hub_messages_total 1`, `weir_hub_connections{transport="sse"} 1`,
			`weir_hub_connections_opened_total{transport="websocket"} 1`, `weir_hub_publish_requests_total{result="ok",transport="http"} 1`,
			`weir_hub_publish_requests_total{result="refused",transport="http"} 1`, `weir_hub_sent_bytes_total{transport="sse"}`,
		} {
			if !strings.Contains(text, want) {
				return errors.New("/metrics lacks " + want + ":\n" + text)
			}
		}
		return nil
	})
	r.stopHub()
	body("/healthz", 200)
	body("/readyz", http.StatusServiceUnavailable)
}
