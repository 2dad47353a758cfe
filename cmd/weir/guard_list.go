package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-pg/weir/cmd/internal/guard"
	"github.com/weir-pg/weir/internal/sleep"
)

const (
	listEvery      = 15 * time.Second // a list is read again
	identifyEvery  = 30 * time.Second // whether a name still leads to the same database
	leastRetry     = time.Second
	longestRetry   = time.Minute
	stateStarting  = "starting"
	stateGuarded   = "guarded"
	stateDuplicate = "duplicate"
	stateUnguarded = "failing"
)

var (
	errListedTwice  = errors.New("it is listed under another name too, and guarded once")
	errSomebodyElse = errors.New("the name leads to another server or database now")
)

// guardedList guards the databases of a list. Each has a goroutine, which set starts, stops and waits for. A database is known by its running server and its id there, so
// that one with two names is guarded once.
type guardedList struct {
	config guard.Config // of each, but for what is its own
	log    *slog.Logger

	mu     sync.Mutex
	listed map[string]*listedGuard // by connection string
	held   map[string]*listedGuard // by identity
	turns  map[string]*sharedTurns // by running server
}

// sharedTurns is what the guards of one running server share.
type sharedTurns struct {
	guard.Turns
	users int
}

// listedGuard is a database of the list. Its fields are guarded by guardedList.mu.
type listedGuard struct {
	list  *guardedList
	url   string
	name  string
	stop  context.CancelFunc
	done  chan struct{}
	state string
	err   error

	guard    *guard.Guard // nil: it is not guarded
	registry *prometheus.Registry
}

func newGuardedList(c guard.Config) *guardedList {
	return &guardedList{config: c, log: c.Logger, listed: map[string]*listedGuard{}, held: map[string]*listedGuard{}, turns: map[string]*sharedTurns{}}
}

// guardList runs until ctx ends, or with --once checks each database once.
func (c *guardCmd) guardList(ctx context.Context, s *streams, config guard.Config) error {
	urls, err := readList(s.in, c.List)
	if err != nil {
		return err
	}
	l := newGuardedList(config)
	if c.Once {
		return c.onceList(ctx, s, l, urls)
	}
	if c.List == "-" {
		return usagef("--list - can be read only once, and the guard reads its list again and again: write it to a file, or add --once")
	}
	if c.ListenHTTP != "" {
		mux := probes(l.stuck, l.ready)
		mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
			promhttp.HandlerFor(l.gatherers(), promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
		})
		stop, err := serveHTTP("--listen-http", loopback(c.ListenHTTP), mux, "metrics and probes", "/metrics", l.log)
		if err != nil {
			return err
		}
		defer stop()
	}
	mode := "dry run: pass --act to end sessions"
	if c.Act {
		mode = "sessions will be ended"
	}
	l.log.Info("guarding", "databases", len(urls), "mode", mode, "interval", config.Policy.Interval)
	l.follow(ctx, c.List, urls, listEvery)
	return nil
}

// follow guards what is in a list, which it reads again and again, until ctx ends.
func (l *guardedList) follow(ctx context.Context, path string, urls []string, every time.Duration) {
	defer l.set(ctx, nil) // stops and waits for all
	for {
		l.set(ctx, urls)
		if !sleep.For(ctx, every) {
			return
		}
		if again, err := readList(nil, path); err != nil {
			l.log.Error("the list can't be read again, and stays as it was", "error", err)
		} else {
			urls = again
		}
	}
}

// set starts to guard what is new in the list, and stops what is no longer there.
func (l *guardedList) set(ctx context.Context, urls []string) {
	wanted := make(map[string]bool, len(urls))
	for _, url := range urls {
		wanted[url] = true
	}
	l.mu.Lock()
	var gone []*listedGuard
	for url, d := range l.listed {
		if !wanted[url] {
			gone = append(gone, d)
			delete(l.listed, url)
			d.stop()
		}
	}
	for i, url := range urls {
		if l.listed[url] != nil || ctx.Err() != nil {
			continue
		}
		name, err := namedOr(i+1, url)
		d := &listedGuard{list: l, url: url, name: name, done: make(chan struct{}), state: stateStarting, err: err}
		var own context.Context
		own, d.stop = context.WithCancel(ctx)
		l.listed[url] = d
		go func() { // ends when d.stop is called; set waits for it
			defer close(d.done)
			defer d.stop()
			d.run(own)
		}()
	}
	l.mu.Unlock()
	for _, d := range gone {
		<-d.done
		if ctx.Err() == nil {
			l.log.Info("guarded no longer", "name", d.name)
		}
	}
}

