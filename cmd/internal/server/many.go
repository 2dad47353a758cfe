package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/cmd/internal/policy"
	"github.com/weir-pg/weir/internal/sleep"
)

// ManyConfig configures a Many. List is required.
type ManyConfig struct {
	// Config is that of each database's hub, behind the common listeners. Database is not used.
	Config

	// List returns the connection strings of the databases. It is called every ListEvery, by default 15 seconds; after an error, the list stays as it was.
	List      func() ([]string, error)
	ListEvery time.Duration

	// Idle is how long a hub without clients goes on; 0: five minutes.
	Idle time.Duration
}

const (
	listEvery = 15 * time.Second
	idleAfter = 5 * time.Minute
)

// Many serves many databases behind common listeners. Each has a hub of its own, a Server without listeners, which starts when the first client comes and ends some minutes after
// the last one has left: a database that nobody listens to costs nothing.
//
// A client names its database as PostgreSQL's clients do, and in HTTP by the path: /databases/NAME/v1/...
type Many struct {
	config ManyConfig
	log    *slog.Logger
	listeners
	door            *pgwire.Server // hands clients over to the hubs'
	policies        *policy.File   // with which hubs begin; nil: none
	http, admin, ui *http.Server

	stopping  atomic.Bool    // /readyz fails
	serving   sync.WaitGroup // goroutines that serve clients
	chores    sync.WaitGroup // goroutines that change members
	beside    sync.WaitGroup // goroutines that change none, and may wait for databases
	hubs      sync.WaitGroup // goroutines that start and end hubs; chores, and requests for members that are not gone, add to them
	stopPG    context.CancelFunc
	life      context.Context // ends when the process stops
	stopInner context.CancelFunc
	failed    chan error
	stop      sync.Once
	stopErr   error

	starts chan struct{} // holds an element for each hub that starts
	tries  chan struct{} // the same for hubs that could not before: those of a server that is silent must not keep others waiting, again and again
	list   atomic.Pointer[listing]
}

