package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/weirrelay"
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
	configs []weirrelay.Config
	close   []func()
}

// Open reads the file, and prepares to connect to the targets.
func Open(ctx context.Context, c Config) (*Relays, error) {
	files, configs, err := read(c.Path)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(c.Registerer)
	if err != nil {
		return nil, err
	}
	all := &Relays{}
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		config := configs[name]
		target, end, err := files[name].target(ctx, name, c.Log.With("relay", name))
		if err != nil {
			all.Close()
			return nil, fmt.Errorf("relay %s: %w", name, err)
		}
		config.Target, config.Logger, config.Observe = target, c.Log, m.observer(name)
		all.configs, all.close = append(all.configs, config), append(all.close, end)
	}
	return all, nil
}

// Len returns how many relays there are.
func (r *Relays) Len() int { return len(r.configs) }

// Run runs all relays on the pool's database, until ctx ends, or one of them can't go on.
func (r *Relays) Run(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(r.configs))
	var running sync.WaitGroup
	for i, c := range r.configs {
		c.Pool = pool
		running.Go(func() {
			defer stop()
			errs[i] = weirrelay.Run(ctx, c)
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
