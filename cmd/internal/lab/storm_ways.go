package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/bouncer"
)

// stormWay is one way for many clients to connect.
type stormWay struct {
	*track
	call       call
	targets    []target // that must have settled before
	jitter     time.Duration
	queries    *sessions // that run at the same time; nil: none
	workers    func(ctx context.Context) (int64, bool)
	postmaster int // of the first server; 0: unknown
	knocks     []knock
	work       toil          // of that postmaster, during the storms
	queried    int64         // queries that ran at the same time
	started    int64         // workers that they started
	querying   time.Duration // how long they ran
}

// stormPlan holds the ways, and the servers and sessions that they need.
type stormPlan struct {
	ways             []*stormWay
	home             target
	servers          []*site // each with its own postmaster; the first is the run's
	huge             *site   // nil: none
	parallel, serial *sessions
	closes           []func()
}

// close ends everything, the newest first.
func (p *stormPlan) close() {
	for _, f := range slices.Backward(p.closes) {
		f()
	}
}

// ends are all servers, for settle.
func (p *stormPlan) ends() (all []target) {
	for _, w := range p.ways {
		for _, to := range w.targets {
			if !slices.ContainsFunc(all, func(t target) bool { return t.address == to.address }) {
				all = append(all, to)
			}
		}
	}
	return all
}

func (p *stormPlan) budgets() []budgetWay { return budgetWays(p.servers, p.huge, p.parallel, p.serial) }

// add adds a way whose clients connect to the targets.
func (p *stormPlan) add(kind Kind, name, what string, postmaster int, targets ...target) *stormWay {
	w := &stormWay{call: spread(targets), targets: targets, postmaster: postmaster, track: newTrack(&Way{Name: name, Kind: kind, What: what, Unit: "connections"}, 10*time.Second)}
	w.latencyOf = "from startup message to request for authentication"
	p.ways = append(p.ways, w)
	return w
}

// stormWays prepares the servers and sessions of the ways that can be measured here. The plan must be closed even if there is an error.
func stormWays(ctx context.Context, r *run, h *hub) (p *stormPlan, err error) {
	size := r.Storm
	p = &stormPlan{servers: []*site{r.site}}
	if p.home, err = targetOf(r.site.url); err != nil {
		return p, err
	}
	postmaster := 0
	if r.site.server != nil {
		postmaster = r.site.server.PID()
	}
	p.add(Collapse, "at once", "all clients connect at the same moment", postmaster, p.home)
	if err := p.addQueries(ctx, r, postmaster); err != nil {
		return p, err
	}
	p.add(Fix, "with jitter", fmt.Sprintf("each client first waits for a random time of up to %s", size.Jitter), postmaster, p.home).jitter = size.Jitter
	if err := p.addServers(ctx, r, postmaster); err != nil {
		return p, err
	}
	if err := p.addHuge(ctx, r); err != nil {
		return p, err
	}
	if err := p.addPools(ctx, r, postmaster); err != nil {
		return p, err
	}
	if h != nil {
		to, err := targetOf(h.url)
		if err != nil {
			return p, err
		}
		p.add(Fix, "to the hub", "all clients connect at the same moment, to a hub instead of PostgreSQL", postmaster, to)
	}
	return p, nil
}

// addQueries adds the storms beside queries, with parallel workers and without.
func (p *stormPlan) addQueries(ctx context.Context, r *run, postmaster int) error {
	for _, q := range []struct {
		kind                Kind
		workers, name, what string
		sessions            **sessions
	}{
		{Collapse, "128", "at once, beside parallel queries", "the same, while some sessions run small queries, each with as many parallel workers as it " +
			"can get, which the postmaster must start and reap too", &p.parallel},
		{Baseline, "0", "at once, beside the same queries without workers", "the same queries without parallel workers, to separate the cost of the workers from " +
			"that of the queries", &p.serial},
	} {
		settings := churnSettings(q.workers)
		parameters := map[string]string{}
		for _, s := range settings {
			parameters[s.Name] = s.Value
		}
		queries, err := openSessions(ctx, r.site.url, r.Storm.Queries, parameters)
		if err != nil {
			return err
		}
		p.closes = append(p.closes, queries.close)
		*q.sessions = queries
		w := p.add(q.kind, q.name, q.what, postmaster, p.home)
		w.queries, w.way.Settings = queries, settings
		if r.site.number >= 180000 {
			w.workers = func(ctx context.Context) (n int64, ok bool) {
				err := r.site.guard.QueryRow(ctx, `SELECT coalesce(sum(parallel_workers_launched), 0)::bigint FROM pg_stat_database WHERE datname = current_database()`).Scan(&n)
				return n, err == nil
			}
		}
	}
	return nil
}

