package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// DAGConfig configures DAG.
type DAGConfig struct {
	Tasks, Layers, Rounds int
}

// DAG creates graphs of no-op tasks, one after the other: layers, in which each task comes after two of the layer before. One worker in this process
// works them. It measures how long a graph takes, from the commit of its creation, which seals it, to the start of its callback.
func DAG(ctx context.Context, d *load.Database, e load.Engine, c DAGConfig) (*load.Report, error) {
	if c.Layers < 1 || c.Tasks < c.Layers || c.Tasks > 10_000 || c.Rounds < 1 {
		return nil, fmt.Errorf("bench: dag needs a layer, 1 to 10000 tasks, as many as layers, and a round, got %d, %d and %d", c.Layers, c.Tasks, c.Rounds)
	}
	r, err := d.Begin(ctx, "dag", e)
	if err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("graphs of no-op tasks in %d layers, each after two of the layer before, added and sealed in one transaction, worked by one process with concurrency %d", c.Layers, flowConcurrency)
	after := layered(c.Tasks, c.Layers)
	var added, seconds, rates, layers []float64
	var perTask float64
	err = withFlows(ctx, d, e, func(f *flows) error {
		if _, err := f.dag(ctx, layered(2, 2), nil); err != nil { // connects, and plans
			return err
		}
		before, err := d.WAL(ctx)
		if err != nil {
			return err
		}
		for round := range c.Rounds {
			var sealed time.Time
			began := time.Now()
			called, err := f.dag(ctx, after, &sealed)
			if err != nil {
				return err
			}
			took := called.Sub(sealed).Seconds()
			added, seconds = append(added, sealed.Sub(began).Seconds()), append(seconds, took)
			rates, layers = append(rates, float64(c.Tasks)/took), append(layers, 1000*took/float64(c.Layers))
			d.Say("dag, round %d of %d: added in %.2f s, called back after %.2f s: %.0f tasks/s", round+1, c.Rounds, added[round], took, rates[round])
		}
		wal, err := d.WAL(ctx)
		perTask = float64(wal-before) / float64(c.Tasks*c.Rounds)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.DAG = &load.DAG{Tasks: c.Tasks, Layers: c.Layers, Added: load.SpreadOf(added), Seconds: load.SpreadOf(seconds), Rate: load.SpreadOf(rates), Layer: load.SpreadOf(layers), WAL: &perTask}
	return r, noneDead(ctx, d, e, r)
}

// dag creates one graph, and returns when its callback has started. It stores when the graph was sealed.
func (f *flows) dag(ctx context.Context, after [][]int, sealed *time.Time) (called time.Time, err error) {
	_, _, called, err = f.one(ctx, len(after), func(callback int64) (int64, error) {
		flow, err := f.client.DAG(ctx, load.Queue, after, callback)
		if sealed != nil {
			*sealed = time.Now()
		}
		return flow, err
	})
	return called, err
}

// layered returns the places that each task comes after: two of the layer before, or one, if that has only one.
func layered(tasks, layers int) [][]int {
	after := make([][]int, tasks)
	first := func(layer int) int { return layer * tasks / layers }
	for layer := 1; layer < layers; layer++ {
		from, width := first(layer-1), first(layer)-first(layer-1)
		for i := first(layer); i < first(layer+1); i++ {
			place := i - first(layer)
			after[i] = []int{from + place%width}
			if width > 1 {
				after[i] = append(after[i], from+(place+1)%width)
			}
		}
	}
	return after
}
