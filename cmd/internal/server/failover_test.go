package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestFailoverThatLostMessagesIsToldEverywhere: a lagging standby is promoted, and its log grows past the positions that the old one had
// reached. A client that resumes at a lost position receives a gap, in every protocol, and then everything in the new log since the two
// diverged. A client that resumes before that misses nothing and receives no gap. A hub that was running during the failover notifies its
// clients.
func TestFailoverThatLostMessagesIsToldEverywhere(t *testing.T) {
	t.Parallel()
	primary := pgtest.Installed(t, nil)
	standby := pgtest.Standby(t, primary, nil)
	both := pgtest.EitherOf(t, primary, standby, "postgres")

	anonymous := web.Config{Anonymous: true}
	old := start(t, Config{Database: both, Web: anonymous})
	// A subscription, and the position after each of its messages.
	live, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Channels: []string{"c"}, Hubs: []string{"http://" + old.HTTPAddr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	said := map[string]weir.Position{}
	say := func(pool *pgxpool.Pool, sub *weir.Subscription, what string, n int) (all []string) {
		t.Helper()
		for i := range n { // one after another, so that each is in its own tick
			text := fmt.Sprint(what, " ", i)
			if _, err := pool.Exec(t.Context(), `SELECT weir.publish('c', $1)`, text); err != nil {
				t.Fatal(err)
			}
			for got := ""; got != "c="+text; {
				got = next(t, sub)
			}
			said[text] = sub.Position()
			all = append(all, text)
		}
		return all
	}
	pool := pgtest.Pool(t, primary.URL("postgres"))
	kept := say(pool, live, "kept", 5)
	pgtest.Replayed(t, primary, standby)
	pgtest.CutOff(t, standby)
	lost := say(pool, live, "lost", 10)
	straight, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Channels: []string{"c"}, Client: weir.NewClient(pgtest.Pool(t, both))})
	if err != nil {
		t.Fatal(err)
	}
	defer straight.Close()
	u, err := url.Parse(primary.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	wire := listen(t, old, u.String(), "c")

	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	pgtest.Promote(t, standby)
	s := start(t, Config{Database: standby.URL("postgres"), Web: anonymous})
	hub := "http://" + s.HTTPAddr().String()
	witness, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Channels: []string{"c"}, Hubs: []string{hub}})
	if err != nil {
		t.Fatal(err)
	}
	defer witness.Close()
	promoted := pgtest.Pool(t, standby.URL("postgres"))
	after := say(promoted, witness, "new", 20)

	ways := map[string]func(at weir.Position, n int) []string{
		"Go, over a hub": func(at weir.Position, n int) []string {
			return heardOver(t, weir.SubscribeConfig{Hubs: []string{hub}, After: at}, n)
		},
		"Go, straight from the database": func(at weir.Position, n int) []string {
			return heardOver(t, weir.SubscribeConfig{Client: weir.NewClient(promoted), After: at}, n)
		},
		"SSE":       func(at weir.Position, n int) []string { return heardByEvents(t, hub, at, n) },
		"WebSocket": func(at weir.Position, n int) []string { return heardByWebSocket(t, s, at, n) },
	}
	for name, hear := range ways {
		for i, text := range lost {
			if got, want := hear(said[text], 21), append([]string{"gap unknown"}, after...); !slices.Equal(got, want) {
				t.Errorf("%s: resumed behind lost message %d: got %q, want %q", name, i, got, want)
			}
		}
		for i, text := range kept {
			want := slices.Concat(kept[i+1:], after)
			if got := hear(said[text], len(want)); !slices.Equal(got, want) {
				t.Errorf("%s: resumed behind kept message %d: got %q, want %q", name, i, got, want)
			}
		}
	}
	for name, sub := range map[string]*weir.Subscription{"over the hub that lived through it": live, "straight": straight} {
		if got := next(t, sub); got != "gap unknown" {
			t.Errorf("%s: got %s, want a gap", name, got)
		}
		for _, text := range after {
			if got := next(t, sub); got != "c="+text {
				t.Errorf("%s: got %s, want %s", name, got, text)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var told *pgconn.PgError
	if n, err := wire.WaitForNotification(ctx); !errors.As(err, &told) || !strings.Contains(told.Message, "notifications were lost") {
		t.Errorf("over the wire protocol: got %v, %v, want to be told that notifications were lost", n, err)
	}
}

// heardOver returns the first events of a subscription in Go.
func heardOver(t *testing.T, c weir.SubscribeConfig, n int) (all []string) {
	t.Helper()
	c.Channels = []string{"c"}
	sub, err := weir.Subscribe(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for len(all) < n {
		all = append(all, strings.TrimPrefix(next(t, sub), "c="))
	}
	return all
}

// heard is an event as SSE and WebSocket have it.
type heard struct{ Type, Payload, Reason string }

func (h heard) add(all []string) []string {
	switch h.Type {
	case "message":
		return append(all, h.Payload)
	case "gap":
		return append(all, "gap "+h.Reason)
	}
	return all
}

func heardByEvents(t *testing.T, hub string, at weir.Position, n int) (all []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, hub+"/v1/events?channel=c", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Last-Event-ID", string(at))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); len(all) < n && lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data:"); ok {
			var h heard
			if err := json.Unmarshal([]byte(data), &h); err != nil {
				t.Fatal(err)
			}
			all = h.add(all)
		}
	}
	return all
}

func heardByWebSocket(t *testing.T, s *Server, at weir.Position, n int) (all []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://"+s.HTTPAddr().String()+"/v1/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	if err := conn.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"type":"subscribe","channels":["c"],"position":%q}`, at)); err != nil {
		t.Fatal(err)
	}
	for len(all) < n {
		_, data, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("after %q: %v", all, err)
		}
		var h heard
		if err := json.Unmarshal(data, &h); err != nil {
			t.Fatal(err)
		}
		all = h.add(all)
	}
	return all
}
