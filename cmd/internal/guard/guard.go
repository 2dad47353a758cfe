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

// ApplicationName is the application name of a guard's sessions. A guard ignores the sessions of other guards.
const ApplicationName = horizon.Guard

// Time limits of each step of a poll, well above what it takes: at the primary, and of reading a standby, which should not delay the
// primary for long.
const (
	pollTimeout    = 15 * time.Second
	standbyTimeout = 5 * time.Second
)

// Config configures a guard.
type Config struct {
	Primary    Server
	Standbys   []Server              // of the primary, and cascaded ones
	Policy     Policy                // zero value: DefaultPolicy
	Act        bool                  // false: only report what would be done
	Logger     *slog.Logger          // nil: none
	Registerer prometheus.Registerer // nil: no metrics
	Turns      *Turns                // shared with the guards of other databases on the same running server; nil: there are none
}

// Guard watches one cluster. It must not be used by several goroutines at the same time, except for Ready and Stuck.
type Guard struct {
	config  Config
	log     *slog.Logger
	metrics *metrics
	health  health

	seen    map[string]sighting // by a holder's key
	climbs  map[string]*climb   // by a holder's identity
	pending []*signal           // whose effect is not known yet
	harm    harm
	turns   *Turns
	absent  map[string]string // standbys that did not answer, and why
	useless map[string]bool   // tables and probes of the policy that protect nothing
}

// New returns a guard. It does not query any server yet.
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
	if c.Turns == nil {
		c.Turns = new(Turns)
	}
	m, err := newMetrics(c.Registerer)
	if err != nil {
		return nil, fmt.Errorf("guard: register metrics: %w", err)
	}
	return &Guard{
		config: c, log: c.Logger, metrics: m, turns: c.Turns, seen: map[string]sighting{}, climbs: map[string]*climb{}, absent: map[string]string{},
	}, nil
}

// Check returns an error if a server does not have the role that the configuration gives it, or the guard lacks privileges there.
func (g *Guard) Check(ctx context.Context) error {
	primary, err := inspect(ctx, g.config.Primary, pollTimeout)
	if err != nil {
		return err
	}
	if primary.Standby {
		return fmt.Errorf("%s is a standby: name its primary in --database, and standbys with --standby", primary.server.Name)
	}
	all := []*view{primary}
	for _, s := range g.config.Standbys {
		v, err := inspect(ctx, s, pollTimeout)
		if err != nil {
			return err
		}
		if err := standbyOf(primary, v); err != nil {
			return err
		}
		all = append(all, v)
	}
	for _, v := range all {
		if err := v.permits(g.config.Act); err != nil {
			return err
		}
	}
	return nil
}

// permits returns an error if the guard lacks privileges there. Without them nobody seems to hold anything.
func (v *view) permits(act bool) error {
	switch {
	case !v.seesAll:
		return fmt.Errorf("on %s the guard can't see other roles' sessions: GRANT pg_monitor TO %s", v.server.Name, pgx.Identifier{v.role}.Sanitize())
	case act && !v.maySignal:
		return fmt.Errorf("on %s the guard can't end other roles' sessions: GRANT pg_signal_backend TO %s, or leave out --act", v.server.Name, pgx.Identifier{v.role}.Sanitize())
	}
	return nil
}

// standbyOf returns an error if v is not a standby of the primary.
func standbyOf(primary, v *view) error {
	if v.system != primary.system {
		return fmt.Errorf("%s and %s are not of the same cluster: name only standbys of the primary with --standby", v.server.Name, primary.server.Name)
	}
	if !v.Standby {
		return fmt.Errorf("%s is not a standby: it was promoted, or is the primary itself", v.server.Name)
	}
	return nil
}

