package work_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestLongFramesWaitForTheDatabase: while the database keeps it waiting, a hub reads no more of a session than it can hold for many of them: what a session sends after long ends waits for these.
// A client that it does not read is not asked for a pong either: many libraries close a connection when they can't write one for 5 s.
func TestLongFramesWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	other := s.at(s.hub(func(c *server.Config) {
		c.JobsLease = 6 * time.Second // it pings silent clients every 2 s
		c.Web.BodyTimeout = generous  // for long frames on a busy machine
	}))
	s.enqueue("mail", "welcome", "{}")
	j := s.take(m{"queues": m{"mail": 1}}).Jobs[0]
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1464158548, max(worker)) FROM weir.batch`); err != nil { // for which each call that records for this worker waits
		t.Fatal(err)
	}
	long, err := json.Marshal(m{"type": "record", "id": 1, "ends": []m{{"token": j.Token, "output": strings.Repeat("x", 8<<20-1000)}}})
	if err != nil {
		t.Fatal(err)
	}
	k, _ := other.dial(m{"queues": m{"mail": 0}})
	sent := make(chan struct{})
	go func() { // ends when the hub reads on, at the latest
		defer close(sent)
		for range 6 {
			k.write(long)
		}
		k.send(m{"type": "ping"})
	}()
	pgtest.Until(t, "the hub records", func() (waits bool) {
		if err := s.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 1464158548 AND NOT granted)`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	pings := k.pings.Load()
	select {
	case f := <-k.frames:
		if !isUnavailable(f) { // as the first is already, on a slow machine
			t.Fatalf("it has read on, and answers %+v", f)
		}
	case <-time.After(3 * time.Second): // as long as it may take to read them, and in which it pings those that are silent
	}
	if n := k.pings.Load(); n != pings {
		t.Errorf("it pings a client that it does not read %d times", n-pings)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for recorded := false; !recorded; { // a record waits for five seconds at most, and is unavailable then
		f := k.next()
		if recorded = f.Type == "recorded" && f.Results[0].Recorded; !recorded && !isUnavailable(f) {
			t.Fatalf("%+v", f)
		}
	}
	<-sent
}

func isUnavailable(f frame) bool {
	return f.Type == "recorded" && f.Results[0].Refusal == "unavailable"
}

// TestAFrameThatDoesNotArriveEndsTheSession: a client can't keep a hub reading.
func TestAFrameThatDoesNotArriveEndsTheSession(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *server.Config) { c.Web.BodyTimeout = 100 * time.Millisecond })
	k := s.connect("")
	w, err := k.conn.Writer(t.Context(), websocket.MessageText)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(bytes.Repeat([]byte(" "), 100_000)); err != nil { // more than is kept back
		t.Fatal(err)
	}
	select {
	case f, open := <-k.frames:
		if open {
			t.Errorf("%+v", f)
		}
	case <-time.After(generous):
		t.Error("the session goes on")
	}
}

// TestALongFrameOnASlowLinkEndsNoSession: while it arrives, the client can't answer pings, and is alive.
func TestALongFrameOnASlowLinkEndsNoSession(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *server.Config) {
		c.JobsLease = 3 * time.Second // it pings silent clients each second, and waits for two
		c.Web.BodyTimeout = generous
	})
	conn, answers := s.raw()
	defer conn.Close()
	write := func(b []byte) {
		t.Helper()
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	write(frameOf(`{"type": "open", "queues": {"mail": 0}}`))
	long := frameOf(`{"type": "ping", "id": "last"` + strings.Repeat(" ", 1_900_000) + `}`) // of which almost half, five seconds, fits what the hub makes room for at once
	const parts = 100
	for i := range parts {
		write(long[i*len(long)/parts : (i+1)*len(long)/parts])
		time.Sleep(100 * time.Millisecond) // the link is slow
	}
	if err := conn.SetReadDeadline(time.Now().Add(generous)); err != nil {
		t.Fatal(err)
	}
	for text := ""; !strings.Contains(text, `"last"`); {
		b, err := answers.ReadByte()
		if err != nil {
			t.Fatalf("%v, after %q", err, text)
		}
		text += string(b)
	}
}

