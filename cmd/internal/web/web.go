package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/policy"
	"github.com/weir-pg/weir/cmd/internal/presence"
	"github.com/weir-pg/weir/cmd/internal/rate"
	"github.com/weir-pg/weir/internal/hub"
)

// Config configures a Web. Only Hub is required; with neither Authorizer nor Anonymous, all clients are refused.
type Config struct {
	Hub    *hub.Hub
	Logger *slog.Logger // nil: slog.Default()

	Authorizer Authorizer // nil: all clients are refused, unless Anonymous is set
	Anonymous  bool       // without an Authorizer, all clients may subscribe, publish and wait for jobs

	// Databases returns the names by which clients reach the hub's database now; the first is its full name. Tokens and callbacks may be about them. nil: they
	// are unknown, and no token is checked for them. It must not block.
	Databases func() []string
	Several   bool // this process serves other databases too, so that a token has to say for which it is; requires Databases

	Presence *presence.Presence // who is on which channel; nil: unknown

	// Revoked reports whether a user's tokens that were issued at a time, or at an unknown one, are refused. nil: none are. It must not block.
	Revoked func(user string, issued time.Time) bool

	// Origins are the web origins whose pages may connect, in addition to the server's own: hosts or scheme://host, in which * matches any
	// characters except a slash. * alone allows all origins.
	Origins []string

	// Hosts are the names that clients may use for this server, in addition to localhost and IP addresses; patterns as in Origins. nil: any.
	Hosts []string

	// ClientAddress returns the address of a request's client, for limits and authorization. nil: the address that the connection comes from.
	ClientAddress func(*http.Request) string

	Limits   Limits
	Policies *policy.File // what is allowed on which channels, in addition to the Authorizer; nil: nothing else

	Metrics *prometheus.Registry // where metrics are registered, and what /metrics shows; nil: a new registry
	Jobs    Jobs                 // nil: /v1/jobs/wait is not served
	Stuck   func() error         // a further check of /healthz and /readyz, after the hub's; nil: none. It must not block
	Ready   func() error         // a further check of /readyz, after the hub's; nil: none

	// UI is served below /ui/; nil: nothing is. It says itself who may use it: neither Authorizer nor Origins have a say, and no other page can read its answers.
	UI http.Handler

	// Endpoints are further endpoints, of other packages. Without any, clients that ask for jobs are told that this server does not serve them.
	Endpoints []Endpoints

	// AdminApart serves /metrics only in Admin.
	AdminApart bool

	Heartbeat    time.Duration // the longest interval between heartbeats, which contain the stream's position; 0: 25 s
	WriteTimeout time.Duration // how long a write may take before the client counts as dead; 0: 30 s
	BodyTimeout  time.Duration // how long a request's body, or a frame, may take to arrive; 0: 10 s
	JobsWait     time.Duration // how long /v1/jobs/wait waits; 0: 20 s
}

// Jobs waits for work in queues.
type Jobs interface {
	// Wait waits until work is committed to one of the queues after since was issued, and returns the queues that have work and a token for
	// the next call. With an empty since it returns immediately, with a token to start from. If ctx ends first, it returns ctx's error and
	// the same token.
	Wait(ctx context.Context, queues []string, since string) (ready []string, token string, err error)
}

const (
	defaultHeartbeat    = 25 * time.Second
	defaultWriteTimeout = 30 * time.Second
	defaultJobsWait     = 20 * time.Second
	closeGrace          = 2 * time.Second // how long a client that is being disconnected may take to read the rest
)

// Web is an http.Handler. Create it with New and end it with Shutdown.
type Web struct {
	Config
	log     *slog.Logger
	mux     *http.ServeMux
	metrics *metrics
	origins origins
	granted *rate.Limiter // rates that a callback has granted
	clients *rate.Limiter // requests of users and addresses; nil: not limited
	long    chan struct{} // slots for long bodies and frames that are being read

	names       naming
	revocations atomic.Uint64 // users that were disconnected
	authorized  atomic.Int64  // requests that were

	ctx  context.Context // ends with Shutdown; bounds work that outlives a request
	stop context.CancelFunc

	mu       sync.Mutex
	draining bool                 // /readyz fails
	refusing bool                 // new streams are refused
	all      map[*stream]struct{} // open streams
	lastID   uint64
	streams  int            // admitted: open streams, waits for jobs and requests to publish
	from     map[string]int // the same by client address, if that is limited
	ended    sync.WaitGroup // counts what is admitted
}

