// Package server composes a hub process: the hub and its database, the endpoints that serve it, and background chores.
//
//	s, err := server.Start(ctx, server.Config{Database: url, ListenPG: "127.0.0.1:6543", ListenHTTP: "127.0.0.1:8080", PGAuth: server.SCRAM})
//	...
//	err = s.Stop(ctx)
//
// It stores nothing: any number of servers may run on one database, behind any load balancer.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/cluster"
	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/cmd/internal/policy"
	"github.com/weir-pg/weir/cmd/internal/presence"
	"github.com/weir-pg/weir/cmd/internal/push"
	"github.com/weir-pg/weir/cmd/internal/wake"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/cmd/internal/work"
	"github.com/weir-pg/weir/internal/connstring"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
)

// Config configures a server. Database and at least one listener are required.
type Config struct {
	Database     string // connection string of the primary
	ReadDatabase string // of a streaming standby from which to read ticks and messages; "": the primary

	ListenPG   string // address for the PostgreSQL wire protocol, host:port; "": none
	ListenHTTP string // address for HTTP; "": none

	// ListenAdmin is an address for operators: metrics, which are then served only here, and connected clients, which can be ended. "": none.
	ListenAdmin string

	PGAuth    PGAuth // how clients of the wire protocol authenticate; "": SCRAM
	UsersFile string // for PGAuth UsersFile

	// LoggingIn limits the clients of the wire protocol that log in at the same time, in total and per address; 0: 10,000 and 2,000.
	LoggingIn int

	TLSCert, TLSKey string // PEM files for all listeners but ListenAdmin, reloaded on change; "": no TLS
	RequireTLS      bool   // refuse clients of the wire protocol that do not use TLS

	DurableNotify bool // notifications by clients are logged before they are delivered

	Web web.Config // authorization, origins and limits of HTTP; Hub, Logger, Metrics, Jobs, Endpoints, Stuck and Ready are set by Start

	JobsLease time.Duration // of a job given out over HTTP; 0: 30 s

	Jobs bool // jobs are enqueued and worked over HTTP too; the database's user needs the role weir_work

	// ChannelsFile has policies of channels, for clients of every protocol: see package policy. It is read again when it changes. "": none.
	ChannelsFile string

	AdminTokenFile string // tokens of operators at ListenAdmin, one in a line, read for each request; "": none

	MaxSubscribers int // of one channel or pattern at this hub; 0: any number. The channels file may allow fewer

	StatementRate float64 // statements per second of one client of the wire protocol, beyond which they wait; 0: no limit

	PushFile string // endpoints to which jobs are pushed, with Jobs; "": none

	QueueBytes  int           // limit of a slow client's queue; 0: 1 MiB
	Name        string        // of this hub, to show; required
	Drain       time.Duration // how long clients have to disconnect at a stop; 0: 5 s
	Connections int           // maximum per database; 0: 8
	Logger      *slog.Logger  // nil: slog.Default()

	// Doctor runs weir doctor continuously, and exports its findings. One hub per database is enough.
	Doctor bool

	UI *UI // the web UI; nil: it is not served

	// Cluster, if set, joins the hub to others over NATS. Source, Database, Name and Logger are set by Start.
	Cluster *cluster.Config

	many *member // the hub is that of a database of a list, and has no listeners of its own; nil: it has
}

// check refuses settings that contradict each other, or whose files can't be read.
func (c Config) check() error {
	switch {
	case c.ListenPG == "" && c.ListenHTTP == "":
		return errors.New("nothing to listen on: give an address for the wire protocol, for HTTP, or both")
	case c.Jobs && c.ListenHTTP == "":
		return errors.New("there is no address to serve jobs at: give one for HTTP")
	case c.AdminTokenFile != "" && c.ListenAdmin == "":
		return errors.New("there is no address for operators with tokens: give one, or no file of tokens")
	case c.PushFile != "" && !c.Jobs:
		return errors.New("jobs are pushed by a hub that serves jobs: have it serve them, or give no file of endpoints")
	}
	if c.AdminTokenFile != "" {
		text, err := c.adminTokens()
		if err == nil {
			err = web.CheckAdminTokens(text)
		}
		if err != nil {
			return fmt.Errorf("read the tokens of operators in %s: %w", c.AdminTokenFile, err)
		}
	}
	return nil
}

