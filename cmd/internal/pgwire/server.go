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

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/sleep"
)

// Config says how a Server works. Hub is required, and so is Auth for anybody to get in.
type Config struct {
	Hub    *hub.Hub
	Auth   Auth         // nil: nobody gets in
	TLS    *tls.Config  // nil: without TLS
	Logger *slog.Logger // nil: slog.Default()

	RequireTLS    bool   // refuse clients that don't use TLS
	DurableNotify bool   // NOTIFY and pg_notify are logged before they are delivered (Hub.Publish); else they are passed on (Hub.Pass)
	ServerVersion string // what clients are told, such as the version of the database behind; "": 18.0 (Weir)
	Database      string // the name of the only database there is; "": any name will do

	// Secret is what salts of users that do not exist are made from, and Iterations what is shown for them: where all hubs have the same,
	// nobody can tell by asking two of them who exists. nil: random; 0: 4096.
	Secret     []byte
	Iterations int

	MaxConnections int // 0: 100,000
	MaxStrangers   int // of them that have not logged in yet: past it the oldest is ended; 0: 10,000
	MaxFromAddress int // of those from one address, or network of 64 bits; 0: 2,000
	MaxBytes       int // of notifications that may be queued for a connection, before it is cut off; 0: the hub's default
	MaxChannels    int // that a connection may listen on; 0: 10,000
	MaxPending     int // bytes that transactions of all connections may hold together; 0: 256 MiB
	MaxPayload     int // bytes of a NOTIFY's payload; 0: 1 MiB

	AuthTimeout  time.Duration // from connecting until a client is authenticated; 0: one minute, as PostgreSQL
	WriteTimeout time.Duration // a client that takes no byte for so long is cut off; 0: 30 s
	Drain        time.Duration // how long Serve waits for connections to end, before it closes them; 0: 5 s
}

const (
	commitTimeout = 30 * time.Second       // for the hub to subscribe or to log
	lastWords     = 500 * time.Millisecond // for the client to take the reason why it is cut off
)

// Server is an endpoint. Make it with New; Serve it on one listener or on several.
type Server struct {
	config      Config
	log         *slog.Logger
	mostMessage int
	stats       stats
	crowd       crowd
	throttle    throttle
	pending     atomic.Int64 // bytes of notifications in open transactions
	complaints  complaints
	outages     complaints
	nextPID     atomic.Uint32
	stopping    atomic.Bool

	mu    sync.Mutex
	conns map[*conn]struct{}
}

type stats struct {
	accepted, refused, shed, authenticated, authFailed, notified, slow atomic.Int64
}

// Stats are counters since the server was made, and how many connections there are now.
type Stats struct {
	Connections   int   // now, those that are being authenticated among them
	Accepted      int64 // connections
	Refused       int64 // of them past MaxConnections
	Shed          int64 // of them that had not logged in and made room for others
	Strangers     int   // now, that have not logged in yet
	Authenticated int64
	AuthFailed    int64
	Notified      int64 // notifications that clients sent
	Slow          int64 // connections cut off because they did not read
}

// New returns a server that Serve brings to life.
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
		complaints: complaints{most: 10, every: time.Second}, outages: complaints{most: 1, every: time.Minute},
	}
	s.crowd.from, s.crowd.places = map[netip.Addr]*list.List{}, map[*conn]places{}
	if s.log == nil {
		s.log = slog.Default()
	}
	// Quotes in a payload are doubled in SQL.
	s.mostMessage = 2*c.MaxPayload + 64<<10
	s.nextPID.Store(notifier)
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
		Connections: n, Strangers: s.crowd.size(), Shed: s.stats.shed.Load(), Accepted: s.stats.accepted.Load(), Refused: s.stats.refused.Load(), Authenticated: s.stats.authenticated.Load(),
		AuthFailed: s.stats.authFailed.Load(), Notified: s.stats.notified.Load(), Slow: s.stats.slow.Load(),
	}
}

// Serve accepts connections until ctx ends. Then it closes the listener, lets every client finish the query it has sent, tells it
// that the server is going (SQLSTATE 57P01), closes the connection, and returns nil when all have ended: after Config.Drain at the
// latest. A listener that fails is an error, after which connections are ended in the same way. It may be called for several listeners,
// with contexts that end together.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	// Queries outlive ctx: the drain lets them finish.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var ended sync.WaitGroup // goroutines of this listener's connections
	err := s.accept(ctx, l, func(raw net.Conn) {
		c := s.add(raw)
		ended.Go(func() {
			defer s.remove(c)
			c.serve(work)
		})
	})
	s.drain(&ended, cancel)
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
		case err != nil && temporary(err): // out of file descriptors, say
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
	c := &conn{server: s, since: time.Now(), raw: raw, net: raw, tx: transaction{status: idle}}
	c.in.from = raw
	c.in.buf = c.in.small[:]
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	if oldest := s.crowd.enter(c, s.config.MaxStrangers, s.config.MaxFromAddress); oldest != nil {
		s.stats.shed.Add(1)
		oldest.shed.Store(true)
		oldest.raw.Close()
	}
	return c
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.crowd.leave(c)
	s.pending.Add(-int64(c.tx.bytes)) // its goroutine has ended
}

func (s *Server) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) > s.config.MaxConnections
}

// Client is one who has logged in.
type Client struct {
	PID           uint32
	Address, User string
	Since         time.Time
}

// Clients returns all who have logged in.
func (s *Server) Clients() (all []Client) {
	s.each(func(c *conn) {
		if c.loggedIn.Load() {
			all = append(all, Client{PID: c.pid, Address: c.remote(), User: c.user, Since: c.since})
		}
	})
	return all
}

// End ends a client, and tells whether there is one.
func (s *Server) End(pid uint32) (found bool) {
	s.each(func(c *conn) {
		if c.loggedIn.Load() && c.pid == pid {
			found = true
			go c.cutOff(errEnded) // it may have to wait for a write; it ends soon after that
		}
	})
	return found
}

// drain ends all connections. Each ends itself when its goroutine next wants to read.
func (s *Server) drain(ended *sync.WaitGroup, cancel context.CancelFunc) {
	s.stopping.Store(true)
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
	}
	cancel()
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
