package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/internal/hub"
)

// Config says what is served and to whom. Hub alone is required; without Authorizer and Anonymous nobody may subscribe or publish.
type Config struct {
	Hub    *hub.Hub
	Logger *slog.Logger // nil: slog.Default()

	Authorizer Authorizer // nil: everything is refused, unless Anonymous
	Anonymous  bool       // without an Authorizer everybody may subscribe, publish and wait for jobs

	// Origins are the web origins, besides the server's own, whose pages may connect: hosts or scheme://host, in which * stands for any
	// characters but a slash. A lone * allows all.
	Origins []string

	// Hosts are the names that clients may use for this server, besides localhost and addresses; patterns as in Origins. nil: any.
	Hosts []string

	// ClientAddress tells a request's client, for limits and authorisation. nil: the address that the connection comes from.
	ClientAddress func(*http.Request) string

	Limits  Limits
	Metrics *prometheus.Registry // where metrics are registered and what /metrics shows; nil: one of its own
	Jobs    Jobs                 // nil: /v1/jobs/wait is not there
	Ready   func() error         // asked by /readyz besides the hub; nil: the hub alone decides

	// AdminApart leaves /metrics to Admin.
	AdminApart bool

	Heartbeat    time.Duration // how often a stream is told that it lives, and where it stands; 0: 25 s
	WriteTimeout time.Duration // how long a write may take before the client counts as dead; 0: 30 s
	BodyTimeout  time.Duration // how long a request's body, or a frame, may take to come; 0: 10 s
	JobsWait     time.Duration // how long /v1/jobs/wait waits; 0: 20 s
}

// Jobs waits for work.
type Jobs interface {
	// Wait returns those of the queues for which work was committed since the token was given out, as soon as there is one, and the token
	// to wait with next; at once without a token, which says where to begin. When ctx ends first it returns its error and the same token.
	Wait(ctx context.Context, queues []string, since string) (ready []string, token string, err error)
}

const (
	defaultHeartbeat    = 25 * time.Second
	defaultWriteTimeout = 30 * time.Second
	defaultJobsWait     = 20 * time.Second
	closeGrace          = 2 * time.Second // for a client that is being ended to take in the rest
)

// Web is an http.Handler. Make it with New and end it with Shutdown.
type Web struct {
	Config
	log     *slog.Logger
	mux     *http.ServeMux
	metrics *metrics
	origins origins
	long    chan struct{} // slots for long messages that are being taken in

	ctx  context.Context // ends with Shutdown; bounds what no client's connection bounds
	stop context.CancelFunc

	mu       sync.Mutex
	draining bool                 // not ready any more
	refusing bool                 // new streams
	all      map[*stream]struct{} // the streams themselves
	lastID   uint64
	streams  int
	from     map[string]int // streams by client address, where that is limited
	ended    sync.WaitGroup // counts streams
}

// New returns a handler for the hub.
func New(c Config) (*Web, error) {
	if c.Hub == nil {
		return nil, errors.New("web: Config.Hub is nil: give it the hub to serve")
	}
	allowed, err := parseOrigins(c.Origins)
	if err != nil {
		return nil, err
	}
	w := &Web{Config: c, log: c.Logger, mux: http.NewServeMux(), origins: allowed, long: make(chan struct{}, longAtOnce), from: map[string]int{}, all: map[*stream]struct{}{}}
	if w.log == nil {
		w.log = slog.Default()
	}
	w.Limits = w.Limits.withDefaults()
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{{&w.Heartbeat, defaultHeartbeat}, {&w.WriteTimeout, defaultWriteTimeout}, {&w.JobsWait, defaultJobsWait}, {&w.BodyTimeout, patience}} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
	if w.ClientAddress == nil {
		w.ClientAddress = peerAddress
	}
	if w.Authorizer == nil {
		w.Authorizer = nobody{}
		if c.Anonymous {
			w.Authorizer = everybody{}
		}
	}
	if w.metrics, err = newMetrics(c.Metrics, c.Hub); err != nil {
		return nil, err
	}
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.routes()
	return w, nil
}

func (w *Web) routes() {
	w.mux.HandleFunc("GET /v1/ws", w.sameOrigin(w.serveWebSocket))
	w.mux.HandleFunc("GET /v1/events", w.sameOrigin(w.serveEvents))
	w.mux.HandleFunc("POST /v1/publish", w.sameOrigin(w.servePublish))
	if w.Jobs != nil {
		w.mux.HandleFunc("GET /v1/jobs/wait", w.sameOrigin(w.serveJobs))
	}
	w.mux.HandleFunc("OPTIONS /v1/", w.sameOrigin(servePreflight))
	w.mux.HandleFunc("GET /healthz", w.serveHealth)
	w.mux.HandleFunc("GET /readyz", w.serveReady)
	if !w.AdminApart {
		w.mux.Handle("GET /metrics", w.metrics.handler())
	}
	w.mux.HandleFunc("/", serveNothing)
}

// ServeHTTP implements http.Handler. Whatever a request has as a body must come soon, also where nobody wants it: net/http reads it to its
// end before the connection's next request.
func (w *Web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(rw).SetReadDeadline(time.Now().Add(w.BodyTimeout))
	}
	w.mux.ServeHTTP(rw, r)
}

// Drain makes /readyz say that the server is not ready, so that a load balancer sends new clients elsewhere.
func (w *Web) Drain() {
	w.mu.Lock()
	w.draining = true
	w.mu.Unlock()
}

// Shutdown refuses new streams, answers who waits for jobs, and waits until all streams have ended, or ctx. It is the hub's end that
// ends streams, telling each client to come back: so end the hub's Run first, or at the same time.
func (w *Web) Shutdown(ctx context.Context) error {
	w.mu.Lock()
	w.draining, w.refusing = true, true
	w.mu.Unlock()
	w.stop()
	done := make(chan struct{})
	go func() { // it ends with the last stream
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
