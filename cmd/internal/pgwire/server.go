package pgwire

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/cmd/internal/policy"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/sleep"
)

// Config configures a Server. Hub is required, and Auth for any client to log in, unless there are Databases.
type Config struct {
	Hub    *hub.Hub
	Auth   Auth         // nil: no client can log in
	TLS    *tls.Config  // nil: without TLS
	Logger *slog.Logger // nil: slog.Default()

	RequireTLS    bool   // refuse clients that don't use TLS
	DurableNotify bool   // NOTIFY and pg_notify are logged before delivery (Hub.Publish); otherwise they are only relayed (Hub.Pass)
	ServerVersion string // reported to clients, such as the database's version; "": 18.0 (Weir)
	Database      string // the only database name accepted; "": any

	// Databases makes the server a door for several databases: each connection is handed over, before it authenticates, to the server that is
	// returned for the database it names (or for its user, if it names none). That server needs no listener and ends with Drain; all of its
	// configuration applies to the connection from then on. Of the door's, TLS, RequireTLS, MaxConnections, AuthTimeout and the limits of strangers
	// do, and its Hub, Auth and Policies are not used. When its Serve ends, so do the clients of all databases. An error is sent to the client: see
	// UnknownDatabase and Unreachable. Databases is called for whatever names strangers send, concurrently. It may wait until ctx ends, as it does when
	// the connection has to make room for others, or the drain is over. nil: the server serves its own clients.
	Databases func(ctx context.Context, name string) (*Server, error)

	// Secret and Iterations determine the salt and iteration count sent for users that do not exist. If all hubs share them,
	// comparing two hubs does not reveal which users exist. nil: random; 0: 4096.
	Secret     []byte
	Iterations int

	Policies *policy.File // what is allowed on which channels, in addition to Auth; nil: nothing else

	// StatementRate limits the statements and messages of one connection per second, with ten times as many at once: what exceeds it waits. 0: no limit.
	StatementRate float64

	MaxConnections int // 0: 100,000
	MaxStrangers   int // connections that have not logged in yet: beyond it the oldest is ended; 0: 10,000
	MaxFromAddress int // of those from one IPv4 address or IPv6 /64 network; 0: 2,000
	MaxBytes       int // of notifications queued for a connection, beyond which it is ended; 0: the hub's default
	MaxChannels    int // on which a connection may listen; 0: 10,000
	MaxPending     int // bytes of pending notifications in all connections' transactions; 0: 256 MiB
	MaxPayload     int // bytes of a NOTIFY's payload; 0: 1 MiB

	AuthTimeout  time.Duration // from connecting until a client is authenticated; 0: one minute, as PostgreSQL
	WriteTimeout time.Duration // after which a client that reads nothing is disconnected; 0: 30 s
	Drain        time.Duration // how long Serve waits for connections to end before it closes them; 0: 5 s
}

const (
	commitTimeout = 30 * time.Second       // for the hub to subscribe or to log
	lastWords     = 500 * time.Millisecond // for the client to read why it is disconnected
)

// Server is an endpoint. Create it with New, and call Serve for one or more listeners.
type Server struct {
	config     Config
	log        *slog.Logger
	maxMessage int
	stats      stats
	strangers  strangers
	throttle   throttle
	pending    atomic.Int64 // bytes of notifications in open transactions
	complaints complaints
	outages    complaints
	nextPID    atomic.Uint32
	work       context.Context // of connections: they may finish a query during the drain
	endWork    context.CancelFunc
	stopping   atomic.Bool // set under mu

	mu     sync.Mutex
	conns  map[*conn]struct{}
	behind behind // a door
}

type stats struct {
	accepted, refused, shed, authenticated, authFailed, notified, slow, delayed atomic.Int64
}

// Stats holds counters since the server was created, and the current number of connections. Connections, accepted and refused are counted by the
// door and by the database's server, strangers by the door, and the rest by the database's server.
type Stats struct {
	Connections   int   // now, including those being authenticated
	Accepted      int64 // connections
	Refused       int64 // refused because of MaxConnections
	Shed          int64 // ended before they had logged in, to make room for others
	Strangers     int   // now, not logged in yet
	Authenticated int64
	AuthFailed    int64
	Notified      int64 // notifications that clients sent
	Slow          int64 // connections ended because they did not read
	Delayed       int64 // statements and messages that waited because of StatementRate
}

