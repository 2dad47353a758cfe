package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// TreeFlows builds trees in Weir's flows. It comes from outside, because a program that uses the library is no part of the lab.
type TreeFlows struct {
	Engine load.Engine // whose clients are load.TreeClients
	// Work is a worker: it reads a load.TreeWork, works until in ends, and writes load.TreeCounts.
	Work func(ctx context.Context, in io.Reader, out, errs io.Writer) error
}

const (
	treeFlowsConnections = load.TreeSpare + 4 // beside those for transactions
	treeFlowsSchema      = "weir_bench"       // the client's tables
	treeFlowsNodes       = 5000               // of one tree: another one begins when it is complete
	treeFlowsWarmUp      = 200
	treeFlowsName        = "Weir's flows"

	namedPerNode = "children named per node"
)

// flows measures the tree in Weir's flows: each node is a job, done once however many name it.
func (p *treePlan) flows(ctx context.Context, conn *pgx.Conn) (err error) {
	f := p.Tree.Flows
	if f == nil || !p.site.weir {
		return nil
	}
	pool, err := pgxpool.New(ctx, p.site.url)
	if err != nil {
		return err
	}
	defer pool.Close()
	made, err := f.Engine.Client(pool)
	if err != nil {
		return err
	}
	client, ok := made.(load.TreeClient)
	if !ok {
		return fmt.Errorf("%s has no trees", f.Engine.Name())
	}
	if own, err := p.site.ownFlows(ctx); err != nil {
		return err
	} else if !own {
		p.note("Weir's flows were not measured: the database has its own schema %s, which the lab does not touch.", treeFlowsSchema)
		return nil
	}
	if err := client.Plant(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Fell(context.WithoutCancel(ctx))) }()
	shape := load.TreeShape{Nodes: treeFlowsNodes, FanOut: p.Tree.Children, Duplicates: 1 - float64(p.Tree.New)/float64(p.Tree.Children)}
	w, err := startTreeWorker(ctx, f, load.TreeWork{URL: p.site.url, Shape: shape, Concurrency: p.Tree.Workers, Connections: p.Tree.Workers, WarmUp: treeFlowsWarmUp})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	for here := 0; here == 0; {
		if here, err = client.Workers(ctx); err != nil {
			return err
		}
		if err := w.failed(); err != nil || here == 0 && !sleep.For(ctx, 20*time.Millisecond) {
			return errors.Join(err, ctx.Err())
		}
	}
	if _, err := client.Root(ctx, true); err != nil {
		return fmt.Errorf("plant a tree: %w", err)
	}
	for w.count().Called == 0 {
		if err := w.failed(); err != nil || !sleep.For(ctx, 20*time.Millisecond) {
			return errors.Join(err, ctx.Err())
		}
	}
	before := w.count()
	t := newTrack(&Way{
		Name: treeFlowsName, Kind: Fix, Unit: "nodes",
		What: fmt.Sprintf("each node is a job of a flow, which writes its row and enqueues the children that it finds in one transaction, each once however many name it; "+
			"the flow counts what has ended. Trees of %d nodes, one after another; the queue is part of the work, which the other variants do without", treeFlowsNodes),
	}, p.Duration)
	err = p.run.measure(ctx, t, p.Duration, p.sampler, []gauge{deadTuples(conn, "weir", treeFlowsSchema)}, func(until context.Context, m *load.Tally) error {
		return w.grow(ctx, until, client, m)
	})
	if err != nil {
		return err
	}
	sum := t.sum()
	sum.Figures = flowsFigures(sum.Rate, before, w.count())
	if y := t.gauges[deadRows]; len(y) > 0 {
		sum.Figures = append(sum.Figures, Figure{"dead tuples at the end", y[len(y)-1], "rows"})
	}
	p.result.Ways = append(p.result.Ways, sum)
	p.chart(Chart{Title: "Nodes in Weir's flows over time", Kind: Lines, X: Axis{Label: "seconds"}, Y: Axis{Label: "nodes per second"}, Lines: []Line{{sum.Name, sum.Kind, t.at, rounded(t.rate)}}})
	p.chartWaits(t, Chart{Title: "What sessions wait for: " + sum.Name})
	return nil
}

// flowsFigures returns what a worker has done between two counts, of which the second was taken after the measured time.
func flowsFigures(nodesPerSec float64, from, to load.TreeCount) []Figure {
	rows, nodes := float64(to.Rows-from.Rows), float64(to.Nodes-from.Nodes)
	return []Figure{
		{rowsPerSec, round(nodesPerSec * ratio(rows, nodes)), "rows/s"},
		{perRow, round(ratio(float64(to.Inserts-from.Inserts), rows)), "statements"},
		{namedPerNode, round(ratio(float64(to.Named-from.Named), nodes)), "names"},
	}
}

// treeWorker is a worker in this process.
type treeWorker struct {
	in     io.Closer
	ended  chan error
	counts chan load.TreeCount // the newest
	last   load.TreeCount
}

func startTreeWorker(ctx context.Context, f *TreeFlows, work load.TreeWork) (*treeWorker, error) {
	in, told := io.Pipe()
	said, out := io.Pipe()
	w := &treeWorker{in: told, ended: make(chan error, 1), counts: make(chan load.TreeCount, 1)}
	go func() { // ends with its input; stop waits for it
		err := f.Work(ctx, in, out, io.Discard)
		_ = out.Close()
		_ = in.CloseWithError(io.ErrClosedPipe)
		w.ended <- err
	}()
	go func() { // ends with the worker's output
		for decoder := json.NewDecoder(said); ; {
			var c load.TreeCount
			if err := decoder.Decode(&c); err != nil {
				close(w.counts)
				return
			}
			select {
			case <-w.counts: // nobody has read the one before
			default:
			}
			w.counts <- c
		}
	}()
	if err := json.NewEncoder(told).Encode(work); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}

// stop ends the worker.
func (w *treeWorker) stop() error {
	_ = w.in.Close() // which it waits for
	return <-w.ended
}

// failed returns an error if the worker has ended by itself.
func (w *treeWorker) failed() error {
	select {
	case err := <-w.ended:
		w.ended <- err // for stop
		return errors.Join(errors.New("the worker has ended too early"), err)
	default:
		return nil
	}
}

// count returns the newest count.
func (w *treeWorker) count() load.TreeCount {
	select {
	case c, ok := <-w.counts:
		if ok {
			w.last = c
		}
	default:
	}
	return w.last
}

// grow builds one tree after another until the time is over.
func (w *treeWorker) grow(ctx, until context.Context, client load.TreeClient, m *load.Tally) error {
	for until.Err() == nil {
		before := w.count()
		if _, err := client.Root(ctx, false); err != nil {
			return fmt.Errorf("plant a tree: %w", err)
		}
		counted := before.Nodes
		for {
			alive := sleep.For(until, load.TreeTellEvery/2)
			c := w.count()
			m.Count(int(c.Nodes - counted))
			counted = c.Nodes
			if !alive || c.Called > before.Called {
				break
			}
			if err := w.failed(); err != nil {
				return err
			}
		}
	}
	return nil
}
