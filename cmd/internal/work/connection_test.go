package work_test

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestASessionAtAnotherHubKeepsWhatItHolds: a session that names attempts of another hub when it opens keeps them for as long as it is connected.
func TestASessionAtAnotherHubKeepsWhatItHolds(t *testing.T) {
	t.Parallel()
	s := newSite(t, shortLease)
	other := s.at(s.hub(func(c *server.Config) { shortLease(c); c.Name = "other" }))
	id := s.enqueue("mail", "welcome", "{}")
	k, f := s.dial(m{"queues": m{"mail": 1}})
	j := k.next().Jobs[0]
	_ = k.conn.CloseNow()
	k, _ = other.dial(m{"queues": m{"mail": 0}, "worker": f.Worker, "held": []string{j.Token}})
	for begin := time.Now(); time.Since(begin) < 6*time.Second; { // three leases
		k.send(m{"type": "ping"})
		if f := k.next(); f.Type != "pong" {
			t.Fatalf("%+v", f)
		}
		if is := s.state(id); is != "running 1" {
			t.Fatal(is)
		}
	}
	s.cancel(id)
	if f := k.next(); f.Type != "cancel" || f.Attempts[0] != (interrupted{j.Token, "cancelled"}) {
		t.Errorf("%+v", f)
	}
}

// TestAClientThatIsGoneTakesNoJobs: one whose connection is reset as soon as it has opened a session keeps none from others.
func TestAClientThatIsGoneTakesNoJobs(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	host := strings.TrimPrefix(s.url, "http://")
	const text = `{"type": "open", "queues": {"mail": 1}}`
	for range 100 {
		conn, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Write([]byte("GET /v1/work/ws HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: weir.work.v1\r\n\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || r.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%+v %v", r, err)
		}
		_, err = conn.Write(append([]byte{0x81, 0x80 | byte(len(text)), 0, 0, 0, 0}, text...)) // a text frame, masked with zeros
		if err = errors.Join(err, conn.(*net.TCPConn).SetLinger(0), conn.Close()); err != nil {
			t.Fatal(err)
		}
	}
	const n = 100
	k, _ := s.dial(m{"queues": m{"mail": n}})
	for range n {
		s.enqueue("mail", "welcome", "{}")
	}
	for got := 0; got < n; {
		f := k.next()
		for _, j := range f.Jobs {
			if got++; j.Attempt != 1 {
				t.Fatalf("somebody else had %+v", j)
			}
		}
	}
}

// TestOneOfTwoEndsIsRecorded: when two hubs record different ends of an attempt at the same time, one is recorded, and the other is told that it was not.
func TestOneOfTwoEndsIsRecorded(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	other := s.at(s.hub(func(c *server.Config) { c.Name = "other" }))
	ends := []struct {
		end m
		is  string
	}{
		{m{"outcome": "completed"}, "completed"}, {m{"outcome": "failed", "final": true}, "failed"}, {m{"outcome": "cancelled"}, "cancelled"}, {m{"outcome": "snoozed", "delay": 3600}, "scheduled"},
	}
	for i := range 36 {
		id := s.enqueue("mail", "welcome", "{}")
		j, _ := s.one(m{"queues": m{"mail": 1}})
		a, b := ends[i%4], ends[(i%4+1+i/4%3)%4]
		refused := make(chan string, 1)
		go func() {
			refused <- other.record(m{"token": j.Token, "outcome": b.end["outcome"], "final": b.end["final"], "delay": b.end["delay"]})[0]
		}()
		here := s.record(m{"token": j.Token, "outcome": a.end["outcome"], "final": a.end["final"], "delay": a.end["delay"]})[0]
		there := pgtest.Receive(t, refused, "the other hub answers")
		want := a.is
		if there == "" {
			want = b.is
		}
		if is := s.state(id); (here == "") == (there == "") || !strings.HasPrefix(is, want+" ") {
			t.Errorf("%v: %q; %v: %q; the job is %s", a.end, here, b.end, there, is)
		}
	}
}