// drain is how long clients have to disconnect.
func (c Config) drain() time.Duration {
	if c.Drain == 0 {
		return 5 * time.Second
	}
	return c.Drain
}

// webConfig is Web, for clients whose hosts are known.
func (c Config) webConfig() web.Config {
	w := c.Web
	if w.Anonymous && w.Authorizer == nil && w.Hosts == nil {
		w.Hosts = []string{} // a listener on loopback only may omit them
	}
	return w
}

// PGAuth is an authentication method.
type PGAuth string

// Authentication methods.
const (
	SCRAM     PGAuth = "scram"      // SCRAM-SHA-256 against the database's roles
	UsersFile PGAuth = "users-file" // SCRAM-SHA-256 against a file of users
	Trust     PGAuth = "trust"      // every client, on loopback addresses only
)

const (
	beatEvery   = 5 * time.Second
	beatSoon    = 100 * time.Millisecond
	choresEvery = 10 * time.Second
	callTimeout = 10 * time.Second

	recheckEvery = 10 * time.Second // the rights of clients of the wire protocol

	leaveTimeout = 2 * time.Second
)

// Server is a running hub process.
type Server struct {
	config     Config
	log        *slog.Logger
	hub        *hub.Hub
	primary    *store.Store
	pools      []*pgxpool.Pool
	cluster    *cluster.Cluster
	jobs       *wake.Jobs
	work       *work.Dispatcher // nil: no jobs are worked over HTTP
	push       *push.Pusher     // nil: none are pushed
	examiner   *examiner        // nil: none
	pg         *pgwire.Server
	secret     string // from which the salts of users that do not exist are derived
	iterations int    // shown for them

	registry *prometheus.Registry
	roster   *pgwire.Roster // nil: every client is accepted
	refusals refusals
	policies *policy.File       // nil: none
	presence *presence.Presence // nil: none
	users    users
	sampled  atomic.Pointer[sample]
	web      *web.Web
	http     *http.Server

	listeners
	admin, ui *http.Server

	pgServing, httpServing sync.WaitGroup // goroutines that serve clients
	inner                  sync.WaitGroup // goroutines that these use
	stopInner              context.CancelFunc
	stopPG                 context.CancelFunc
	failed                 chan error
	stop                   sync.Once
	stopErr                error
}

