package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/cmd/internal/web"
)

// handlers makes the door of the wire protocol and the servers of HTTP.
func (m *Many) handlers(ctx context.Context, c *tls.Config) error {
	if m.pgListener != nil {
		m.door = pgwire.New(pgwire.Config{
			Databases: m.pgServer, TLS: c, RequireTLS: m.config.RequireTLS, Logger: m.log, Drain: m.config.Drain,
			MaxStrangers: m.config.LoggingIn, MaxFromAddress: m.config.LoggingIn,
		})
	}
	var ui http.Handler
	if m.config.UI != nil {
		var err error
		if ui, err = m.config.UI.Many(ctx, m); err != nil {
			return err
		}
	}
	if m.uiListener != nil {
		m.ui = uiServer(ui, c, m.log)
		ui = nil
	}
	if m.httpListener != nil {
		mux := m.mux(func(s *Server) http.Handler { return s.web }, m.resting, web.RefusePage)
		if ui != nil {
			below := http.StripPrefix("/ui", ui)
			mux.Handle("/ui", below)
			mux.Handle("/ui/", below)
		}
		if m.adminListener == nil {
			mux.Handle("GET /metrics", m.metrics())
		}
		m.http = httpServer(cleanly(mux), c, m.log)
	}
	if m.adminListener != nil {
		refuse := func(rw http.ResponseWriter, _ *http.Request, f *web.Failure) { web.Refuse(rw, f) }
		mux := m.mux(func(s *Server) http.Handler { return s.admin.Handler }, m.restingForOperators, refuse)
		mux.Handle("GET /metrics", m.metrics())
		m.admin = adminServer(cleanly(mux), m.log)
	}
	return nil
}

// mux serves what a hub serves, below /databases/NAME. It starts a hub that does not run, unless rest answers the request instead.
func (m *Many) mux(of func(*Server) http.Handler, rest func(*member, http.ResponseWriter, *http.Request) bool, refuse func(http.ResponseWriter, *http.Request, *web.Failure)) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/databases/{name}/", func(rw http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		http.StripPrefix("/databases/"+name, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			for {
				d, err := m.find(name)
				if err != nil {
					refuse(rw, r, m.unserved(err))
					return
				}
				if s, leave := d.enter(); s != nil {
					defer leave()
					of(s).ServeHTTP(rw, r)
					return
				}
				if rest(d, rw, r) {
					return
				}
				_, err = d.hub(r.Context())
				if errors.Is(err, errUnlisted) && !m.stopping.Load() {
					continue // the list may have the name again, such as with another password
				}
				if err != nil {
					refuse(rw, r, m.unserved(err))
					return
				}
			}
		})).ServeHTTP(rw, r)
	})
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) {
		for _, d := range m.all() {
			if s := d.running(); s != nil {
				if err := errors.Join(s.hub.Stuck(), s.stuck()); err != nil {
					web.Refuse(rw, web.Fail(http.StatusServiceUnavailable, "unavailable", "not live: the hub of "+d.Full+": "+err.Error()+": restart this process", ""))
					return
				}
			}
		}
		web.Healthy(rw, "live")
	})
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		if m.stopping.Load() {
			web.Refuse(rw, web.Fail(http.StatusServiceUnavailable, "unavailable", "not ready: the server is stopping", ""))
			return
		}
		web.Healthy(rw, "ready") // a database that can't be reached is no reason to send the clients of others elsewhere
	})
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		web.Refuse(rw, web.Fail(http.StatusNotFound, "not_found", "there is nothing at this path", "this server serves several databases: put /databases/ and the name of one before the path, such as /databases/app"))
	})
	return mux
}

// resting answers clients while a hub does not run: it starts for those only who may connect, because it costs more than they do.
func (m *Many) resting(d *member, rw http.ResponseWriter, r *http.Request) bool {
	if restingHealth(d, rw, r) {
		return true
	}
	if web.Preflight(rw, r) {
		return true
	}
	c := m.config.webConfig()
	c.Databases, c.Several, c.Policies = func() []string { return *d.names.Load() }, true, m.policies
	if err := web.Admits(c, r, m.log); err != nil {
		web.RefusePage(rw, r, err)
		return true
	}
	return false
}

