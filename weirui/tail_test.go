package weirui_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// sse is an event of a stream.
type sse struct{ id, kind, data string }

// watched is an open tail.
type watched struct {
	events chan sse // closed when the stream has ended
	stop   context.CancelFunc
}

// watch opens a tail, and returns once it has subscribed.
func (r *rig) watch(at, channel, after string) *watched {
	r.Helper()
	ctx, stop := context.WithCancel(r.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"channels/tail/events?"+url.Values{"channel": {channel}}.Encode(), nil)
	if err != nil {
		r.Fatal(err)
	}
	if after != "" {
		request.Header.Set("Last-Event-ID", after)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		r.Fatal(err)
	}
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != http.StatusOK || kind != "text/event-stream" {
		r.Fatalf("the stream is %s, %s", answer.Status, kind)
	}
	w := &watched{make(chan sse, 1000), stop}
	go func() {
		defer close(w.events)
		defer answer.Body.Close()
		var e sse
		for in := bufio.NewScanner(answer.Body); in.Scan(); {
			field, value, _ := strings.Cut(in.Text(), ": ")
			switch field {
			case "id":
				e.id = value
			case "event":
				e.kind = value
			case "data":
				e.data = value
			case "":
				if e.data != "" {
					w.events <- e
				}
				e = sse{}
			}
		}
	}()
	r.Cleanup(stop)
	if e := w.next(r); e.kind != "ready" {
		r.Fatalf("the stream begins with %+v", e)
	}
	return w
}

func (w *watched) next(r *rig) sse {
	r.Helper()
	return pgtest.Receive(r.T, w.events, "an event of the tail")
}

type tailed struct {
	Channel, Payload, Note string
	Bytes                  int
}

// message receives the next event, which must be a message.
func (w *watched) message(r *rig) (tailed, string) {
	r.Helper()
	e := w.next(r)
	var m tailed
	if err := json.Unmarshal([]byte(e.data), &m); err != nil || e.kind != "" {
		r.Fatalf("got %+v, want a message; %v", e, err)
	}
	return m, e.id
}

func (r *rig) here() string { return r.server.URL + "/some/where/" }

// withUI is a rig with its UI.
func withUI(t *testing.T) (*rig, *weirui.UI) {
	t.Helper()
	r := newRig(t)
	ui, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: r.pool}}, Access: r, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return r, ui
}

// serveUI serves a UI at a server of its own, which has this timeout.
func serveUI(t *testing.T, ui *weirui.UI, timeout time.Duration) (server *http.Server, at string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server = &http.Server{Handler: ui, ReadTimeout: timeout, WriteTimeout: timeout}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return server, "http://" + listener.Addr().String() + "/"
}

func TestPublishedMessagesAreShownAsTheyCome(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	all, other := r.watch(r.here(), "orders.>", ""), r.watch(r.here(), "orders.paid", "")
	r.do("channels/publish", url.Values{"channel": {"orders.created"}, "as": {"json"}, "payload": {`{"id": 7, "deep": [{"API-Key": "hunter2"}]}`}})
	r.do("channels/publish", url.Values{"channel": {"elsewhere"}, "as": {"text"}, "payload": {"x"}})
	r.do("channels/publish", url.Values{"channel": {"orders.paid"}, "as": {"text"}, "payload": {"<plain> text"}})
	m, first := all.message(r)
	if m.Channel != "orders.created" || !strings.Contains(m.Payload, `"id":7`) || strings.Contains(m.Payload, "hunter2") || m.Bytes != 43 {
		t.Errorf("the first message is %+v", m)
	}
	for _, w := range []*watched{all, other} {
		if m, _ := w.message(r); m.Channel != "orders.paid" || m.Payload != "<plain> text" {
			t.Errorf("the next message is %+v", m)
		}
	}
	// Whoever connects again gets what came after the last message that it has seen.
	all.stop()
	r.do("channels/publish", url.Values{"channel": {"orders.late"}, "as": {"text"}, "payload": {"late"}})
	again := r.watch(r.here(), "orders.>", first)
	for _, want := range []string{"orders.paid", "orders.late"} {
		if m, _ := again.message(r); m.Channel != want {
			t.Errorf("after the first message, it gets %+v, want one on %s", m, want)
		}
	}
}

func TestLongPayloadsAreCut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.watch(r.here(), "long", "")
	for _, c := range []struct {
		payload string
		bytes   int
		note    string
	}{
		{strings.Repeat("ä", 3000), weirui.ShownBytes + len("…"), "cut"},
		{strings.Repeat("x", 100_000), weirui.ShownBytes + len("…"), "cut"},
		{`{"password": "` + strings.Repeat("x", 10_000) + `"}`, len(`{"password":"[redacted]"}`), ""},
		{`  {"password": "` + strings.Repeat("x", 100_000) + `"}`, 0, "not shown: JSON of more than 64 kB"},
	} {
		if err := r.client.Publish(t.Context(), "long", []byte(c.payload), nil); err != nil {
			t.Fatal(err)
		}
		if m, _ := w.message(r); len(m.Payload) > c.bytes || len(m.Payload) < c.bytes-2 || m.Note != c.note || m.Bytes != len(c.payload) {
			t.Errorf("of %d bytes, %d of %d are shown, with the note %q; want %d and %q", len(c.payload), len(m.Payload), m.Bytes, m.Note, c.bytes, c.note)
		}
	}
}

func TestAFloodIsCountedAndNotShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.watch(r.here(), "flood", "")
	const n = 5 * weirui.TailRate
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	for i := range n {
		if err := r.client.PublishTx(t.Context(), tx, "flood", fmt.Append(nil, i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	shown, left := 0, 0
	for shown+left < n {
		e := w.next(r)
		if e.kind != "left" {
			shown++
			continue
		}
		var l struct{ Messages int }
		if err := json.Unmarshal([]byte(e.data), &l); err != nil {
			t.Fatal(err)
		}
		left += l.Messages
	}
	if shown+left != n || shown < weirui.TailRate || left == 0 {
		t.Errorf("of %d messages, %d are shown and %d counted", n, shown, left)
	}
}

func TestATailEndsWithItsClientAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	r, ui := withUI(t)
	_, at := serveUI(t, ui, 0)
	var open []*watched
	for i := range weirui.MostTails {
		r.user = fmt.Sprintf("user%d", i/weirui.TailsEach)
		open = append(open, r.watch(at, fmt.Sprintf("c%d.>", i%3), ""))
	}
	if n, hubs := ui.Tails(); n != weirui.MostTails || hubs != 1 {
		t.Errorf("%d tails are open, and %d hubs read for them", n, hubs)
	}
	refused := func(user string, want int) {
		t.Helper()
		r.user = user
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at+"channels/tail/events?channel=one", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("one tail too many, of %s: %s", user, answer.Status)
		}
	}
	refused("another", http.StatusServiceUnavailable)
	refused("user1", http.StatusTooManyRequests) // whoever has many leaves room for others
	for _, w := range open[:weirui.TailsEach] {
		w.stop()
	}
	pgtest.Until(t, "some have ended", func() bool { n, _ := ui.Tails(); return n == weirui.MostTails-weirui.TailsEach })
	refused("user1", http.StatusTooManyRequests)
	r.user = "another"
	open = append(open, r.watch(at, "one", ""))
	for _, w := range open {
		w.stop()
	}
	pgtest.Eventually(t, func() error {
		if n, hubs := ui.Tails(); n+hubs > 0 {
			return fmt.Errorf("%d tails are open, and %d hubs read for them", n, hubs)
		}
		return nil
	})
	pgtest.Until(t, "the pool's connections are free", func() bool { return r.pool.Stat().AcquiredConns() == 0 })
	r.watch(at, "again", "")
}

func TestAServerThatShutsDownEndsItsTails(t *testing.T) {
	t.Parallel()
	r, ui := withUI(t)
	for range 2 { // the UI goes on at the next server
		server, at := serveUI(t, ui, 0)
		w := r.watch(at, "c", "")
		down := make(chan error, 1)
		go func() { down <- server.Shutdown(context.Background()) }()
		if err := pgtest.Receive(t, down, "the server shuts down"); err != nil {
			t.Error(err)
		}
		for range w.events { // until it is closed
		}
		pgtest.Until(t, "the tail has ended", func() bool { n, _ := ui.Tails(); return n == 0 })
	}
}

func TestATimeoutOfTheServerEndsNoTail(t *testing.T) {
	t.Parallel()
	r, ui := withUI(t)
	const timeout = 200 * time.Millisecond
	_, at := serveUI(t, ui, timeout)
	w := r.watch(at, "c", "")
	for began, n := time.Now(), 0; time.Since(began) < 3*timeout; n++ {
		if err := r.client.Publish(t.Context(), "c", fmt.Append(nil, n), nil); err != nil {
			t.Fatal(err)
		}
		if m, _ := w.message(r); m.Payload != fmt.Sprint(n) {
			t.Fatalf("after %s, got %+v, want %d", time.Since(began), m, n)
		}
	}
}

func TestATailOfNothingIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for query, want := range map[string]string{"": "Name a channel", "channel=a.%3E.b": "last word", "channel=" + strings.Repeat("x", 300): "too long"} {
		for _, path := range []string{"channels/tail?", "channels/tail/events?"} {
			if answer, text := r.ask("GET", path+query, ""); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
				t.Errorf("%s%s: %s without %q: %s", path, query, answer.Status, want, text)
			}
		}
	}
	if answer, text := r.ask("GET", "channels/tail/events?channel=c", "", "Last-Event-ID", "yesterday"); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, "yesterday") {
		t.Errorf("a position that is none: %s: %s", answer.Status, text)
	}
	if text := r.page("channels/tail?" + url.Values{"channel": {`a<b>"&`}}.Encode()); !strings.Contains(text, "a&lt;b&gt;") || !strings.Contains(text, `data-events="../channels/tail/events?channel=a%3Cb%3E%22%26"`) || !strings.Contains(text, "weir listen") {
		t.Errorf("the page is %s", text)
	}
}
