package pgwire_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestClientsAreToldThatTheServerStops(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{Drain: time.Hour}) // for which it does not wait
	idle, _ := e.session(nil)
	listening, _ := e.session(nil)
	listening.asks("LISTEN a", "LISTEN /I")
	open, _ := e.session(nil)
	open.asks("BEGIN", "BEGIN /T", "NOTIFY a", "NOTIFY /T")
	stopped := make(chan struct{})
	go func() { e.stop(); close(stopped) }()
	receive(t, stopped, "the stop")
	for _, r := range []*raw{idle, listening, open} {
		r.expect("FATAL 57P01")
		r.expect("gone")
	}
	if _, err := net.Dial("tcp", e.addr.String()); err == nil {
		t.Error("it still accepts connections")
	}
}

func TestStopDoesNotWaitForClientsThatDoNotRead(t *testing.T) {
	pgtest.Alone(t, "it measures the time")
	e := start(t, pgwire.Config{Drain: 10 * time.Second, WriteTimeout: time.Hour, MaxBytes: 64 << 20})
	deaf, _ := e.session(nil)
	deaf.send(&pgproto3.Query{String: "LISTEN a"})
	deaf.expect("LISTEN")
	flood(t, e, "a", 64<<10, 100)
	begun := time.Now()
	e.stop()
	if d := time.Since(begun); d > 5*time.Second {
		t.Errorf("it took %s", d)
	}
}

