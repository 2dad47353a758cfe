package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/weir-pg/weir/cmd/internal/bench"
	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
)

// feature describes what is measured beside plain jobs: the engine's features, and schedules that fire meanwhile.
func feature(db *load.Database, e engine.Engine, schedules int) bench.Feature {
	var what []string
	for _, part := range []struct {
		is     bool
		format string
		value  any
	}{
		{e.Unique, "unique jobs", nil}, {e.Limit > 0, "a limit of %d", e.Limit}, {e.Keys > 0, "%d keys", e.Keys}, {e.KeyLimit > 0, "a limit of %d for each", e.KeyLimit},
		{schedules > 0, "%d schedules", schedules},
	} {
		if part.value == nil && part.is {
			what = append(what, part.format)
		} else if part.is {
			what = append(what, fmt.Sprintf(part.format, part.value))
		}
	}
	f := bench.Feature{What: strings.Join(what, ", "), Engine: e, Plain: engine.Engine{Log: e.Log, Numbered: e.Unique}}
	if schedules > 0 {
		f.Around = func(ctx context.Context) (func() error, error) { return engine.Schedule(ctx, db.Observer, schedules) }
	}
	return f
}

type benchFeaturesCmd struct {
	benchFlags
	Jobs   int `default:"100000" help:"Number of jobs in each round, of each feature and of the plain jobs beside it."`
	Rounds int `default:"5" help:"Number of rounds; the median of their ratios is shown."`
}

// Help is shown by weir bench features --help.
func (benchFeaturesCmd) Help() string {
	return "In each round, every feature is measured right after or right before as many plain jobs, so that other load on the machine concerns both. " +
		"The limit and the limits of keys allow as much as the worker can hold, so that they withhold nothing. weir bench drain measures one feature, of any size."
}

func (c *benchFeaturesCmd) Run(ctx context.Context, s *streams, d *database) error {
	switch {
	case c.Jobs < 1:
		return usagef("--jobs must be at least 1, got %d", c.Jobs)
	case c.Rounds < 1:
		return usagef("--rounds must be at least 1, got %d", c.Rounds)
	}
	return c.run(ctx, s, d, func(db *load.Database) (*load.Report, error) {
		const held, keys, schedules = 4000, 1000, 10_000 // held: twice the worker's concurrency
		config := bench.DrainConfig{Jobs: c.Jobs, Rounds: c.Rounds}
		for _, f := range []struct {
			engine    engine.Engine
			schedules int
		}{
			{engine.Engine{Unique: true}, 0}, {engine.Engine{Limit: held}, 0}, {engine.Engine{Keys: keys}, 0}, {engine.Engine{Keys: keys, KeyLimit: held / keys}, 0},
			{engine.Engine{}, schedules},
		} {
			f.engine.Log = s.err
			config.Features = append(config.Features, feature(db, f.engine, f.schedules))
		}
		r, err := bench.Drain(ctx, db, engine.Engine{Log: s.err}, config)
		if r != nil {
			r.Bench = "features"
		}
		return r, err
	})
}