// run guards the database until ctx ends, and tries again after an error.
func (d *listedGuard) run(ctx context.Context) {
	told := ""
	for pause := leastRetry; ; pause = min(2*pause, longestRetry) {
		begin := time.Now()
		err := d.whileSame(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begin) > longestRetry {
			pause, told = leastRetry, ""
		}
		state := stateUnguarded
		if errors.Is(err, errListedTwice) {
			state = stateDuplicate
		}
		d.is(state, err)
		if err.Error() != told { // not every time
			told = err.Error()
			d.list.log.Warn("not guarded", "name", d.name, "error", ofList(told))
		}
		if !sleep.For(ctx, sleep.Jitter(pause)) {
			return
		}
	}
}

func (d *listedGuard) is(state string, err error) {
	d.list.mu.Lock()
	defer d.list.mu.Unlock()
	d.state, d.err = state, err
}

// whileSame guards the database for as long as the name leads to it.
func (d *listedGuard) whileSame(ctx context.Context) error {
	server, closePool, err := guarded(ctx, d.url, false)
	if err != nil {
		return err
	}
	defer closePool()
	g, identity, release, err := d.take(ctx, server)
	if err != nil {
		return err
	}
	defer release()
	d.list.log.Info("guarded", "name", d.name, "cluster", identity.Cluster, "database", identity.Database)
	d.is(stateGuarded, nil)
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }() // ends with ctx, and is waited for
	defer func() { stop(); <-ended }()
	for sleep.For(ctx, identifyEvery) {
		now, err := guard.Identify(ctx, server)
		if err == nil && now.Same() != identity.Same() { // while it can't be asked, it is the same
			return errSomebodyElse
		}
	}
	return ctx.Err()
}

// take makes the guard of the database that a server is, unless another name leads there. Until release is called, it is taken.
func (d *listedGuard) take(ctx context.Context, server guard.Server) (g *guard.Guard, identity guard.Identity, release func(), err error) {
	l := d.list
	if identity, err = guard.Identify(ctx, server); err != nil {
		return nil, identity, nil, err
	}
	same, running := identity.Same(), identity.Running()
	l.mu.Lock()
	if l.held[same] != nil {
		l.mu.Unlock()
		return nil, identity, nil, errListedTwice
	}
	l.held[same] = d
	turns := l.turns[running]
	if turns == nil {
		turns = &sharedTurns{}
		l.turns[running] = turns
	}
	turns.users++
	l.mu.Unlock()
	release = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, same)
		if turns.users--; turns.users == 0 {
			delete(l.turns, running)
		}
		d.guard, d.registry = nil, nil
	}
	registry := prometheus.NewRegistry()
	config := l.config
	config.Primary, config.Turns = server, &turns.Turns
	config.Policy.Rules = slices.Clone(config.Policy.Rules) // a guard prepares its own
	config.Registerer = prometheus.WrapRegistererWith(prometheus.Labels{"cluster": identity.Cluster, "database": identity.Database, "address": server.Name}, registry)
	config.Logger = l.log.With("cluster", identity.Cluster, "guarded", identity.Database)
	if g, err = guard.New(config); err == nil {
		err = g.Check(ctx)
	}
	if err != nil {
		release()
		return nil, identity, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d.guard, d.registry = g, registry
	return g, identity, release, nil
}

var metricGuarded = prometheus.NewDesc("weir_guard_databases", "Databases of the list, by what becomes of them.", []string{"state"}, nil)

// Describe implements prometheus.Collector.
func (l *guardedList) Describe(out chan<- *prometheus.Desc) { out <- metricGuarded }

// Collect implements prometheus.Collector.
func (l *guardedList) Collect(out chan<- prometheus.Metric) {
	states := map[string]int{stateStarting: 0, stateGuarded: 0, stateDuplicate: 0, stateUnguarded: 0}
	l.mu.Lock()
	for _, d := range l.listed {
		states[d.state]++
	}
	l.mu.Unlock()
	for state, n := range states {
		out <- prometheus.MustNewConstMetric(metricGuarded, prometheus.GaugeValue, float64(n), state)
	}
}

// gatherers returns the metrics of the list, and those of each guard.
func (l *guardedList) gatherers() prometheus.Gatherers {
	own := prometheus.NewRegistry()
	own.MustRegister(l)
	all := prometheus.Gatherers{own}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.listed {
		if d.registry != nil {
			all = append(all, d.registry)
		}
	}
	return all
}

// guards returns the guards that there are, and why one of the databases has none.
func (l *guardedList) guards() (all []*guard.Guard, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.listed {
		if d.guard != nil {
			all = append(all, d.guard)
		} else if d.err != nil {
			why = fmt.Errorf("%s: %w", d.name, d.err)
		}
	}
	return all, why
}

// ready returns why no database is guarded, or nil: one that can't be reached is no reason to stop guarding the others.
func (l *guardedList) ready() error {
	all, why := l.guards()
	if why == nil {
		why = errors.New("no database is guarded yet")
	}
	for _, g := range all {
		err := g.Ready()
		if err == nil {
			return nil
		}
		why = err
	}
	return why
}

func (l *guardedList) stuck() error {
	all, _ := l.guards()
	for _, g := range all {
		if err := g.Stuck(); err != nil {
			return err
		}
	}
	return nil
}