// New returns a server. It accepts connections once Serve is called, or when a door hands them over.
func New(c Config) *Server {
	if c.ServerVersion == "" {
		c.ServerVersion = "18.0 (Weir)"
	}
	for _, n := range []struct {
		value *int
		def   int
	}{{&c.MaxConnections, 100_000}, {&c.MaxStrangers, 10_000}, {&c.MaxFromAddress, 2_000}, {&c.MaxChannels, 10_000}, {&c.MaxPayload, 1 << 20}, {&c.MaxPending, 256 << 20},
		{&c.Iterations, iterations}} {
		if *n.value == 0 {
			*n.value = n.def
		}
	}
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{{&c.AuthTimeout, time.Minute}, {&c.WriteTimeout, 30 * time.Second}, {&c.Drain, 5 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	if c.TLS != nil {
		c.TLS = withALPN(c.TLS)
	}
	s := &Server{
		config: c, log: c.Logger, conns: map[*conn]struct{}{},
		complaints: complaints{limit: 10, every: time.Second}, outages: complaints{limit: 1, every: time.Minute},
	}
	s.strangers.from, s.strangers.places = map[netip.Addr]*list.List{}, map[*conn]places{}
	if s.log == nil {
		s.log = slog.Default()
	}
	// Quotes in a payload are doubled in SQL.
	s.maxMessage = 2*c.MaxPayload + 64<<10
	s.nextPID.Store(notifier)
	s.work, s.endWork = context.WithCancel(context.Background())
	if len(s.config.Secret) == 0 {
		s.config.Secret = make([]byte, 32)
		randomBytes(s.config.Secret)
	}
	return s
}

// Stats returns counters and state.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	n := len(s.conns)
	s.mu.Unlock()
	return Stats{
		Connections: n, Strangers: s.strangers.size(), Shed: s.stats.shed.Load(), Accepted: s.stats.accepted.Load(), Refused: s.stats.refused.Load(), Authenticated: s.stats.authenticated.Load(),
		AuthFailed: s.stats.authFailed.Load(), Notified: s.stats.notified.Load(), Slow: s.stats.slow.Load(), Delayed: s.stats.delayed.Load(),
	}
}

// Serve accepts connections until ctx ends. Then it closes the listener, lets every client finish the query it has sent, sends it
// SQLSTATE 57P01, closes the connection, and returns nil once all have ended, after Config.Drain at the
// latest. If the listener fails, Serve returns the error after ending connections in the same way. It may be called for several listeners,
// with contexts that end together.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	var ended sync.WaitGroup // goroutines of this listener's connections
	err := s.accept(ctx, l, func(raw net.Conn) {
		c := s.add(raw)
		ended.Go(func() {
			defer s.remove(c)
			c.serve()
		})
	})
	s.drain(context.WithoutCancel(ctx), &ended)
	return err
}

func (s *Server) accept(ctx context.Context, l net.Listener, start func(net.Conn)) error {
	for {
		raw, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				raw.Close()
			}
			return nil
		case err != nil && temporary(err): // for example, out of file descriptors
			s.log.Warn("weir: can't accept a connection, trying again", "error", err)
			sleep.For(ctx, 50*time.Millisecond)
		case err != nil:
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		default:
			start(raw)
		}
	}
}

func temporary(err error) bool {
	var e interface{ Temporary() bool }
	return errors.As(err, &e) && e.Temporary()
}

func (s *Server) add(raw net.Conn) *conn {
	s.stats.accepted.Add(1)
	c := &conn{door: s, server: s, since: time.Now(), raw: raw, net: raw, tx: transaction{status: idle}}
	c.in.from = raw
	c.in.buf = c.in.small[:]
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	if oldest := s.strangers.enter(c, s.config.MaxStrangers, s.config.MaxFromAddress); oldest != nil {
		s.stats.shed.Add(1)
		oldest.shed.Store(true)
		oldest.raw.Close()
	}
	return c
}

func (s *Server) remove(c *conn) {
	s.strangers.leave(c)
	c.server.pending.Add(-int64(c.tx.bytes)) // its goroutine has ended
	if c.server != s {
		c.server.giveBack(c)
	}
	s.forget(c)
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *Server) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) > s.config.MaxConnections
}

// Client describes a connection that has logged in.
type Client struct {
	PID           uint32
	Address, User string
	Since         time.Time
}

// Clients returns all connections that have logged in: at a door those of all databases, as for End and EndUser.
func (s *Server) Clients() (all []Client) {
	s.each(func(c *conn) {
		if c.loggedIn.Load() {
			all = append(all, Client{PID: c.pid, Address: c.remote(), User: c.user, Since: c.since})
		}
	})
	return all
}

// End ends a client's connection, and reports whether it existed.
func (s *Server) End(pid uint32) (found bool) {
	s.each(func(c *conn) {
		if c.loggedIn.Load() && c.pid == pid {
			found = true
			go c.cutOff(errEnded) // it may wait for a write; it ends soon after that
		}
	})
	return found
}

// EndUser ends all connections of a user, and returns how many there were.
func (s *Server) EndUser(user string) (n int) {
	s.each(func(c *conn) {
		if c.loggedIn.Load() && c.user == user {
			n++
			go c.cutOff(errEnded) // it may wait for a write; it ends soon after that
		}
	})
	return n
}

// drain ends all connections, and waits for some. Each ends when its goroutine next reads, and at once when Config.Drain has passed or ctx ends.
func (s *Server) drain(ctx context.Context, ended *sync.WaitGroup) {
	s.mu.Lock()
	s.stopping.Store(true)
	s.mu.Unlock()
	s.each(func(c *conn) { _ = c.raw.SetReadDeadline(time.Unix(1, 0)) })
	all := make(chan struct{})
	go func() { // ends when all connections have
		ended.Wait()
		close(all)
	}()
	t := time.NewTimer(s.config.Drain)
	defer t.Stop()
	select {
	case <-all:
		return
	case <-t.C:
	case <-ctx.Done():
	}
	s.endWork()
	s.each(func(c *conn) { c.raw.Close() })
	<-all
}

func (s *Server) each(f func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		f(c)
	}
}