// restingForOperators answers whoever may not end clients while a hub does not run, and operators what needs none.
func (m *Many) restingForOperators(d *member, rw http.ResponseWriter, r *http.Request) bool {
	if restingHealth(d, rw, r) {
		return true
	}
	f := m.config.operators().Admits(r)
	if f == nil && !strings.HasPrefix(r.URL.Path, "/clients") && !strings.HasPrefix(r.URL.Path, "/users") {
		f = web.Fail(http.StatusNotFound, "not_found", r.Method+" "+r.URL.Path+" does not exist", "what operators may do is below /clients and /users/")
	}
	if f != nil {
		web.Refuse(rw, f)
	}
	return f != nil
}

// restingHealth answers supervisors and scrapers, for which no hub need run.
func restingHealth(d *member, rw http.ResponseWriter, r *http.Request) bool {
	switch p := r.URL.Path; p {
	case "/healthz", "/readyz":
		if p == "/readyz" && d.fails() {
			web.Refuse(rw, web.Fail(http.StatusServiceUnavailable, "unavailable", "not ready: the hub could not start when a client last asked for it", "see the server's log"))
			return true
		}
		web.Healthy(rw, "resting")
	case "/metrics":
		rw.Header().Set("Content-Type", "text/plain; version=0.0.4")
	default:
		return false
	}
	return true
}

// cleanly refuses a path that ServeMux would send the client away from: an id that is empty would become another request.
func cleanly(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody { // net/http reads it to its end, also if no handler does; a hub sets its own deadline
			_ = http.NewResponseController(rw).SetReadDeadline(time.Now().Add(startWithin))
		}
		if p := r.URL.EscapedPath(); strings.HasPrefix(p, "/databases/") && path.Clean(p) != strings.TrimSuffix(p, "/") {
			web.Refuse(rw, web.Fail(http.StatusNotFound, "not_found", r.Method+" "+r.URL.Path+" does not exist", "its path has an empty part"))
			return
		}
		mux.ServeHTTP(rw, r)
	})
}

// unserved says why a request for a database can't be served. Clients give up what does not exist, but not what is stopping.
func (m *Many) unserved(err error) *web.Failure {
	var unknown *nameError
	switch {
	case errors.As(err, &unknown):
		return web.Fail(http.StatusNotFound, "unknown_database", unknown.text, unknown.hint)
	case errors.Is(err, errUnlisted): // the server is stopping, which ends hubs as if they were listed no more
		return web.Fail(http.StatusServiceUnavailable, "draining", "this server is stopping", "connect again: another server takes over")
	}
	return web.Fail(http.StatusServiceUnavailable, "unavailable", "the database can't be served now", "try again; if this persists, see the server's log")
}

// pgServer returns the server of the wire protocol of a database, for the door.
func (m *Many) pgServer(ctx context.Context, name string) (*pgwire.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	d, err := m.find(name)
	if err != nil {
		var unknown *nameError
		if errors.As(err, &unknown) {
			return nil, pgwire.UnknownDatabase(unknown.text, unknown.hint)
		}
		return nil, err
	}
	s, err := d.hub(ctx)
	if err != nil {
		return nil, pgwire.Unreachable("the database can't be served now", "Try again; if this persists, see the hub's log.")
	}
	return s.pg, nil
}

// metrics shows those of all hubs that run, with the label database.
func (m *Many) metrics() http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var all []prometheus.Gatherer
		own := prometheus.NewRegistry()
		own.MustRegister(manyCollector{m})
		all = append(all, own)
		for _, d := range m.all() {
			if s := d.running(); s != nil {
				all = append(all, labelled{s.registry, d.Full})
			}
		}
		promhttp.HandlerFor(atOnce(all), promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(rw, r)
	})
}
