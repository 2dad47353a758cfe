package web

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestSubscribersGetWhatIsPublished(t *testing.T) {
	t.Parallel()
	transports(t, func(t *testing.T, open func(*rig, string, ...string) (client, said)) {
		r := newRig(t, newMemory(), nil)
		c, first := open(r, "", "orders.*", "x", "orders.>", "*.old", "orders.new.little")
		if first.Type != "subscribed" || first.at(t).IsZero() {
			t.Fatalf("the first object is %+v, want subscribed with a position", first)
		}
		r.publish("orders.new=1", "y=not for it", "x=2", "z.new=nor this", "orders.old=3 <b>&\n\"ü\"")
		last := expect(t, c, "orders.new=1", "x=2", "orders.old=3 <b>&\n\"ü\"")
		if last.Position != "7.1.5" {
			t.Errorf("the last message's position is %s, want 7.1.5", last.Position)
		}
	})
}

func TestResumeMissesNothingAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	transports(t, func(t *testing.T, open func(*rig, string, ...string) (client, said)) {
		source := newMemory()
		// Two hubs on one log: a client alternates between them.
		rigs := []*rig{newRig(t, source, nil), newRig(t, source, nil)}
		const n = 400
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; i < n; i += 2 {
				rigs[0].publish(fmt.Sprintf("a.x=%d", i), "b=noise", fmt.Sprintf("a.y=%d", i+1))
			}
		}()
		position := "0.0.0"
		for i, visits := 0, 0; i < n; visits++ {
			c, first := open(rigs[visits%2], position, "a.*")
			if first.Type != "subscribed" || first.Position != position {
				t.Fatalf("resumed at %s, and received %+v", position, first)
			}
			for range 37 {
				if i == n {
					break
				}
				s := c.next()
				if want := fmt.Sprintf("a.%c=%d", "xy"[i%2], i); s.String() != want {
					t.Fatalf("after %s: got %q %+v, want %q", position, s, s, want)
				}
				position = s.Position
				i++
			}
			c.close()
		}
		pgtest.Receive(t, done, "everything was published")
	})
}

func TestTruncatedHistoryIsAGap(t *testing.T) {
	t.Parallel()
	transports(t, func(t *testing.T, open func(*rig, string, ...string) (client, said)) {
		source := newMemory()
		r := newRig(t, source, nil)
		for i := range 10 {
			r.publish(fmt.Sprintf("a=%d", i))
		}
		eventually(t, func() error {
			if at := r.hub.Position(); at.Tick != 11 {
				return fmt.Errorf("the hub is at %s", at)
			}
			return nil
		})
		source.truncate(6)
		c, _ := open(r, "7.2.1", "a")
		gap := expect(t, c, "gap truncated")
		if gap.From != "7.2.1" || gap.To != "7.7.0" {
			t.Errorf("the gap goes from %s to %s, want 7.2.1 to 7.7.0", gap.From, gap.To)
		}
		if gap.eventID != "" && gap.eventID != "7.7.0" {
			t.Errorf("the gap's event has id %s: a client that resumes there receives the gap again", gap.eventID)
		}
		expect(t, c, "a=6", "a=7", "a=8", "a=9")

		c, _ = open(r, "7.99.1", "a")
		if gap := expect(t, c, "gap unknown"); gap.From != "7.99.1" || gap.To != "7.11.0" {
			t.Errorf("the gap goes from %s to %s, want 7.99.1 to 7.11.0", gap.From, gap.To)
		}
		r.publish("a=after")
		expect(t, c, "a=after")
	})
}

func TestBinaryPayloadsAndMessagesThatAreNotLogged(t *testing.T) {
	t.Parallel()
	transports(t, func(t *testing.T, open func(*rig, string, ...string) (client, said)) {
		r := newRig(t, newMemory(), nil)
		c, _ := open(r, "", ">")
		if err := r.hub.Publish(t.Context(), hub.Draft{Channel: "b", Payload: []byte{0, 0xff, '\n'}, Binary: true}); err != nil {
			t.Fatal(err)
		}
		expect(t, c, "b=AP8K")
		if err := r.hub.Pass(t.Context(), hub.Draft{Channel: "p", Payload: []byte("passed")}); err != nil {
			t.Fatal(err)
		}
		if s := expect(t, c, "p=passed"); s.Position != "" || s.eventID != "" {
			t.Errorf("a message that is not in the log has position %q and id %q", s.Position, s.eventID)
		}
	})
}