// slowly is a connection that is read at a megabyte a second.
type slowly struct{ net.Conn }

func (c slowly) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), 10_000)])
	time.Sleep(time.Duration(n) * time.Microsecond)
	return n, err
}

// TestAClientThatReadsSlowlyKeepsItsSession: a hub can't ask it for a pong while it sends it long jobs.
func TestAClientThatReadsSlowlyKeepsItsSession(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *server.Config) { c.JobsLease = 3 * time.Second }) // it asks silent clients each second, and waits for two
	const jobs = 8
	for range jobs {
		s.enqueue("mail", "welcome", `{"x": "`+strings.Repeat("x", 1<<20-100)+`"}`)
	}
	ctx, cancel := context.WithTimeout(t.Context(), generous)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, strings.Replace(s.url, "http", "ws", 1)+"/v1/work/ws", &websocket.DialOptions{
		Subprotocols: []string{"weir.work.v1"},
		HTTPClient: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err == nil {
				err = c.(*net.TCPConn).SetReadBuffer(64 << 10) // so that the hub has to wait for it
			}
			return slowly{c}, err
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(64 << 20)
	if err := conn.Write(ctx, websocket.MessageText, []byte(`{"type": "open", "queues": {"mail": 8}}`)); err != nil {
		t.Fatal(err)
	}
	for got := 0; got < jobs; {
		_, b, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("after %d of %d jobs: %v", got, jobs, err)
		}
		var f frame
		if err := json.Unmarshal(b, &f); err != nil {
			t.Fatal(err)
		}
		got += len(f.Jobs)
	}
}

// TestAClientIsAskedAsSoonAsItHasBeenSilent: not a pause later, as a ticker would have it for one that has sent something since its last turn.
func TestAClientIsAskedAsSoonAsItHasBeenSilent(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *server.Config) { c.JobsLease = 24 * time.Second }) // it pings clients that have been silent for 8 s
	first, _ := s.dial(m{"queues": m{"mail": 0}})
	time.Sleep(4 * time.Second)
	first.send(m{"type": "ping"})
	if f := first.next(); f.Type != "pong" {
		t.Fatalf("%+v", f)
	}
	time.Sleep(2 * time.Second)
	second, _ := s.dial(m{"queues": m{"mail": 0}})
	pgtest.Until(t, "the hub pings the second client", func() bool { return second.pings.Load() > 0 })
	if first.pings.Load() == 0 {
		t.Error("the first, which has been silent for longer, was not pinged before")
	}
}

// raw opens a WebSocket of which the test makes the frames.
func (s *site) raw() (net.Conn, *bufio.Reader) {
	s.t.Helper()
	host := strings.TrimPrefix(s.url, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = conn.Write([]byte("GET /v1/work/ws HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: weir.work.v1\r\n\r\n"))
	if err != nil {
		s.t.Fatal(err)
	}
	from := bufio.NewReader(conn)
	r, err := http.ReadResponse(from, nil)
	if err != nil || r.StatusCode != http.StatusSwitchingProtocols {
		s.t.Fatalf("%+v %v", r, err)
	}
	return conn, from
}

// frameOf returns a text frame, masked with zeros.
func frameOf(text string) []byte {
	head := []byte{0x81, 0x80 | byte(len(text))}
	if len(text) > 125 {
		head = binary.BigEndian.AppendUint64([]byte{0x81, 0x80 | 127}, uint64(len(text)))
	}
	return append(append(head, 0, 0, 0, 0), text...)
}

// TestAClientThatIsGoneTakesNoJobs: one whose connection is reset as soon as it has opened a session keeps none from others.
func TestAClientThatIsGoneTakesNoJobs(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	const text = `{"type": "open", "queues": {"mail": 1}}`
	for range 100 {
		conn, _ := s.raw()
		_, err := conn.Write(frameOf(text))
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
