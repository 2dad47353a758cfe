package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/weir-pg/weir/cmd/internal/lab"
	"github.com/weir-pg/weir/cmd/internal/load"
)

// TreeConfig configures Tree.
type TreeConfig struct {
	load.TreeShape
	Processes   int
	Concurrency int // of each process
	Tx          int // connections of each process for the transactions of its jobs, which wait for them
	Rounds      int
	Lab         time.Duration    // of each step of the lab's tree; 0: it is not built
	Worker      func() *exec.Cmd // starts a worker process, for example a command that calls engine.WorkTree
}

// treeWarmUp is how many flat jobs and nodes are worked before anything is measured: each connection plans its first calls.
const treeWarmUp = 10_000

// treeLarge is how many nodes a tree has at least whose rate says what nodes cost beside flat jobs.
const treeLarge = 50_000

// Connections returns how many connections of the server are needed.
func (c TreeConfig) Connections() int {
	return max(c.Processes*(c.Tx+load.TreeSpare), c.fleet()+5) + 10
}

// Fit says how the bench can do with so many connections; "": it can't.
func (c TreeConfig) Fit(connections int) string {
	for c.Processes--; c.Processes > 0; c.Processes-- {
		if c.Connections() <= connections {
			return fmt.Sprintf("--processes %d", c.Processes)
		}
	}
	return ""
}

func (c TreeConfig) warmUp() int { return min(c.Nodes, treeWarmUp) }

// fleet is the number of the lab's workers: as many as there may be transactions.
func (c TreeConfig) fleet() int { return c.Processes * c.Tx }

// Tree lets worker processes build a tree in tables of their own, whose nodes are jobs that others find while they run; and in turn as many flat jobs, enqueued
// before, that each insert one such row. Then the lab's fleet builds its tree on the same server.
func Tree(ctx context.Context, d *load.Database, e load.Engine, c TreeConfig) (r *load.Report, err error) {
	if c.Nodes < 1 || c.FanOut < 1 || !(c.Duplicates >= 0 && c.Duplicates <= 0.9) || c.Processes < 1 || c.Concurrency < 1 || c.Tx < 1 || c.Rounds < 1 {
		return nil, fmt.Errorf("bench: tree needs a node, a child, 0 to 0.9 duplicates, a process, a handler and a round, got %+v", c)
	}
	if r, err = d.Begin(ctx, "tree", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d processes run %d jobs each, over %d connections: a tree of %d nodes with %d children each, %.0f%% of whose names are duplicates, and as many flat jobs, each in one transaction with one row of its own; %s",
		c.Processes, c.Concurrency, c.Tx, c.Nodes, c.FanOut, 100*c.Duplicates, load.Plural(c.Rounds, "round"))
	if c.Nodes < treeLarge {
		r.Note += fmt.Sprintf("; the ratio has no target, because trees of fewer than %d nodes do not say: how they begin and end weighs too much", treeLarge)
	}
	pool, client, err := d.Client(ctx, e, 2)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	able, ok := client.(load.TreeClient)
	if !ok {
		return nil, fmt.Errorf("bench: %s has no trees", e.Name())
	}
	if err := able.Plant(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, able.Fell(context.WithoutCancel(ctx))) }()
	t := &trees{TreeConfig: c, db: d, client: able, report: &load.Tree{TreeShape: c.TreeShape, Processes: c.Processes, Concurrency: c.Concurrency, Connections: c.Tx, Rounds: c.Rounds}}
	r.Tree = t.report
	if err := t.grow(ctx); err != nil {
		return nil, err
	}
	if err := t.alone(ctx); err != nil {
		return nil, err
	}
	if c.Lab > 0 {
		size := lab.TreeSize{Workers: c.fleet(), Children: 20}
		size.New = max(int(20*(1-c.Duplicates)), 1)
		if t.report.Lab, err = lab.Build(ctx, d.URL, size, c.Lab, d.Say); err != nil {
			return nil, err
		}
	}
	t.sum()
	if c.Nodes >= treeLarge {
		r.AtLeast("ratio of nodes/s to flat jobs/s", t.report.Ratio.Median, 0.8)
	}
	r.AtMost("WAL bytes per node", *t.report.Grown.WALBytesPerJob, 600)
	r.AtMost("inserts of the application for each row", float64(t.report.Inserts)/float64(t.report.Rows), 1.05)
	return r, noneDead(ctx, d, e, r)
}

// trees is a run of Tree.
type trees struct {
	TreeConfig
	db      *load.Database
	client  load.TreeClient
	workers *treeWorkers
	report  *load.Tree

	warm                  bool // what follows is measured
	flat, grown           treeSide
	ratios, back, counted []float64
}

// treeSide is what all rounds of one kind have shown.
type treeSide struct{ rates, seconds, wal, server, worker []float64 }

