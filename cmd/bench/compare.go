package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/weir-pg/weir/cmd/bench/internal/jobs"
	"github.com/weir-pg/weir/cmd/internal/bench"
	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
)

// comparison is the output of --json.
type comparison struct {
	Bench   string         `json:"bench"`
	Weir    []*load.Report `json:"weir"`
	River   []*load.Report `json:"river"`
	Ratio   load.Spread    `json:"ratio"` // by round: jobs per second, Weir to River, or median latency, River to Weir
	Targets []load.Target  `json:"targets,omitempty"`
}

// measurement measures one engine.
type measurement func(*load.Database, load.Engine) (*load.Report, error)

type drainCmd struct {
	flags
	Jobs   int `default:"500000" help:"Number of jobs in each round (${default})."`
	Rounds int `default:"3" help:"Number of rounds, in which the two take turns (${default})."`

	Unique bool `help:"Enqueue unique jobs, none of them a duplicate."`
}

func (c *drainCmd) Run(ctx context.Context, s *streams) error {
	connections := map[string]int{"river": 20}
	unique := []load.Engine{engine.Engine{Log: s.errs, Unique: c.Unique}, riverEngine{s.errs, c.Unique}}
	return c.compare(ctx, s, "drain", unique, c.Rounds, func(d *load.Database, e load.Engine) (*load.Report, error) {
		return bench.Drain(ctx, d, e, bench.DrainConfig{Jobs: c.Jobs, Concurrency: 2000, Connections: connections[e.Name()]})
	})
}

type latencyCmd struct {
	flags
	Seconds float64 `default:"60" help:"Seconds of enqueueing, and then of idling (${default})."`
	Rounds  int     `default:"3" help:"Number of rounds, in which the two take turns (${default})."`
}

func (c *latencyCmd) Run(ctx context.Context, s *streams) error {
	return c.compare(ctx, s, "latency", engines(s), c.Rounds, func(d *load.Database, e load.Engine) (*load.Report, error) {
		return bench.Latency(ctx, d, e, bench.LatencyConfig{Duration: seconds(c.Seconds)})
	})
}

type pinnedCmd struct {
	flags
	Rate    int     `default:"3000" help:"Jobs enqueued per second (${default})."`
	Seconds float64 `default:"60" help:"Seconds before the pin, and seconds during it (${default})."`
	Pin     string  `default:"read" enum:"read,write" help:"read: a snapshot that stays open; write: an idle transaction that holds an xid (${default})."`
	Alone   bool    `help:"Measure Weir alone."`
}

func (c *pinnedCmd) Run(ctx context.Context, s *streams) error {
	measure := func(d *load.Database, e load.Engine) (*load.Report, error) {
		return jobs.Pinned(ctx, d, e, jobs.PinnedConfig{Duration: seconds(c.Seconds), Rate: c.Rate, Pin: c.Pin})
	}
	if c.Alone {
		return c.alone(ctx, s, 0, measure)
	}
	return c.compare(ctx, s, "pinned", engines(s), 1, measure)
}

func engines(s *streams) []load.Engine {
	return []load.Engine{engine.Engine{Log: s.errs}, riverEngine{log: s.errs}}
}

// compare measures Weir and River in turn, and prints both reports and their ratio.
func (f *flags) compare(ctx context.Context, s *streams, name string, engines []load.Engine, rounds int, measure measurement) error {
	return f.with(ctx, s, 0, func(d *load.Database) error {
		c := comparison{Bench: name}
		var ratios []float64
		for range rounds {
			weir, err := measure(d, engines[0])
			if err != nil {
				return fmt.Errorf("weir: %w", err)
			}
			river, err := measure(d, engines[1])
			if err != nil {
				return fmt.Errorf("river: %w", err)
			}
			river.Targets = nil // the targets are Weir's promises
			c.Weir, c.River = append(c.Weir, weir), append(c.River, river)
			if name == "latency" {
				ratios = append(ratios, *river.P50 / *weir.P50)
			} else {
				ratios = append(ratios, speed(weir)/speed(river))
			}
		}
		if len(ratios) == 0 {
			return fmt.Errorf("%s needs at least one round, got %d", name, rounds)
		}
		c.Ratio = *load.SpreadOf(ratios)
		if name == "drain" {
			c.Targets = []load.Target{{What: "ratio to River", Got: c.Ratio.Median, Want: 8, Met: c.Ratio.Median >= 8}}
		}
		if f.JSON {
			return printJSON(s.out, c)
		}
		for _, r := range slices.Concat(c.Weir, c.River) {
			if err := r.Text(s.out); err != nil {
				return err
			}
		}
		what := "Weir to River"
		if name == "latency" {
			what = "median latency, River to Weir"
		}
		_, err := fmt.Fprintf(s.out, "%s: %.1f (%.1f to %.1f in %d rounds)\n", what, c.Ratio.Median, c.Ratio.Min, c.Ratio.Max, c.Ratio.Samples)
		return err
	}, engines...)
}

// speed returns the rate to compare: the one during the pin, if there is one.
func speed(r *load.Report) float64 {
	if r.During != nil {
		return r.During.JobsPerSecond
	}
	return r.JobsPerSecond
}