// addServers adds the storms over several servers.
func (p *stormPlan) addServers(ctx context.Context, r *run, postmaster int) error {
	if r.site.server == nil {
		r.note("Several servers were not measured: that requires private servers, and a database was given.")
		return nil
	}
	targets := []target{p.home}
	for len(targets) < r.Storm.Servers {
		more := &site{}
		p.closes = append(p.closes, func() { _ = more.close() })
		if err := more.start(ctx, r.Major, needs{connections: r.Storm.Clients + 20, parameters: stormParameters}, r.say); err != nil {
			return err
		}
		next, err := targetOf(more.url)
		if err != nil {
			return err
		}
		p.servers, targets = append(p.servers, more), append(targets, next)
		if !powerOfTwo(len(targets)) {
			continue
		}
		p.add(Fix, fmt.Sprintf("over %d servers", len(targets)), fmt.Sprintf("the clients are spread over %d servers on this machine, each with its own "+
			"postmaster", len(targets)), postmaster, slices.Clone(targets)...)
	}
	return nil
}

// powerOfTwo reports whether so many servers are measured.
func powerOfTwo(n int) bool { return n&(n-1) == 0 }

// addHuge adds the storm to a server with huge pages, or notes why it can't.
func (p *stormPlan) addHuge(ctx context.Context, r *run) error {
	free, putBack, why := reserveHuge(ctx, r)
	p.closes = append(p.closes, func() {
		if err := putBack(); err != nil {
			r.note("vm.nr_hugepages could not be put back: %v.", err)
		}
	})
	if why != "" {
		r.note("Huge pages were not measured: %s.", why)
		return nil
	}
	huge := &site{}
	p.closes = append(p.closes, func() { _ = huge.close() })
	parameters := map[string]string{"authentication_timeout": "600s", "huge_pages": "on", "max_worker_processes": "520", "max_parallel_workers": "512"}
	if err := huge.start(ctx, r.Major, needs{connections: r.Storm.Clients + 20, parameters: parameters}, r.say); err != nil {
		if ctx.Err() != nil {
			return err
		}
		r.note("Huge pages were not measured: the %d free pages are not enough for a server (%v).", free, err)
		return nil
	}
	p.huge = huge
	to, err := targetOf(huge.url)
	if err != nil {
		return err
	}
	w := p.add(Fix, "at once, huge pages", "all at once, on a server whose shared memory is in huge pages, so that a fork has less to copy", huge.server.PID(), to)
	w.way.Settings = []Setting{{"huge_pages", "on"}}
	return nil
}

// addPools adds the ways in which sessions are there before the clients want them.
func (p *stormPlan) addPools(ctx context.Context, r *run, postmaster int) error {
	b, err := bouncer.Start(ctx, bouncer.Config{Target: r.site.url, Sessions: r.Storm.Pool, Clients: r.Storm.Clients + 100})
	switch {
	case errors.Is(err, bouncer.ErrNotInstalled):
		r.note("PgBouncer was not measured: it is not installed.")
	case err != nil:
		return err
	default:
		p.closes = append(p.closes, b.Stop)
		to, err := targetOf(b.URL())
		if err != nil {
			return err
		}
		p.add(Fix, "to PgBouncer", fmt.Sprintf("all clients connect at the same moment, to PgBouncer, which has %d sessions at the server", r.Storm.Pool), postmaster, to)
	}
	pool, err := openSessions(ctx, r.site.url, r.Storm.Pool, nil)
	if err != nil {
		return err
	}
	p.closes = append(p.closes, pool.close)
	w := p.add(Fix, "from a standing pool", fmt.Sprintf("all clients want a session at the same moment, and share %d that are open already; each runs a small query", r.Storm.Pool), postmaster, p.home)
	w.call = borrow(pool)
	w.latencyOf = "from wanting a session to the answer of a small query"
	return nil
}

// blow runs one storm. It returns when all clients have their answers.
func (w *stormWay) blow(ctx, until context.Context, clients int, signal *signal, m *load.Tally) error {
	stop := func() error { return nil }
	if w.queries != nil {
		var before int64
		counted := false
		if w.workers != nil {
			before, counted = w.workers(ctx)
		}
		begun, queried := time.Now(), load.NewTally()
		end := w.queries.during(until, queried, repeatQuery)
		stop = func() error {
			if err := end(); err != nil {
				return err
			}
			w.querying += time.Since(begun)
			done, _ := queried.Cut()
			w.queried += done
			if !counted {
				return nil
			}
			// A session reports what it has done at most once a second, unless it is told to.
			if err := w.queries.exec(ctx, `SELECT pg_stat_force_next_flush()`); err != nil {
				return err
			}
			if now, ok := w.workers(ctx); ok {
				w.started += now - before
			}
			return nil
		}
	}
	jitter := noJitter
	if w.jitter > 0 {
		jitter = func() time.Duration { return rand.N(w.jitter) }
	}
	knocks, err := storm(until, clients, w.call, signal, jitter, m)
	w.knocks = append(w.knocks, knocks...)
	if ended := stop(); err == nil {
		err = ended
	}
	return err
}

// repeatQuery runs one small query.
func repeatQuery(ctx context.Context, conn *pgx.Conn, _ int) error {
	_, err := conn.Exec(ctx, sumSmall)
	return err
}