// StartMany listens and serves until Stop. The list must be readable at the start; databases need not be reachable.
func StartMany(ctx context.Context, c ManyConfig) (_ *Many, err error) {
	m := &Many{config: c, log: c.Logger, failed: make(chan error, 4), starts: make(chan struct{}, startAtOnce), tries: make(chan struct{}, startAtOnce)}
	m.list.Store(newListing(nil))
	if m.log == nil {
		m.log = slog.Default()
	}
	if m.config.ListEvery == 0 {
		m.config.ListEvery = listEvery
	}
	if m.config.Idle == 0 {
		m.config.Idle = max(idleAfter, 2*c.JobsLease) // workers that have jobs are heard of before that
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	for what, given := range map[string]bool{
		"a users file": c.PGAuth == UsersFile, "a file of endpoints to push jobs to": c.PushFile != "", "a standby to read from": c.ReadDatabase != "", "the doctor": c.Doctor,
		"an embedded NATS server": c.Cluster != nil && c.Cluster.Embedded != nil,
	} {
		if given {
			return nil, fmt.Errorf("hubs of many databases can't have %s: serve that database by a hub of its own", what)
		}
	}
	if err := c.Web.Check(); err != nil { // rather than when the first client comes
		return nil, err
	}
	if c.ChannelsFile != "" {
		if m.policies, err = policy.Open(c.ChannelsFile, m.log); err != nil {
			return nil, fmt.Errorf("read the channels file: %w", err)
		}
	}
	urls, err := c.List()
	if err != nil {
		return nil, err
	}
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.life, m.stopInner = inner, cancel
	defer func() {
		if err != nil {
			_ = m.Stop(ctx)
		}
	}()
	if err := m.listen(ctx, c.Config, m.log); err != nil {
		return nil, err
	}
	tlsConfig, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	m.set(urls)
	if err := m.handlers(ctx, tlsConfig); err != nil {
		return nil, err
	}
	m.chores.Go(func() { m.follow(inner) })
	m.beside.Go(func() { m.visit(inner) })
	if c.UI != nil && c.UI.Run != nil {
		m.beside.Go(func() { c.UI.Run(inner) })
	}
	m.serve(inner)
	return m, nil
}

// serve starts the endpoints.
func (m *Many) serve(inner context.Context) {
	pgCtx, cancel := context.WithCancel(inner)
	m.stopPG = cancel
	if m.pgListener != nil {
		m.serving.Go(func() {
			if err := m.door.Serve(pgCtx, m.pgListener); err != nil {
				m.fail(fmt.Errorf("serve the wire protocol: %w", err))
			}
		})
	}
	serve := func(server *http.Server, l net.Listener, what string) {
		if l == nil {
			return
		}
		m.serving.Go(func() {
			if err := serveHTTP(server, l); err != nil {
				m.fail(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	serve(m.admin, m.adminListener, "serve operators")
	serve(m.http, m.config.bounded(m.httpListener), "serve HTTP")
	serve(m.ui, m.config.bounded(m.uiListener), "serve the web UI")
}

func (m *Many) fail(err error) {
	select {
	case m.failed <- err:
	default:
	}
}

// Failed returns a channel that receives the error of an endpoint that has stopped serving.
func (m *Many) Failed() <-chan error { return m.failed }

// follow keeps to the list, and ends hubs that nobody uses, until ctx ends.
func (m *Many) follow(ctx context.Context) {
	for sleep.For(ctx, m.config.ListEvery) {
		urls, err := m.config.List()
		if err != nil {
			m.log.Error("weir: the list of databases can't be read, and they stay as they were", "error", err)
		} else {
			m.set(urls)
		}
		for _, one := range m.all() {
			one.rest(m.config.Idle)
		}
		m.policies.Set() // hubs begin with what the file contained last, and it may have a mistake then
	}
}

// set adds what is new in the list, and ends the hubs of what is no longer there: of what is missing for the second time, because a file may be read while it is written. There is one
// call at a time.
func (m *Many) set(urls []string) {
	before := map[string]*member{}
	for _, one := range m.all() {
		before[one.url] = one
	}
	now := make([]*member, 0, len(urls))
	came := 0
	for i, url := range urls {
		one := before[url]
		delete(before, url)
		if one == nil {
			one = newMember(m, url)
			came++
			if one.err != nil {
				m.log.Error("weir: a database of the list can't be used", "place", i+1, "error", one.err)
			}
		}
		one.missing = false
		now = append(now, one)
	}
	for _, one := range m.all() {
		if before[one.url] != nil && !one.missing {
			one.missing = true
			delete(before, one.url)
			now = append(now, one)
		}
	}
	list := newListing(now)
	known := m.list.Load().shared()
	for name, databases := range list.shared() {
		if known[name] == "" {
			m.log.Warn("weir: a name stands for no database, because several have it: clients need their full names", "name", name, "databases", databases)
		}
	}
	m.list.Store(list)
	if came > 0 || len(before) > 0 {
		m.log.Info("weir: the list of databases", "databases", len(now), "new", came, "gone", len(before))
	}
	for _, gone := range before {
		m.hubs.Go(gone.leave)
	}
}

func (m *Many) all() []*member { return m.list.Load().members }

// Stop stops gracefully, as Server.Stop does.
func (m *Many) Stop(ctx context.Context) error {
	m.stop.Do(func() { m.stopErr = m.stopNow(ctx) })
	return m.stopErr
}

func (m *Many) stopNow(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, m.config.drain())
	defer cancel()
	m.stopping.Store(true)
	if m.stopPG != nil {
		m.stopPG()
	}
	m.stopInner()
	m.chores.Wait() // not for what is beside, which may take long: a page of the UI that waits for its database keeps UI.Run
	for _, one := range m.all() {
		m.hubs.Go(one.leave) // which tells clients to reconnect elsewhere
	}
	var err error
	for _, server := range []*http.Server{m.http, m.ui, m.admin} {
		if server != nil {
			err = errors.Join(err, server.Shutdown(bounded))
			_ = server.Close()
		}
	}
	late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil // hubs may outlast ctx
	m.hubs.Wait()
	m.serving.Wait()
	m.beside.Wait()
	m.close()
	if late {
		return nil // the hubs have said so
	}
	return err
}

// Hub returns the hub of a connection string of the list, or nil while it does not run.
func (m *Many) Hub(url string) *Server {
	for _, d := range m.all() {
		if d.url == url {
			return d.running()
		}
	}
	return nil
}
