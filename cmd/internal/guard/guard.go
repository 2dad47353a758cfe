package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// ApplicationName is what a guard's sessions go by. No guard judges another's.
const ApplicationName = horizon.Guard

// More than one look takes: at the primary, and at a standby, for which the primary does not wait long.
const (
	lookBound    = 15 * time.Second
	standbyBound = 5 * time.Second
)

// Config says what to guard, and how.
type Config struct {
	Primary    Server
	Standbys   []Server              // of the primary, and theirs
	Policy     Policy                // the zero value is DefaultPolicy
	Act        bool                  // false: say what would be done, and do nothing
	Logger     *slog.Logger          // nil: none
	Registerer prometheus.Registerer // nil: no metrics
}

// Guard watches one cluster. One goroutine at a time may use it.
type Guard struct {
	config  Config
	log     *slog.Logger
	metrics *metrics

	since   map[string]time.Time // by a holder's key: since when it has at least held
	climbs  map[string]*climb    // by a holder's identity
	pending []*signal            // whose effect is not known yet
	harm    harm
	caution caution
	absent  map[string]string // standbys that could not be looked at, and why
}

// New returns a guard of what c says. It looks at nothing yet.
func New(c Config) (*Guard, error) {
	if c.Primary.DB == nil {
		return nil, errors.New("guard: Config.Primary is missing")
	}
	if c.Policy.Interval.Duration == 0 {
		c.Policy = DefaultPolicy()
	}
	if err := c.Policy.prepare(); err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(c.Registerer)
	if err != nil {
		return nil, fmt.Errorf("guard: register metrics: %w", err)
	}
	return &Guard{
		config: c, log: c.Logger, metrics: m, since: map[string]time.Time{}, climbs: map[string]*climb{}, absent: map[string]string{},
	}, nil
}

// Check tells whether the servers are what they are said to be, and let the guard see and do what it must.
func (g *Guard) Check(ctx context.Context) error {
	primary, err := look(ctx, g.config.Primary)
	if err != nil {
		return err
	}
	if primary.Standby {
		return fmt.Errorf("%s is a standby: name its primary in --database, and standbys with --standby", primary.server.Name)
	}
	all := []*view{primary}
	for _, s := range g.config.Standbys {
		v, err := look(ctx, s)
		if err != nil {
			return err
		}
		if err := standbyOf(primary, v); err != nil {
			return err
		}
		all = append(all, v)
	}
	for _, v := range all {
		if !v.seesAll {
			return fmt.Errorf("on %s the guard can't see other roles' sessions: GRANT pg_monitor TO %s", v.server.Name, pgx.Identifier{v.role}.Sanitize())
		}
		if g.config.Act && !v.maySignal {
			return fmt.Errorf("on %s the guard can't end other roles' sessions: GRANT pg_signal_backend TO %s, or leave out --act", v.server.Name, pgx.Identifier{v.role}.Sanitize())
		}
	}
	return nil
}

// standbyOf returns an error when v is no standby of the primary.
func standbyOf(primary, v *view) error {
	if v.system != primary.system {
		return fmt.Errorf("%s is of another cluster than %s: name only its standbys with --standby", v.server.Name, primary.server.Name)
	}
	if !v.Standby {
		return fmt.Errorf("%s is no standby: it was promoted, or is the primary itself", v.server.Name)
	}
	return nil
}

// Run looks, again and again, until ctx ends. A look that fails is logged, and the next one tries again.
func (g *Guard) Run(ctx context.Context) error {
	tick := time.NewTicker(g.config.Policy.Interval.Duration)
	defer tick.Stop()
	failing := ""
	for {
		_, err := g.Look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && err.Error() != failing:
			failing = err.Error()
			g.log.Error("cannot look, trying again", "error", err)
		case err == nil && failing != "":
			failing = ""
			g.log.Info("looking again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Once looks twice, to see what grows; a guard that acts goes on until nobody is left whom it may end, or it has waited for a minute. It
// returns the last look, with what was done in all of them.
func (g *Guard) Once(ctx context.Context) (*Findings, error) {
	const bound = time.Minute
	tick := time.NewTicker(g.config.Policy.Interval.Duration)
	defer tick.Stop()
	var actions []Done
	begin := time.Now()
	for looks := 1; ; looks++ {
		r, err := g.Look(ctx)
		if err != nil {
			return nil, err
		}
		actions = append(actions, r.Actions...)
		r.Actions = actions
		settled := !g.config.Act || len(g.pending) == 0 && !r.due()
		if looks >= 2 && (settled || time.Since(begin) > bound) {
			return r, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// Look looks once, judges, and takes the next step of what is due.
func (g *Guard) Look(ctx context.Context) (*Findings, error) {
	r, err := g.look(ctx)
	g.metrics.looked(r, err)
	return r, err
}

func (g *Guard) look(ctx context.Context) (*Findings, error) {
	c, err := g.cluster(ctx)
	if err != nil {
		return nil, err
	}
	holders := c.holders()
	g.remember(holders)
	tables, err := g.harm.tables(ctx, c.primary, g.config.Policy.Protect, pinnedSince(holders))
	if err != nil {
		return nil, err
	}
	timings := g.harm.probes(ctx, c.primary, g.config.Policy.Protect.Probes)
	judge(&g.config.Policy, holders, sufferers(tables, timings))
	actions := append(g.verify(c, holders), g.climb(ctx, holders)...)
	r := newFindings(g.config.Act, c, holders, tables, timings)
	r.Actions = append(r.Actions, actions...)
	return r, nil
}

// cluster looks at all servers at once. A standby that can't be looked at is left out; its goroutine is waited for, too.
func (g *Guard) cluster(ctx context.Context) (*cluster, error) {
	servers := append([]Server{g.config.Primary}, g.config.Standbys...)
	views, errs := make([]*view, len(servers)), make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		bound := standbyBound
		if i == 0 {
			bound = lookBound
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, bound)
			defer cancel()
			views[i], errs[i] = look(ctx, s)
		})
	}
	wg.Wait()
	if errs[0] != nil {
		return nil, errs[0]
	}
	c := &cluster{primary: views[0]}
	if c.primary.Standby {
		return nil, fmt.Errorf("%s is a standby now: name the new primary in --database", c.primary.server.Name)
	}
	for i, s := range g.config.Standbys {
		v, err := views[i+1], errs[i+1]
		if err == nil {
			err = standbyOf(c.primary, v)
		}
		if err != nil {
			c.absent = append(c.absent, s.Name)
			if g.absent[s.Name] == "" {
				g.log.Warn("a standby is left out", "server", s.Name, "error", err)
			}
			g.absent[s.Name] = err.Error()
			continue
		}
		delete(g.absent, s.Name)
		c.standbys = append(c.standbys, v)
	}
	return c, nil
}

// remember sets since when each holder has at least held what it holds: what was known when it was first seen.
func (g *Guard) remember(holders []*Holder) {
	since := make(map[string]time.Time, len(holders))
	for _, h := range holders {
		key := h.key()
		if at, ok := g.since[key]; ok && at.Before(h.since) {
			h.since = at
		}
		since[key] = h.since
	}
	g.since = since
}

// pinnedSince is since when the horizon has at least stood still.
func pinnedSince(holders []*Holder) time.Time {
	for _, h := range holders {
		if h.relevant && h.AgeXids > 0 {
			return h.since
		}
	}
	return time.Time{}
}