// Start listens and serves until Stop. It returns once clients can connect. The database must be reachable at the start; later outages are
// tolerated.
func Start(ctx context.Context, c Config) (_ *Server, err error) {
	s := &Server{config: c, log: c.Logger, failed: make(chan error, 2)}
	if s.log == nil {
		s.log = slog.Default()
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	// What is started here outlives ctx, which limits only the start.
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.stopInner = cancel
	defer func() {
		if err != nil {
			_ = s.Stop(ctx)
		}
	}()
	if c.many == nil {
		if err := s.listen(ctx, c, s.log); err != nil {
			return nil, err
		}
	}
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	source, err := s.source(ctx)
	if err != nil {
		return nil, err
	}
	s.hub = hub.New(hub.Config{Source: source, Logger: s.log, MaxSubscribers: func(f hub.Filter) int {
		return s.policies.Set().SubscribersOf(f, s.config.MaxSubscribers)
	}})
	s.jobs = wake.New(s.primary, s.log)
	if err := s.endpointsOf(ctx); err != nil {
		return nil, err
	}
	if err := s.readUsers(ctx); err != nil { // before the first client
		return nil, err
	}
	s.inner.Go(func() { s.hub.Run(inner) })
	s.inner.Go(func() { s.jobs.Run(inner) })
	if s.work != nil {
		s.inner.Go(func() { s.work.Run(inner) })
	}
	if s.push != nil {
		s.inner.Go(func() { s.push.Run(inner) })
	}
	s.inner.Go(func() { s.beats(inner) })
	s.inner.Go(func() { s.chores(inner) })
	s.inner.Go(func() { s.watchUsers(inner) })
	s.inner.Go(func() { s.sampleFigures(inner) })
	if s.presence != nil {
		s.inner.Go(func() { s.presence.Run(inner) })
	}
	if s.roster != nil || s.pg != nil && s.policies != nil {
		s.inner.Go(func() { s.recheck(inner) })
	}
	if s.examiner != nil {
		s.inner.Go(func() { s.examiner.run(inner, s) })
	}
	if s.config.UI != nil && s.config.UI.Run != nil {
		s.inner.Go(func() { s.config.UI.Run(inner) })
	}
	s.serve(inner)
	return s, nil
}

// connect opens the pools.
func (s *Server) connect(ctx context.Context) error {
	primary, err := s.open(ctx, s.config.Database)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	s.primary = store.New(primary, 0)
	_, err = s.primary.NewestTick(ctx)
	if err == nil || store.IsMoved(err) {
		s.secret, s.iterations, err = s.primary.LoginSecret(ctx) // requires the role weir_hub, as later calls do
	}
	switch {
	case store.IsNotInstalled(err):
		return errors.New("the database has no schema weir with messages: run weir migrate up")
	case store.IsDenied(err):
		return fmt.Errorf("%w: grant the role weir_hub to this user", err)
	case err != nil:
		return fmt.Errorf("read from the database: %w", err)
	}
	return nil
}

func (s *Server) open(ctx context.Context, url string) (*pgxpool.Pool, error) {
	connections := s.config.Connections
	if connections == 0 {
		connections = 8
	}
	pool, err := s.pool(ctx, url, connections, "weir hub")
	if err == nil {
		err = store.New(pool, 0).Ping(ctx)
	}
	return pool, err
}

// pool returns a pool, which connects when first used.
func (s *Server) pool(ctx context.Context, url string, connections int, name string) (*pgxpool.Pool, error) {
	return s.poolWith(ctx, url, connections, name, nil)
}

// poolWith returns a pool whose sessions begin with these settings.
func (s *Server) poolWith(ctx context.Context, url string, connections int, name string, settings map[string]string) (*pgxpool.Pool, error) {
	pool, err := openPool(ctx, url, connections, name, settings)
	if err == nil {
		s.pools = append(s.pools, pool)
	}
	return pool, err
}

// openPool returns a pool, which the caller closes.
func openPool(ctx context.Context, url string, connections int, name string, settings map[string]string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, connstring.Invalid(err)
	}
	maps.Copy(config.ConnConfig.RuntimeParams, settings)
	config.MaxConns, config.MinConns, config.MinIdleConns = int32(connections), 0, 0
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = name
	}
	config.AfterConnect = store.Settle
	return pgxpool.NewWithConfig(ctx, config)
}

// source returns the source of the hub's ticks.
func (s *Server) source(ctx context.Context) (hub.Source, error) {
	var read *store.Store
	if s.config.ReadDatabase != "" {
		pool, err := s.open(ctx, s.config.ReadDatabase)
		if err != nil {
			return nil, fmt.Errorf("connect to the database to read from: %w", err)
		}
		read = store.New(pool, 0)
	}
	log := hub.NewLog(s.primary, read)
	if s.config.Cluster == nil {
		return log, nil
	}
	c := *s.config.Cluster
	c.Source, c.Name, c.Logger = log, s.config.Name, s.log
	var err error
	if c.Database, err = s.primary.DatabaseID(ctx); err != nil {
		return nil, fmt.Errorf("identify the database: %w", err)
	}
	// The cluster outlives ctx, which limits only the start.
	if s.cluster, err = cluster.Start(context.WithoutCancel(ctx), c); err != nil {
		return nil, fmt.Errorf("join the cluster: %w", err)
	}
	return s.cluster, nil
}

