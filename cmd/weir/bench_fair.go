package main

import (
	"context"

	"github.com/weir-pg/weir/cmd/internal/bench"
	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
)

type benchFairCmd struct {
	benchFlags
	Tenants int     `default:"10000" help:"Number of tenants, of which one is large. Tenants are keys."`
	Jobs    int     `default:"1000000" help:"Number of jobs that the large one enqueues at once."`
	Rate    int     `default:"300" help:"Jobs per second of all others together: 30% of what the workers can do."`
	PerKey  int     `placeholder:"N" help:"Limit each tenant to this many running jobs."`
	Seconds float64 `default:"10" help:"Duration of each measurement, before and after."`
	Rounds  int     `default:"1" help:"Number of rounds, each with all of the large tenant's jobs, with half, and with a hundredth."`
}

func (c *benchFairCmd) Run(ctx context.Context, s *streams, d *database) error {
	switch {
	case c.Tenants < 2:
		return usagef("--tenants must be at least 2, got %d", c.Tenants)
	case c.Jobs < 100:
		return usagef("--jobs must be at least 100, got %d", c.Jobs)
	case c.Rate < 1:
		return usagef("--rate must be at least 1, got %d", c.Rate)
	case c.PerKey < 0 || c.PerKey > 1000:
		return usagef("--per-key must be 1 to 1000, got %d", c.PerKey)
	case !(c.Seconds > 0):
		return usagef("--seconds must be more than 0, got %v", c.Seconds)
	case c.Rounds < 1:
		return usagef("--rounds must be at least 1, got %d", c.Rounds)
	}
	return c.run(ctx, s, d, func(db *load.Database) (*load.Report, error) {
		return bench.Fair(ctx, db, engine.Engine{Log: s.err},
			bench.FairConfig{Tenants: c.Tenants, Jobs: c.Jobs, Rate: c.Rate, PerTenant: c.PerKey, Window: seconds(c.Seconds), Rounds: c.Rounds})
	})
}