// Run polls until ctx ends. A poll that fails is logged, and the next one tries again.
func (g *Guard) Run(ctx context.Context) error {
	tick := time.NewTicker(g.config.Policy.Interval.Duration)
	defer tick.Stop()
	failing := ""
	for {
		_, err := g.Poll(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && err.Error() != failing:
			failing = err.Error()
			g.log.Error("cannot poll the cluster, trying again", "error", err)
		case err == nil && failing != "":
			failing = ""
			g.log.Info("polling again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Once polls twice, to see growth. A guard that acts continues until no session is left that it may end, for at most a minute. Once returns
// the findings of the last poll, with the actions of all.
func (g *Guard) Once(ctx context.Context) (*Findings, error) {
	const bound = time.Minute
	tick := time.NewTicker(g.config.Policy.Interval.Duration)
	defer tick.Stop()
	actions := []Done{}
	begin := time.Now()
	for polls := 1; ; polls++ {
		r, err := g.Poll(ctx)
		if err != nil {
			return nil, err
		}
		actions = append(actions, r.Actions...)
		r.Actions = actions
		settled := !g.config.Act || len(g.pending) == 0 && !r.due()
		if polls >= 2 && (settled || time.Since(begin) > bound) {
			return r, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// Poll polls the cluster once, judges the holders, and takes the next step for each that is due.
func (g *Guard) Poll(ctx context.Context) (*Findings, error) {
	g.health.polling.Beat()
	defer g.health.polling.Rest()
	r, err := g.poll(ctx)
	g.metrics.polled(r, err)
	g.health.polled(err)
	return r, err
}

func (g *Guard) poll(ctx context.Context) (*Findings, error) {
	c, err := g.cluster(ctx)
	if err != nil {
		return nil, err
	}
	if n := g.config.Policy.Protect.BlockedSessions; n > 0 {
		if c.blockers, c.waiting, err = readBlockers(ctx, c.primary.server.DB, g.config.Policy.Protect.BlockedFor.Duration); err != nil {
			return nil, fmt.Errorf("read who blocks whom on %s: %w", c.primary.server.Name, err)
		}
	}
	holders := c.markBlockers(c.holders(), g.config.Policy.Protect)
	g.remember(holders)
	tables, err := g.harm.tables(ctx, c.primary, g.config.Policy.Protect, pinnedSince(holders))
	if err != nil {
		return nil, err
	}
	missing, err := unmatched(ctx, c.primary, g.config.Policy.Protect.Tables)
	if err != nil {
		return nil, err
	}
	timings := g.harm.probes(ctx, c.primary, g.config.Policy.Protect.Probes)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	g.warn(c.primary.Database, missing, timings)
	judge(&g.config.Policy, holders, sufferers(tables, timings))
	actions := g.act(ctx, c, holders)
	r := newFindings(g.config.Act, c, holders, tables, timings)
	r.Missing = missing
	r.Actions = append(r.Actions, actions...)
	return r, nil
}

// act checks the effects of earlier signals, and takes the next steps.
func (g *Guard) act(ctx context.Context, c *cluster, holders []*Holder) []Done {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	return append(g.verify(c, holders), g.climb(ctx, holders)...)
}

// cluster reads all servers concurrently. A standby that does not answer is left out, but its goroutine is waited for too.
func (g *Guard) cluster(ctx context.Context) (*cluster, error) {
	servers := append([]Server{g.config.Primary}, g.config.Standbys...)
	views, errs := make([]*view, len(servers)), make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		bound := standbyTimeout
		if i == 0 {
			bound = pollTimeout
		}
		wg.Go(func() { views[i], errs[i] = inspect(ctx, s, bound) })
	}
	wg.Wait()
	if errs[0] != nil {
		return nil, errs[0]
	}
	c := &cluster{primary: views[0]}
	if c.primary.Standby {
		return nil, fmt.Errorf("%s is a standby now: name the new primary in --database", c.primary.server.Name)
	}
	if err := c.primary.permits(g.config.Act); err != nil { // they can be revoked meanwhile
		return nil, err
	}
	for i, s := range g.config.Standbys {
		v, err := views[i+1], errs[i+1]
		if err == nil {
			err = standbyOf(c.primary, v)
		}
		if err == nil {
			err = v.permits(g.config.Act)
		}
		if err != nil {
			c.absent = append(c.absent, s.Name)
			if g.absent[s.Name] == "" {
				g.log.Warn("a standby does not answer and is left out", "server", s.Name, "error", err)
			}
			g.absent[s.Name] = err.Error()
			continue
		}
		delete(g.absent, s.Name)
		c.standbys = append(c.standbys, v)
	}
	return c, nil
}

// pinnedSince returns a time since which the horizon has not moved.
func pinnedSince(holders []*Holder) time.Time {
	for _, h := range holders {
		if h.relevant && h.AgeXids > 0 {
			return h.since
		}
	}
	return time.Time{}
}
