package main

import (
	"context"
	"os"
	"os/exec"
	"time"

	"github.com/weir-pg/weir/cmd/internal/bench"
	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
)

type benchTreeCmd struct {
	benchFlags
	Nodes       int           `default:"1000000" help:"Number of nodes of the tree, and of flat jobs beside it."`
	Processes   int           `default:"20" help:"Number of worker processes."`
	Concurrency int           `default:"50" help:"Number of jobs that each process runs at a time. With more, each claim gets more."`
	Connections int           `default:"4" help:"Number of connections of each process for the transactions of its jobs, which wait for them. It has three others."`
	Duplicates  float64       `default:"0.3" help:"Share of the names of children that other nodes name as well."`
	FanOut      int           `default:"10" help:"Number of children that a node has."`
	Rounds      int           `default:"1" help:"Number of rounds, each of a tree and flat jobs; the median of their ratios is shown."`
	LabTime     time.Duration `default:"10s" help:"How long the lab's fleet builds its tree with each of its fixes."`
	NoLab       bool          `help:"Leave the lab's fleet out."`
}

// Help is shown by weir bench tree --help.
func (benchTreeCmd) Help() string {
	return "Each job writes a row into a table of the application, and completes in the same transaction, in which it also enqueues the children of its node, once each. " +
		"Flat jobs write the same row, and were enqueued before. Beside both, the fleet of weir lab tree builds its tree as it was and with its fixes, without any queue."
}

func (c *benchTreeCmd) Run(ctx context.Context, s *streams, d *database) error {
	switch {
	case c.Nodes < 1:
		return usagef("--nodes must be at least 1, got %d", c.Nodes)
	case c.Processes < 1 || c.Processes > 1000:
		return usagef("--processes must be 1 to 1000, got %d", c.Processes)
	case c.Concurrency < 1 || c.Concurrency > 1000:
		return usagef("--concurrency must be 1 to 1000, got %d", c.Concurrency)
	case c.Connections < 1 || c.Connections > 1000:
		return usagef("--connections must be 1 to 1000, got %d", c.Connections)
	case !(c.Duplicates >= 0 && c.Duplicates <= 0.9):
		return usagef("--duplicates must be 0 to 0.9, got %v", c.Duplicates)
	case c.FanOut < 1 || c.FanOut > 1000:
		return usagef("--fan-out must be 1 to 1000, got %d", c.FanOut)
	case c.Rounds < 1:
		return usagef("--rounds must be at least 1, got %d", c.Rounds)
	case c.LabTime <= 0:
		return usagef("--lab-time must be more than 0, got %v", c.LabTime)
	}
	if c.NoLab {
		c.LabTime = 0
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config := bench.TreeConfig{
		TreeShape: load.TreeShape{Nodes: c.Nodes, FanOut: c.FanOut, Duplicates: c.Duplicates},
		Processes: c.Processes, Concurrency: c.Concurrency, Tx: c.Connections, Rounds: c.Rounds, Lab: c.LabTime,
		Worker: func() *exec.Cmd {
			cmd := exec.CommandContext(ctx, self, "bench", "tree-worker")
			cmd.Args[0] = "weir" // also where this is a test's binary
			return cmd
		},
	}
	c.connections, c.fit = config.Connections(), config.Fit
	return c.run(ctx, s, d, func(db *load.Database) (*load.Report, error) {
		return bench.Tree(ctx, db, engine.Engine{Log: s.err}, config)
	})
}

// benchTreeWorkerCmd is a worker process of weir bench tree.
type benchTreeWorkerCmd struct{}

func (benchTreeWorkerCmd) Run(ctx context.Context, s *streams) error {
	return engine.WorkTree(ctx, s.in, s.out, s.err)
}