func TestHeartbeatsStandWhereTheClientStands(t *testing.T) {
	t.Parallel()
	transports(t, func(t *testing.T, open func(*rig, string, ...string) (client, said)) {
		r := newRig(t, newMemory(), func(c *Config) { c.Heartbeat = time.Millisecond })
		const n = 3000
		c, first := open(r, "", "a")
		done, window := make(chan struct{}), make(chan struct{}, 3) // a few messages at a time, so that streams are idle in between
		go func() {
			defer close(done)
			for i := range n {
				window <- struct{}{}
				r.publish("noise=", fmt.Sprintf("a=%d", i))
			}
		}()
		at, got, beats := first.at(t), 0, 0
		for got < n {
			s := c.next()
			p := s.at(t)
			switch s.Type {
			case "message":
				if want := fmt.Sprintf("a=%d", got); s.String() != want {
					t.Fatalf("got %s, want %s", s, want)
				}
				if !at.Before(p) {
					t.Fatalf("message %d at %s arrived after position %s had been sent: a client that resumed there would lose it", got, p, at)
				}
				got++
				<-window
			case "heartbeat":
				if p.Before(at) {
					t.Fatalf("a heartbeat has position %s, which is before %s", p, at)
				}
				beats++
			default:
				t.Fatalf("got %+v", s)
			}
			at = p
		}
		pgtest.Receive(t, done, "everything was published")
		// The position of an idle stream advances past messages on other channels.
		r.publish("noise=")
		for at != r.source.end() {
			at = expectType(t, c, "heartbeat").at(t)
		}
		t.Logf("%d heartbeats among %d messages", beats, n)
	})
}

func expectType(t *testing.T, c client, kind string) said {
	t.Helper()
	s := c.next()
	if s.Type != kind {
		t.Fatalf("got %+v, want a %s", s, kind)
	}
	return s
}

func TestSlowConsumersAreCutOffOrSkippedAhead(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 100<<10)
	// flood publishes to a client that does not read, until enough returns true.
	flood := func(r *rig, enough func(hub.Stats) bool) (n int) {
		eventually(r.t, func() error {
			r.publish(fmt.Sprintf("a=%06d%s", n, big))
			n++
			if s := r.hub.Stats(); !enough(s) {
				return fmt.Errorf("after %d messages: %+v", n, s)
			}
			return nil
		})
		return n
	}
	slow := func(c *Config) {
		c.Limits.QueueBytes = 200 << 10
		c.WriteTimeout = time.Minute
	}
	t.Run("websocket disconnected", func(t *testing.T) {
		r := newRig(t, newMemory(), slow)
		c := r.ws("")
		c.ask(`{"type":"subscribe","channels":["a"]}`)
		flood(r, func(s hub.Stats) bool { return s.Slow > 0 })
		if code := c.end(); code != "4408" { // it reads within closeGrace, so it receives the code
			t.Errorf("closed with %s, want 4408", code)
		}
	})
	t.Run("sse disconnected, and resumed", func(t *testing.T) {
		r := newRig(t, newMemory(), slow)
		c := r.sse("?channel=a", "")
		c.next()
		r.publish("a=first")
		last, got := expect(t, c, "a=first").eventID, 0
		n := flood(r, func(s hub.Stats) bool { return s.Slow > 0 })
		for {
			s, err := c.read()
			if err != nil {
				break
			}
			if s.Type == "end" {
				if s.Code != "slow" {
					t.Errorf("ended with %q, want slow", s.Code)
				}
				continue
			}
			last = s.eventID
			got++
		}
		if got == n {
			t.Fatalf("got %d of %d messages", got, n)
		}
		c = r.sse("?channel=a", last)
		expect(t, c, "subscribed")
		for ; got < n; got++ {
			if s := c.next(); s.Type != "message" || s.Payload[:6] != fmt.Sprintf("%06d", got) {
				t.Fatalf("got %s %.20s, want message %d", s.Type, s.Payload, got)
			}
		}
	})
	for _, transport := range []string{"websocket", "sse"} {
		t.Run(transport+" skipped ahead", func(t *testing.T) {
			r := newRig(t, newMemory(), slow)
			var c client
			if transport == "sse" {
				c = r.sse("?channel=a&slow=skip", "")
				c.next()
			} else {
				c = r.ws("?slow=skip")
				c.(*wsClient).ask(`{"type":"subscribe","channels":["a"]}`)
			}
			n := flood(r, func(s hub.Stats) bool { return s.Skipped > 3 })
			// Gaps cover exactly the messages that it does not receive.
			gaps := 0
			for next := int64(0); next < int64(n); {
				s := c.next()
				if s.Type == "message" {
					if s.Payload[:6] != fmt.Sprintf("%06d", next) {
						t.Fatalf("got message %.6s, want %d", s.Payload, next)
					}
					next++
					continue
				}
				from, err := hub.ParsePosition(s.From)
				if s.Type != "gap" || s.Reason != "slow" || err != nil || from != (hub.Position{Epoch: epoch, Tick: next + 1}) {
					t.Fatalf("instead of message %d: %+v", next, s)
				}
				to, err := hub.ParsePosition(s.To)
				if err != nil {
					t.Fatal(err)
				}
				next = to.Tick
				gaps++
			}
			if gaps == 0 {
				t.Error("there was no gap")
			}
		})
	}
}

func TestStalledClientDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { c.Limits.QueueBytes = 200 << 10 })
	stalled := r.ws("")
	stalled.ask(`{"type":"subscribe","channels":["a"]}`)
	other := r.sse("?channel=a", "")
	other.next()
	big := strings.Repeat("x", 100<<10)
	for i := 0; r.hub.Stats().Slow == 0; i++ {
		r.publish(fmt.Sprintf("a=%d%s", i, big))
		if s := other.next(); s.Type != "message" {
			t.Fatalf("got %+v", s)
		}
		if i > 1000 {
			t.Fatal("the stalled client was never disconnected")
		}
	}
	eventually(t, func() error { // its connection is closed although it never reads
		if n := r.web.count(); n != 1 {
			return fmt.Errorf("%d streams are open, want 1", n)
		}
		return nil
	})
}

func TestDrainSendsClientsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), nil)
	ws, sse := r.ws(""), r.sse("?channel=a", "")
	ws.ask(`{"type":"subscribe","channels":["a"]}`)
	sse.next()
	r.web.Drain()
	if response, _ := r.get("/readyz", nil); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("/readyz answers %d while draining", response.StatusCode)
	}
	r.publish("a=still served")
	expect(t, ws, "a=still served")
	expect(t, sse, "a=still served")
	r.stopHub()
	if code := ws.end(); code != "1012" {
		t.Errorf("WebSocket closed with %s, want 1012", code)
	}
	sse.retry = ""
	if sse.end(); sse.retry == "" {
		t.Error("the event stream ended without a reconnection delay")
	}
	if err := r.web.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if _, response, err := r.dial("", nil); err == nil || response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a new client after Shutdown: %v, want 503", err)
	}
}

// TestAWebSocketThatComesAsTheHubClosesIsSentAway: a client that opens a WebSocket between the hub's end and the server's, and sends a
// request immediately, is closed with 1012.
func TestAWebSocketThatComesAsTheHubClosesIsSentAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), nil)
	r.stopHub()
	for range 20 {
		ws := r.ws("")
		_ = ws.conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"subscribe","channels":["a"]}`)) // it may be closed already
		if code := ws.end(); code != "1012" {
			t.Errorf("closed with %s, want 1012", code)
		}
	}
}

func TestClientsThatGoAreForgotten(t *testing.T) {
	t.Parallel()
	transports(t, func(t *testing.T, open func(*rig, string, ...string) (client, said)) {
		r := newRig(t, newMemory(), nil)
		for range 20 {
			c, _ := open(r, "", "a")
			c.close()
		}
		eventually(t, func() error {
			if s, n := r.hub.Stats(), r.web.count(); s.Subscribers != 0 || s.Channels != 0 || n != 0 {
				return fmt.Errorf("there are still %d subscribers, %d channels, %d streams", s.Subscribers, s.Channels, n)
			}
			return nil
		})
	})
}

func TestSilentWebSocketIsDropped(t *testing.T) {
	pgtest.Alone(t, "a client that sends nothing for a moment counts as silent")
	r := newRig(t, newMemory(), func(c *Config) {
		c.Heartbeat, c.WriteTimeout = 5*time.Millisecond, 300*time.Millisecond
	})
	r.ws("") // it never reads, so it never answers a ping
	eventually(t, func() error {
		if n := r.web.count(); n != 0 {
			return fmt.Errorf("%d streams are open, want none", n)
		}
		return nil
	})
	reading := r.ws("")
	for range 100 { // a client that reads also answers pings, and stays connected
		expectType(t, reading, "heartbeat")
	}
}

// TestNobodyIsAskedWhoIsWaitedFor: a client whose request the hub carries out is not pinged. It may be sending the next one, which is not read, and many libraries close a connection on which they
// can't write a pong for five seconds.
func TestNobodyIsAskedWhoIsWaitedFor(t *testing.T) {
	t.Parallel()
	source := newMemory()
	goOn := make(chan struct{})
	source.refuse = func(hub.Draft) error { <-goOn; return nil }
	r := newRig(t, source, func(c *Config) { c.Heartbeat = 20 * time.Millisecond })
	c := r.ws("")
	pings := func(least int32) (unasked int) { // counts heartbeats without a ping before them, which come together
		t.Helper()
		for last := c.pings.Load(); unasked < 5 && c.pings.Load() < least; {
			expectType(t, c, "heartbeat")
			if now := c.pings.Load(); now > last {
				last, unasked = now, 0
			} else {
				unasked++
			}
		}
		return unasked
	}
	if n := pings(10); n > 0 {
		t.Errorf("while nothing happens, %d heartbeats came without a ping", n)
	}
	c.say(`{"type":"publish","channel":"a","payload":"1"}`)
	if pings(c.pings.Load()+100) < 5 {
		t.Error("it goes on to be pinged")
	}
	close(goOn)
	for c.next().Type != "published" {
	}
	if pings(c.pings.Load()+5) >= 5 {
		t.Error("it is not pinged any more")
	}
}