func TestStoppingFinishesTheQueryThatRuns(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	source := &slowSource{memory: newMemory(), begun: make(chan struct{}, 1), release: release}
	e := startOn(t, pgwire.Config{DurableNotify: true}, source, "127.0.0.1:0")
	r, _ := e.session(nil)
	r.send(&pgproto3.Query{String: "NOTIFY a"})
	receive(t, source.begun, "the publish")
	stopped := make(chan struct{})
	go func() { e.stop(); close(stopped) }()
	eventually(t, "the listener is closed", func() bool {
		conn, err := net.Dial("tcp", e.addr.String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(release)
	r.expect("NOTIFY")
	r.expect("/I")
	r.expect("FATAL 57P01")
	receive(t, stopped, "the stop")
}

// slowSource publishes once the test allows it.
type slowSource struct {
	*memory
	begun   chan struct{}
	release chan struct{}
}

func (s *slowSource) Publish(ctx context.Context, drafts []hub.Draft) error {
	s.begun <- struct{}{}
	<-s.release
	return s.memory.Publish(ctx, drafts)
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	pgtest.Until(t, what, holds)
}

// flood relays n messages.
func flood(t testing.TB, e *endpoint, channel string, bytes, n int) {
	t.Helper()
	payload := []byte(strings.Repeat("x", bytes))
	for range n {
		if err := e.hub.Pass(t.Context(), hub.Draft{Channel: channel, Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhoDoesNotReadIsCutOffAndNobodyElseNotices(t *testing.T) {
	pgtest.Alone(t, "who reads has to keep up")
	e := start(t, pgwire.Config{MaxBytes: 256 << 10})
	deaf, _ := e.session(nil)
	if err := deaf.net.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	deaf.asks("LISTEN a", "LISTEN /I")
	const readers, messages = 20, 200
	var all sync.WaitGroup
	var read atomic.Int64
	for range readers {
		r, _ := e.session(nil)
		r.asks("LISTEN a", "LISTEN /I")
		all.Go(func() {
			for range messages {
				if got := r.next(); !strings.HasPrefix(got, "!a x") {
					t.Errorf("a reader got %.20s", got)
					return
				}
				read.Add(1)
			}
		})
	}
	// As fast as the readers follow, and more than fits into the socket of the client that does not read.
	for i := range messages {
		flood(t, e, "a", 64<<10, 1)
		eventually(t, "all that read have it", func() bool { return read.Load() == int64((i+1)*readers) })
	}
	all.Wait()
	eventually(t, "the client that does not read is disconnected", func() bool { return e.server.Stats().Slow == 1 })
	eventually(t, "its connection has ended", func() bool { return e.server.Stats().Connections == readers })
	for {
		if got := deaf.next(); got == "gone" {
			break
		}
	}
}

func TestWhoTakesNothingForTooLongIsCutOff(t *testing.T) {
	pgtest.Alone(t, "too long is a moment")
	e := start(t, pgwire.Config{WriteTimeout: 200 * time.Millisecond, MaxBytes: 1 << 30})
	deaf, _ := e.session(nil)
	deaf.asks("LISTEN a", "LISTEN /I")
	flood(t, e, "a", 64<<10, 200)
	eventually(t, "it is disconnected", func() bool { return e.server.Stats().Slow == 1 })
	eventually(t, "its connection has ended", func() bool { return e.server.Stats().Connections == 0 })
}

func TestWhoDoesNotReadInATransactionIsToldWhy(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{MaxBytes: 10 << 10})
	r, _ := e.session(nil)
	r.asks("LISTEN a", "LISTEN /I", "BEGIN", "BEGIN /T")
	flood(t, e, "a", 8<<10, 3)
	r.expect("FATAL 53400")
	r.expect("gone")
}

func TestAGapEndsTheConnection(t *testing.T) {
	t.Parallel()
	source := &gapSource{memory: newMemory(), gap: make(chan struct{})}
	e := startOn(t, pgwire.Config{}, source, "127.0.0.1:0")
	r, _ := e.session(nil)
	r.asks("LISTEN a", "LISTEN /I")
	close(source.gap)
	r.expect("FATAL 53400")
	r.expect("gone")
}

// gapSource loses ticks when the test says so.
type gapSource struct {
	*memory
	gap  chan struct{}
	lost bool
}

func (s *gapSource) Next(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	if s.lost {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	select {
	case <-s.gap:
		s.lost = true
		return nil, &hub.TruncatedError{From: hub.Position{Tick: 100}}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestPayloadsArriveWhole(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	listener, sender := e.connect(), e.connect()
	run(t, listener, "LISTEN a")
	whole := strings.Repeat("'€\\", 1<<20/5)
	for _, durable := range []bool{false, true} {
		sql := "SELECT pg_notify('a', $1)"
		if durable {
			sql = "SELECT weir.notify('a', $1)"
		}
		run(t, sender, sql, whole)
		if n := notification(t, listener); n.Payload != whole {
			t.Errorf("%d bytes came", len(n.Payload))
		}
	}
	run(t, sender, "NOTIFY a, '"+strings.ReplaceAll(whole, "'", "''")+"'")
	if n := notification(t, listener); n.Payload != whole {
		t.Errorf("%d bytes came", len(n.Payload))
	}
	_, err := sender.Exec(t.Context(), "SELECT pg_notify('a', $1)", strings.Repeat("x", 1<<20+1))
	if err == nil || !strings.Contains(err.Error(), "22023") {
		t.Errorf("a payload past the limit: %v", err)
	}
	long := strings.Repeat("c", hub.MaxChannel)
	run(t, listener, "LISTEN "+long)
	run(t, sender, "NOTIFY "+long)
	notification(t, listener)
}

func TestPayloadsThatAreNoTextComeInHexadecimal(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	r, _ := e.session(nil)
	r.asks("LISTEN a", "LISTEN /I")
	for _, d := range []hub.Draft{{Payload: []byte("abc"), Binary: true}, {Payload: []byte{0xff, 0}}, {Payload: []byte("a\x00b")}, {Binary: true}} {
		d.Channel = "a"
		if err := e.hub.Pass(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{`\x616263`, `\xff00`, `\x610062`, `\x`} {
		r.expect("!a " + want)
	}
}

func TestAfterUnlistenNothingComes(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	r, _ := e.session(nil)
	for i := range 200 {
		channel := fmt.Sprintf("c%d", i)
		r.asks("LISTEN "+channel, "LISTEN /I")
		flooding := make(chan struct{})
		go func() { flood(t, e, channel, 10, 50); close(flooding) }()
		r.send(&pgproto3.Query{String: "UNLISTEN *"})
		for got := ""; got != "/I"; {
			if got = r.next(); got == "gone" {
				t.Fatal(got)
			}
		}
		r.asks("SELECT 1", "[?column?:23] (1) SELECT 1 /I") // with nothing in between
		pgtest.Receive(t, flooding, "everything was sent")
	}
}

func TestAClientMayReconnectToTheNextHub(t *testing.T) {
	t.Parallel()
	address := pgtest.Address(t)
	e := startAt(t, pgwire.Config{}, address)
	for range 3 {
		conn := e.connect()
		run(t, conn, "LISTEN a")
		run(t, conn, "NOTIFY a, 'x'")
		notification(t, conn)
		e.stop()
		e = startAt(t, pgwire.Config{}, address)
	}
}
