package pgwire_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
)

// patience is longer than any single step takes on a busy machine.
const patience = time.Minute

// memory is a hub.Source with a slice as its log, and one tick per Publish.
type memory struct {
	mu    sync.Mutex
	parts []*hub.Part
	more  chan struct{} // closed at the next Publish
	fails error         // returned by Publish
}

func newMemory() *memory { return &memory{more: make(chan struct{})} }

func (m *memory) Newest(context.Context) (hub.Position, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return hub.Position{Tick: int64(len(m.parts)) + 1}, nil
}

func (m *memory) Read(_ context.Context, after hub.Position) ([]*hub.Part, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.parts[min(int(after.Tick)-1, len(m.parts)):], nil
}

func (m *memory) Next(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	for {
		m.mu.Lock()
		found, more := m.parts[min(int(after.Tick)-1, len(m.parts)):], m.more
		m.mu.Unlock()
		if len(found) > 0 {
			return found, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (m *memory) Publish(_ context.Context, drafts []hub.Draft) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails != nil {
		return m.fails
	}
	p := &hub.Part{Tick: int64(len(m.parts)) + 1, At: time.Now(), First: 1, Last: int32(len(drafts)), End: true}
	for i, d := range drafts {
		p.Messages = append(p.Messages, &hub.Message{
			Position: hub.Position{Tick: p.Tick, Index: int32(i) + 1}, Channel: d.Channel, Payload: d.Payload, Binary: d.Binary,
		})
	}
	m.parts = append(m.parts, p)
	close(m.more)
	m.more = make(chan struct{})
	return nil
}

// endpoint is a hub with a server in front of it.
type endpoint struct {
	t      testing.TB
	source *memory
	hub    *hub.Hub
	server *pgwire.Server
	addr   *net.TCPAddr
	stop   func() // ends the server, then the hub; may be called more than once
}

// start runs an endpoint until the test ends. The configuration needs no hub; without Auth every client is trusted.
func start(t testing.TB, config pgwire.Config) *endpoint {
	t.Helper()
	return startAt(t, config, "127.0.0.1:0")
}

func startAt(t testing.TB, config pgwire.Config, address string) *endpoint {
	t.Helper()
	source := newMemory()
	e := startOn(t, config, source, address)
	e.source = source
	return e
}

func startOn(t testing.TB, config pgwire.Config, source hub.Source, address string) *endpoint {
	t.Helper()
	h, stopHub := runHub(source)
	config.Hub = h
	if config.Auth == nil {
		config.Auth = pgwire.Trust
	}
	e := serve(t, config, address)
	e.hub = h
	stop := e.stop
	e.stop = sync.OnceFunc(func() { stop(); stopHub() })
	t.Cleanup(e.stop)
	return e
}

var quiet = slog.New(slog.DiscardHandler)

func runHub(source hub.Source) (h *hub.Hub, stop func()) {
	h = hub.New(hub.Config{Source: source, Logger: quiet})
	running, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { h.Run(running) })
	return h, func() { cancel(); ended.Wait() }
}

// serve runs a server until the test ends.
func serve(t testing.TB, config pgwire.Config, address string) *endpoint {
	t.Helper()
	if config.Logger == nil {
		config.Logger = quiet
	}
	var l net.Listener
	pgtest.Eventually(t, func() (err error) { // a process that another test starts holds a copy of a closed socket until it runs its program
		l, err = net.Listen("tcp", address)
		return err
	})
	e := &endpoint{t: t, server: pgwire.New(config), addr: l.Addr().(*net.TCPAddr)}
	serving, stopServing := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- e.server.Serve(serving, l) }()
	e.stop = sync.OnceFunc(func() {
		stopServing()
		if err := receive(t, served, "Serve's return"); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(e.stop)
	return e
}

// url returns the endpoint's URL for a client.
func (e *endpoint) url(user, password, options string) string {
	return fmt.Sprintf("postgres://%s:%s@%s/app?%s", user, password, e.addr, options)
}

func (e *endpoint) connect() *pgx.Conn {
	e.t.Helper()
	return e.connectWith("sslmode=disable")
}

func (e *endpoint) connectWith(options string) *pgx.Conn {
	e.t.Helper()
	conn, err := pgx.Connect(e.t.Context(), e.url("someone", "secret", options))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func receive[T any](t testing.TB, from <-chan T, what string) T {
	t.Helper()
	return pgtest.Receive(t, from, what)
}

func run(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func notification(t testing.TB, conn *pgx.Conn) *pgconn.Notification {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil {
		t.Fatalf("no notification: %v", err)
	}
	return n
}

func TestAListenerIsNotified(t *testing.T) {
	t.Parallel()
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprintf("durable=%t", durable), func(t *testing.T) {
			e := start(t, pgwire.Config{DurableNotify: durable})
			listener, other := e.connect(), e.connect()
			run(t, listener, "LISTEN Orders")
			for _, send := range []struct {
				sql  string
				args []any
			}{
				{"NOTIFY orders, 'it''s €5'", nil},
				{"SELECT pg_notify('orders', 'it''s €5')", nil},
				{"SELECT pg_notify($1, $2)", []any{"orders", "it's €5"}},
				{"select pg_catalog.pg_notify($1::text, CAST($2 AS text)) AS sent", []any{"orders", "it's €5"}},
				{"SELECT weir.notify('orders', E'it\\'s \\u20ac5')", nil},
				{"SELECT weir.publish('orders', $x$it's €5$x$)", nil},
			} {
				run(t, other, send.sql, send.args...)
				if n := notification(t, listener); n.Channel != "orders" || n.Payload != "it's €5" {
					t.Errorf("%s: %+v", send.sql, n)
				}
			}
			run(t, other, "SELECT pg_notify($1, $2)", "orders", nil)
			if n := notification(t, listener); n.Payload != "" {
				t.Errorf("a null payload came as %q", n.Payload)
			}
		})
	}
}