// New returns a handler for the hub.
func New(c Config) (*Web, error) {
	if c.Hub == nil {
		return nil, errors.New("web: Config.Hub is nil: set it to the hub to serve")
	}
	if c.Several && c.Databases == nil {
		return nil, errors.New("web: Config.Several is set, and Config.Databases is nil: tokens can't be checked for a database whose names are unknown")
	}
	allowed, err := parseOrigins(c.Origins)
	if err != nil {
		return nil, err
	}
	w := &Web{Config: c, log: c.Logger, mux: http.NewServeMux(), origins: allowed, granted: rate.NewVarious(maxClients), long: make(chan struct{}, longAtOnce), from: map[string]int{}, all: map[*stream]struct{}{}}
	if w.log == nil {
		w.log = slog.Default()
	}
	w.Limits = w.Limits.withDefaults()
	w.clients = rate.New(tenSeconds(w.Limits.ClientRate), maxClients)
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{{&w.Heartbeat, defaultHeartbeat}, {&w.WriteTimeout, defaultWriteTimeout}, {&w.JobsWait, defaultJobsWait}, {&w.BodyTimeout, patience}} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
	w.admission()
	if w.metrics, err = newMetrics(c.Metrics, c.Hub); err != nil {
		return nil, err
	}
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.routes()
	return w, nil
}

// admission sets the defaults of what decides whom to let in.
func (w *Web) admission() {
	if w.ClientAddress == nil {
		w.ClientAddress = peerAddress
	}
	if w.Authorizer == nil {
		w.Authorizer = nobody{}
		if w.Anonymous {
			w.Authorizer = everybody{}
		}
	}
}

func (w *Web) routes() {
	w.mux.HandleFunc("GET /v1/ws", w.sameOrigin(w.serveWebSocket))
	w.mux.HandleFunc("GET /v1/events", w.sameOrigin(w.serveEvents))
	w.mux.HandleFunc("POST /v1/publish", w.sameOrigin(w.servePublish))
	if w.Jobs != nil {
		w.mux.HandleFunc("GET /v1/jobs/wait", w.sameOrigin(w.serveJobs))
	}
	for _, e := range w.Endpoints {
		e.Register(&Gate{w})
	}
	w.mux.HandleFunc("GET /v1/presence", w.sameOrigin(w.servePresence))
	w.mux.HandleFunc("OPTIONS /v1/", servePreflight)
	w.mux.HandleFunc("OPTIONS /v1", w.serveNothing) // or ServeMux would redirect it
	w.mux.HandleFunc("GET /healthz", w.serveHealth)
	w.mux.HandleFunc("GET /readyz", w.serveReady)
	if !w.AdminApart {
		w.mux.Handle("GET /metrics", w.metrics.handler())
	}
	if w.UI != nil {
		ui := http.StripPrefix("/ui", w.UI)
		w.mux.Handle("/ui", ui) // it redirects to /ui/ itself, because only the browser knows what precedes that
		w.mux.Handle("/ui/", ui)
	}
	w.mux.HandleFunc("/", w.serveNothing)
}

// ServeHTTP implements http.Handler. Every body has a deadline, even one that no handler reads: net/http reads it to its end before the
// connection's next request.
func (w *Web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Cache-Control", "no-store") // unless a handler says otherwise, nothing between may keep an answer
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(rw).SetReadDeadline(time.Now().Add(w.BodyTimeout))
	}
	if !isClean(r.URL.EscapedPath()) {
		w.serveNothing(rw, r)
		return
	}
	w.mux.ServeHTTP(rw, r)
}

// isClean reports whether ServeMux serves a path as it is. It would send the client elsewhere: an id that is empty would become another request, and what
// precedes the path, if this Web is served below one, would be lost.
func isClean(p string) bool {
	clean := path.Clean("/" + p)
	return p == clean || p == clean+"/" && clean != "/"
}

// Drain makes /readyz fail, so that load balancers send new clients elsewhere.
func (w *Web) Drain() {
	w.mu.Lock()
	w.draining = true
	w.mu.Unlock()
}

// Shutdown refuses new streams, answers all waits for jobs, and waits until all streams have ended or ctx ends. Streams end when the hub
// ends, which tells each client to reconnect: so end the hub's Run first, or at the same time.
func (w *Web) Shutdown(ctx context.Context) error {
	w.mu.Lock()
	w.draining, w.refusing = true, true
	w.mu.Unlock()
	w.stop()
	done := make(chan struct{})
	go func() { // ends with the last stream
		w.ended.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("web: %d streams have not ended: %w", w.count(), ctx.Err())
	}
}

// Use returns how many streams and sessions are open, or requests in progress, and how many requests have ever been authorized. Requests that are refused, and those of supervisors,
// are no use. A stream goes on when ServeHTTP has returned, because it may take the connection over.
func (w *Web) Use() (open int, authorized int64) { return w.count(), w.authorized.Load() }

func (w *Web) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.streams
}

// peerAddress is the address that the connection comes from, without its port.
func peerAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