func (s *Server) endpointsOf(ctx context.Context) error {
	tlsConfig, err := s.config.tlsConfig()
	if err != nil {
		return err
	}
	if d := s.config.many; d != nil {
		s.policies = d.many.policies.Again(s.log)
	} else if s.config.ChannelsFile != "" {
		if s.policies, err = policy.Open(s.config.ChannelsFile, s.log); err != nil {
			return fmt.Errorf("read the channels file: %w", err)
		}
	}
	registry := prometheus.NewRegistry()
	s.registry = registry
	registry.MustRegister(collector{s}, &queues{store: s.primary, log: s.log})
	if s.config.Doctor {
		s.examiner = &examiner{}
		registry.MustRegister(&s.examiner.metrics)
	}
	if s.config.ListenPG != "" {
		auth, err := s.auth(ctx)
		if err != nil {
			return err
		}
		if s.config.PGAuth == UsersFile {
			s.iterations = 0 // those of the file
		}
		version, err := s.primary.ServerVersion(ctx)
		if err != nil {
			return fmt.Errorf("read the version of the database: %w", err)
		}
		s.pg = pgwire.New(pgwire.Config{
			Hub: s.hub, Auth: auth, Policies: s.policies, StatementRate: s.config.StatementRate, TLS: tlsConfig, RequireTLS: s.config.RequireTLS, Logger: s.log, DurableNotify: s.config.DurableNotify,
			MaxStrangers: s.config.LoggingIn, MaxFromAddress: s.config.LoggingIn,
			Secret: []byte(s.secret), Iterations: s.iterations, ServerVersion: version, MaxBytes: s.config.QueueBytes, Drain: s.config.Drain,
		})
	}
	ui, err := s.uiHandler(ctx)
	if err != nil {
		return err
	}
	if s.config.ListenHTTP != "" || s.config.ListenAdmin != "" {
		c := s.config.webConfig()
		if s.uiListener == nil {
			c.UI = ui
		}
		c.AdminApart = s.config.ListenAdmin != ""
		if s.config.many != nil || c.Databases == nil {
			c.Databases, c.Several = s.names(), s.config.many != nil
		}
		if s.config.Jobs {
			if c.Endpoints, err = s.jobEndpoints(ctx, registry); err != nil {
				return err
			}
		}
		c.Policies, c.Revoked = s.policies, s.users.has
		if s.policies != nil {
			s.presence = presence.New(presence.Config{
				Hub: s.hub, Secret: []byte(s.secret), Logger: s.log,
				On:     func(channel string) bool { return s.policies.Set().PresenceOf(channel) },
				Active: func() bool { return s.policies.Set().HasPresence() },
			})
			c.Presence = s.presence
		}
		c.Hub, c.Logger, c.Metrics, c.Jobs, c.Stuck, c.Ready = s.hub, s.log, registry, s.jobs, s.stuck, s.Ready
		c.Limits.QueueBytes = s.config.QueueBytes
		if s.web, err = web.New(c); err != nil {
			return err
		}
		s.admin = adminServer(s.web.Admin(s.adminConfig()), s.log)
		s.http = httpServer(s.web, tlsConfig, s.log)
	}
	if s.uiListener != nil {
		s.ui = uiServer(ui, tlsConfig, s.log)
	}
	return nil
}

func httpServer(h http.Handler, c *tls.Config, log *slog.Logger) *http.Server {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if c != nil {
		server.TLSConfig = c.Clone() // ServeTLS adds HTTP/2 to it
	}
	return server
}

// adminServer is an httpServer for operators.
func adminServer(h http.Handler, log *slog.Logger) *http.Server {
	server := httpServer(h, nil, log)
	server.ReadTimeout, server.WriteTimeout = 10*time.Second, 30*time.Second
	return server
}

// uiServer is an httpServer for the web UI alone.
func uiServer(h http.Handler, c *tls.Config, log *slog.Logger) *http.Server {
	server := httpServer(h, c, log)
	server.ReadTimeout, server.WriteTimeout = 10*time.Second, time.Minute
	return server
}

// serve starts the endpoints.
func (s *Server) serve(inner context.Context) {
	pgCtx, cancel := context.WithCancel(inner)
	s.stopPG = cancel
	if s.pgListener != nil {
		s.pgServing.Go(func() {
			if err := s.pg.Serve(pgCtx, s.pgListener); err != nil {
				s.fail(fmt.Errorf("serve the wire protocol: %w", err))
			}
		})
	}
	if s.adminListener != nil {
		s.serveHTTP(s.admin, s.adminListener, "serve operators")
	}
	if s.httpListener != nil {
		s.serveHTTP(s.http, s.config.bounded(s.httpListener), "serve HTTP")
	}
	if s.uiListener != nil {
		s.serveHTTP(s.ui, s.config.bounded(s.uiListener), "serve the web UI")
	}
}