// grow starts the processes, warms them up, and makes all rounds.
func (t *trees) grow(ctx context.Context) (err error) {
	t.db.Say("starting %d worker processes", t.Processes)
	t.workers, err = startTreeWorkers(ctx, t.db, t.client, t.Processes, t.Worker, load.TreeWork{URL: t.db.URL, Shape: t.TreeShape, Concurrency: t.Concurrency, Connections: t.Tx, WarmUp: t.warmUp()})
	defer func() { err = errors.Join(err, t.workers.stop()) }()
	if err != nil {
		return err
	}
	sides := []func(context.Context, int) error{t.roundFlat, t.roundTree}
	t.db.Say("warming up")
	for _, side := range sides {
		if err := side(ctx, t.warmUp()); err != nil {
			return err
		}
	}
	t.warm, t.flat, t.grown, t.back, t.counted = true, treeSide{}, treeSide{}, nil, nil
	t.report.Inserts, t.report.Rows, t.report.Named, t.report.Known = 0, 0, 0, 0
	for round := range t.Rounds {
		for _, side := range sides {
			if err := side(ctx, t.Nodes); err != nil {
				return err
			}
		}
		slices.Reverse(sides)
		ratio := t.grown.rates[round] / t.flat.rates[round]
		t.ratios = append(t.ratios, ratio)
		t.db.Say("tree, round %d of %d: %.0f nodes/s, flat: %.0f jobs/s, ratio %.2f", round+1, t.Rounds, t.grown.rates[round], t.flat.rates[round], ratio)
	}
	t.report.Dropped = t.report.Named - t.report.Known - int64(t.Rounds)*int64(t.Nodes-1)
	return nil
}

// measure measures what n jobs take, from before they are enqueued until work returns, and their rate from the moment that it passes to began.
func (t *trees) measure(ctx context.Context, side *treeSide, n int, work func(began func()) error) error {
	wal, err := t.db.WAL(ctx)
	if err != nil {
		return err
	}
	var at time.Time
	var server time.Duration
	var known bool
	before := t.workers.count()
	if err := work(func() {
		server, known = t.db.ServerCPU()
		at = time.Now()
	}); err != nil {
		return err
	}
	count := t.workers.count()
	took := time.Unix(0, count.Last).Sub(at).Seconds()
	side.rates, side.seconds = append(side.rates, float64(n)/took), append(side.seconds, took)
	if after, ok := t.db.ServerCPU(); ok && known {
		side.server = append(side.server, float64((after-server).Microseconds())/float64(n))
	}
	side.worker = append(side.worker, float64(count.CPU-before.CPU)/1000/float64(n))
	after, err := t.db.WAL(ctx)
	side.wal = append(side.wal, float64(after-wal)/float64(n))
	return err
}

func (t *trees) roundFlat(ctx context.Context, n int) error {
	return t.measure(ctx, &t.flat, n, func(began func()) error {
		goal := t.workers.count().Flat + int64(n)
		if err := t.client.FillFlat(ctx, n); err != nil {
			return fmt.Errorf("bench: fill: %w", err)
		}
		began()
		if err := t.client.Release(ctx); err != nil {
			return err
		}
		done := func(c load.TreeCount) int64 { return c.Flat - goal + int64(n) }
		return t.workers.until(ctx, "flat jobs", n, done, func(c load.TreeCount) bool { return c.Flat >= goal })
	})
}

func (t *trees) roundTree(ctx context.Context, n int) error {
	return t.measure(ctx, &t.grown, n, func(began func()) error {
		before := t.workers.count()
		began()
		tree, err := t.client.Root(ctx, !t.warm)
		if err != nil {
			return fmt.Errorf("bench: plant a tree: %w", err)
		}
		done := func(c load.TreeCount) int64 { return c.Nodes - before.Nodes }
		if err := t.workers.until(ctx, "nodes", n, done, func(c load.TreeCount) bool { return c.Called > before.Called && done(c) >= int64(n) }); err != nil {
			return err
		}
		count := t.workers.count()
		t.report.Inserts, t.report.Rows = t.report.Inserts+count.Inserts-before.Inserts, t.report.Rows+count.Rows-before.Rows
		t.report.Named, t.report.Known = t.report.Named+count.Named-before.Named, t.report.Known+count.Known-before.Known
		t.back = append(t.back, float64(count.CalledAt-count.Last)/1e6)
		t.counted = append(t.counted, float64(count.FoldedAt-count.CalledAt)/1e6)
		nodes, children, err := t.client.Grown(ctx, tree)
		if err == nil && (nodes != int64(n) || children != int64(n-1)) {
			err = fmt.Errorf("bench: the tree has %d nodes and counts %d children, want %d and one less", nodes, children, n)
		}
		return err
	})
}

// alone measures what the rows of a tree write by themselves.
func (t *trees) alone(ctx context.Context) error {
	n := min(t.Nodes, 100_000)
	before, err := t.db.WAL(ctx)
	if err != nil {
		return err
	}
	if err := t.client.InsertAlone(ctx, n); err != nil {
		return fmt.Errorf("bench: insert: %w", err)
	}
	after, err := t.db.WAL(ctx)
	t.report.OwnWAL = float64(after-before) / float64(n)
	return err
}

// sum summarizes the rounds.
func (t *trees) sum() {
	t.report.Flat, t.report.Grown = t.flat.figures(t.Nodes), t.grown.figures(t.Nodes)
	t.report.Ratio, t.report.Callback, t.report.Counted = load.SpreadOf(t.ratios), load.SpreadOf(t.back), load.SpreadOf(t.counted)
}

func (s *treeSide) figures(n int) *load.Figures {
	f := &load.Figures{Jobs: int64(n), Rate: load.SpreadOf(s.rates), Seconds: load.SpreadOf(s.seconds).Median, WALBytesPerJob: &load.SpreadOf(s.wal).Median, WorkerCPUPerJob: &load.SpreadOf(s.worker).Median}
	f.JobsPerSecond = f.Rate.Median
	if server := load.SpreadOf(s.server); server != nil {
		f.ServerCPUPerJob = &server.Median
	}
	return f
}
