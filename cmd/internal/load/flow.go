package load

import (
	"context"
	"fmt"
	"io"
)

// FlowClient is a Client with flows: sets of jobs that call back when all of them have completed. A callback is a job with the number that was passed.
type FlowClient interface {
	Client
	// Chord creates a flow of n jobs with number 0, in several transactions, of which the last one seals it.
	Chord(ctx context.Context, queue string, n int, callback int64) (flow int64, err error)
	// DAG creates a flow of tasks with number 0, in one transaction. Task i comes after those of after[i], by their places.
	DAG(ctx context.Context, queue string, after [][]int, callback int64) (flow int64, err error)
	// Arrivals returns how many rows were written to count a flow.
	Arrivals(ctx context.Context, flow int64) (rows int64, err error)
}

// Chord is what chords of one size have shown.
type Chord struct {
	Members  int      `json:"members"`
	Rounds   int      `json:"rounds"`
	Arrivals *Spread  `json:"arrival_rows"` // of a chord
	Callback *Times   `json:"callback_ms"`  // from the commit that ends the last member to the start of the callback
	Seconds  *Spread  `json:"seconds"`      // from the first member's enqueueing to the start of the callback
	Rate     *Spread  `json:"members_per_second"`
	WAL      *float64 `json:"wal_bytes_per_member"`
}

// DAG is what directed acyclic graphs of tasks have shown.
type DAG struct {
	Tasks   int      `json:"tasks"`
	Layers  int      `json:"layers"`
	Added   *Spread  `json:"seconds_to_add"`
	Seconds *Spread  `json:"seconds"` // from the commit that adds and seals them to the start of the callback
	Rate    *Spread  `json:"tasks_per_second"`
	Layer   *Spread  `json:"layer_ms"` // Seconds for each layer
	WAL     *float64 `json:"wal_bytes_per_task"`
}

func chordsText(w io.Writer, chords []Chord) {
	if len(chords) == 0 {
		return
	}
	fmt.Fprintln(w, "members\tchords\tarrival rows\tms to the callback: p50\tp99\tmax\tmembers/s\tWAL bytes a member")
	for _, c := range chords {
		fmt.Fprintf(w, "%d\t%d\t%s\t%.1f\t%.1f\t%.1f\t%s\t%.0f\n", c.Members, c.Rounds, c.Arrivals.text("%.0f"), c.Callback.P50, c.Callback.P99, c.Callback.Max, c.Rate.text("%.0f"), *c.WAL)
	}
}

func (g *DAG) text(w io.Writer) {
	if g == nil {
		return
	}
	fmt.Fprintf(w, "tasks\t%d\tin %s\n", g.Tasks, Plural(g.Layers, "layer"))
	fmt.Fprintf(w, "seconds to add them\t%s\n", g.Added.text("%.2f"))
	fmt.Fprintf(w, "seconds from the seal to the callback\t%s\n", g.Seconds.text("%.2f"))
	fmt.Fprintf(w, "ms for each layer\t%s\n", g.Layer.text("%.1f"))
	fmt.Fprintf(w, "tasks per second\t%s\n", g.Rate.text("%.0f"))
	fmt.Fprintf(w, "WAL bytes per task\t%.0f\n", *g.WAL)
}