// serveHTTP serves until the server is shut down, and reports why it has ended otherwise.
func (s *Server) serveHTTP(server *http.Server, l net.Listener, what string) {
	s.httpServing.Go(func() {
		if err := serveHTTP(server, l); err != nil {
			s.fail(fmt.Errorf("%s: %w", what, err))
		}
	})
}

// serveHTTP serves until the server is shut down, over TLS if it has a certificate.
func serveHTTP(server *http.Server, l net.Listener) (err error) {
	if server.TLSConfig != nil {
		err = server.ServeTLS(l, "", "")
	} else {
		err = server.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// names returns by which names the database can be reached now, for web.Config.
func (s *Server) names() func() []string {
	if d := s.config.many; d != nil {
		return func() []string { return *d.names.Load() }
	}
	n, err := connstring.Named(s.config.Database)
	if err != nil {
		return nil
	}
	names := []string{n.Full, n.Short}
	return func() []string { return names }
}

// use returns how many clients there are now, by each protocol, and how many have ever been let in.
func (s *Server) use() (clients int, ever int64) {
	if s.pg != nil {
		clients, ever = len(s.pg.Clients()), s.pg.Stats().Authenticated
	}
	if s.web != nil {
		open, authorized := s.web.Use()
		clients, ever = clients+open, ever+authorized
	}
	return clients, ever
}

// Failed returns a channel that receives the error of an endpoint that has stopped serving.
func (s *Server) Failed() <-chan error { return s.failed }

// Ready returns why clients should use another hub, or nil while the hub serves.
func (s *Server) Ready() error {
	if s.hub == nil || !s.hub.Live() {
		return errors.New("the hub can't reach its database")
	}
	if s.roster != nil {
		if err := s.roster.Err(); store.IsDenied(err) {
			return fmt.Errorf("no client of the wire protocol can log in: %w: %s", err, loginsFix)
		}
	}
	return errors.Join(s.hub.Stuck(), s.stuck())
}

// stuck returns an error if a part of the server beside the hub makes no progress.
func (s *Server) stuck() error {
	err := s.jobs.Stuck()
	if s.work != nil {
		err = errors.Join(err, s.work.Stuck())
	}
	return err
}

// Hub returns the hub.
func (s *Server) Hub() *hub.Hub { return s.hub }

// Stop stops gracefully: no connections are accepted, clients are told to reconnect elsewhere and have Drain to do so, and then the hub
// ends. If ctx ends first, the remaining connections are closed immediately.
func (s *Server) Stop(ctx context.Context) error {
	s.stop.Do(func() { s.stopErr = s.stopNow(ctx) })
	return s.stopErr
}

func (s *Server) stopNow(ctx context.Context) error {
	drain := s.config.drain()
	bounded, cancel := context.WithTimeout(ctx, drain)
	defer cancel()
	if s.web != nil {
		s.web.Drain()
	}
	if s.stopPG != nil {
		s.stopPG()
	}
	if s.config.many != nil && s.pg != nil {
		s.pg.Drain(bounded)
	}
	s.pgServing.Wait() // limited by Drain; requests already received are still answered
	if s.work != nil {
		finishing, cancel := context.WithTimeout(bounded, drain*4/5) // the rest is for clients to be told
		s.work.Stop(finishing)
		cancel()
	}
	// The end of the hub makes event streams reconnect elsewhere.
	s.stopInner()
	var err error
	if s.web != nil {
		err = errors.Join(s.web.Shutdown(bounded), s.http.Shutdown(bounded))
		_ = s.http.Close()
		_ = s.admin.Close()
	}
	if s.ui != nil {
		err = errors.Join(err, s.ui.Shutdown(bounded))
		_ = s.ui.Close()
	}
	late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil // what is waited for from here on may outlast ctx
	s.httpServing.Wait()
	s.inner.Wait()
	s.close()
	if s.cluster != nil {
		s.cluster.Close()
	}
	for _, pool := range s.pools {
		pool.Close()
	}
	if late {
		s.log.Warn("weir: clients did not disconnect in time, and were disconnected", "after", drain)
		return nil
	}
	return err
}
