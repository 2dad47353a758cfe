package main

import (
	"context"

	"github.com/weir-pg/weir/cmd/internal/bench"
	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
)

type benchChordCmd struct {
	benchFlags
	Members      int `default:"100000" help:"Number of members of a large chord."`
	Rounds       int `default:"5" help:"Number of large chords."`
	SmallMembers int `default:"100" help:"Number of members of a small chord."`
	SmallRounds  int `default:"200" help:"Number of small chords; 0: none."`
}

// Help is shown by weir bench chord --help.
func (benchChordCmd) Help() string {
	return "A chord is a flow of jobs with a callback. Its members are worked while they are enqueued. Shown is how many rows count them, and how soon the callback starts after the commit that ends the last member."
}

func (c *benchChordCmd) Run(ctx context.Context, s *streams, d *database) error {
	switch {
	case c.Members < 1:
		return usagef("--members must be at least 1, got %d", c.Members)
	case c.Rounds < 1:
		return usagef("--rounds must be at least 1, got %d", c.Rounds)
	case c.SmallMembers < 1:
		return usagef("--small-members must be at least 1, got %d", c.SmallMembers)
	case c.SmallRounds < 0:
		return usagef("--small-rounds must be at least 0, got %d", c.SmallRounds)
	}
	return c.run(ctx, s, d, func(db *load.Database) (*load.Report, error) {
		return bench.Chord(ctx, db, engine.Engine{Log: s.err}, bench.ChordConfig{Members: c.Members, Rounds: c.Rounds, SmallMembers: c.SmallMembers, SmallRounds: c.SmallRounds})
	})
}

type benchDAGCmd struct {
	benchFlags
	Tasks  int `default:"10000" help:"Number of tasks of a graph."`
	Layers int `default:"100" help:"Number of layers. Each task comes after two of the layer before."`
	Rounds int `default:"3" help:"Number of graphs; the median is shown."`
}

func (c *benchDAGCmd) Run(ctx context.Context, s *streams, d *database) error {
	switch {
	case c.Tasks < 1 || c.Tasks > 10_000:
		return usagef("--tasks must be 1 to 10000, got %d", c.Tasks)
	case c.Layers < 1 || c.Layers > c.Tasks:
		return usagef("--layers must be 1 to %d, the number of tasks, got %d", c.Tasks, c.Layers)
	case c.Rounds < 1:
		return usagef("--rounds must be at least 1, got %d", c.Rounds)
	}
	return c.run(ctx, s, d, func(db *load.Database) (*load.Report, error) {
		return bench.DAG(ctx, db, engine.Engine{Log: s.err}, bench.DAGConfig{Tasks: c.Tasks, Layers: c.Layers, Rounds: c.Rounds})
	})
}
