package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Connections is how many connections of a pool each relay needs.
const Connections = 3

// Config specifies what to run.
type Config struct {
	Path       string // of the file
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Relays are those of a file.
type Relays struct {
	plans []plan
	close []func()
}

// Open reads the file, and prepares to connect to the targets.
func Open(ctx context.Context, c Config) (*Relays, error) {
	plans, err := read(c.Path)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(c.Registerer)
	if err != nil {
		return nil, err
	}
	all := &Relays{plans: plans}
	for i := range plans {
		p := &plans[i]
		end, err := p.connect(ctx, c.Log.With("relay", p.config.Name))
		if err != nil {
			all.Close()
			return nil, fmt.Errorf("relay %s: %w", p.config.Name, err)
		}
		all.close = append(all.close, end)
		p.config.Logger, p.config.Observe = c.Log, m.observer(p.config.Name)
		if !p.jobs && p.source == nil {
			if p.config.Observe, err = m.behindObserver(p.config.Name); err != nil {
				all.Close()
				return nil, fmt.Errorf("relay %s: %w", p.config.Name, err)
			}
		}
	}
	return all, nil
}

// Len returns how many relays there are.
func (r *Relays) Len() int { return len(r.plans) }

// Run runs all relays on the pool's database, until ctx ends, or one of them can't go on.
func (r *Relays) Run(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(r.plans))
	var running sync.WaitGroup
	for i, p := range r.plans {
		p.config.Pool = pool
		running.Go(func() {
			defer stop()
			errs[i] = p.run(ctx)
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// Close closes the connections to the targets.
func (r *Relays) Close() {
	for _, end := range r.close {
		end()
	}
}
