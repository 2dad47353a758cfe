package load

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// TreeShape is the shape of a tree that jobs find while they run. Node n has FanOut children of its own, and names others as well, so that a share of all
// names are duplicates: in turn children of the nodes just before it, which are often found at the same time, and any of the nodes before its own children.
type TreeShape struct {
	Nodes      int     `json:"nodes"`
	FanOut     int     `json:"fan_out"`
	Duplicates float64 `json:"duplicates"` // of what is named; less than 1
}

// Children returns the nodes that a node names.
func (s TreeShape) Children(n int) (all []int) {
	add := func(parent, place int) {
		if child := parent*s.FanOut + 1 + place; parent >= 0 && child < s.Nodes {
			all = append(all, child)
		}
	}
	for place := range s.FanOut {
		add(n, place)
	}
	if len(all) == 0 {
		return nil // a leaf: what others have as children is not known to it
	}
	// The sum over all nodes is exact, though that of a node is a whole number.
	each := float64(s.FanOut) * s.Duplicates / (1 - s.Duplicates)
	for i := range int(each*float64(n+1)) - int(each*float64(n)) {
		if i%2 == 0 {
			add(n-1-i/s.FanOut, i%s.FanOut)
		} else {
			known := rand.New(rand.NewPCG(uint64(n), uint64(i))).IntN(n*s.FanOut + 1) // the same in each attempt
			add((known-1)/s.FanOut, (known-1)%s.FanOut)
		}
	}
	return all
}

const (
	TreeSpare     = 3                      // connections of a worker process beside those for its transactions
	TreeTellEvery = 100 * time.Millisecond // how often it says what it has done
)

// TreeWork is what a worker process of a tree is told.
type TreeWork struct {
	URL         string    `json:"url"`
	Shape       TreeShape `json:"shape"`
	Concurrency int       `json:"concurrency"`
	Connections int       `json:"connections"` // for transactions of handlers, which wait for them
	WarmUp      int       `json:"warm_up"`     // nodes of a tree that is not measured
}

// TreeCount is what a worker process has done since it started.
type TreeCount struct {
	Flat     int64 `json:"flat"`  // jobs whose transactions have committed
	Nodes    int64 `json:"nodes"` // the same
	Inserts  int64 `json:"inserts"`
	Rows     int64 `json:"rows"`      // that these have inserted
	Named    int64 `json:"named"`     // children that were passed to enqueue
	Known    int64 `json:"known"`     // of these, that it found to be there
	Last     int64 `json:"last"`      // commit, in Unix nanoseconds
	Called   int64 `json:"called"`    // callbacks
	CalledAt int64 `json:"called_at"` // when the last one started
	FoldedAt int64 `json:"folded_at"` // when it had counted the children
	CPU      int64 `json:"cpu"`       // nanoseconds
}

// Add adds what another process has done.
func (c *TreeCount) Add(o TreeCount) {
	c.Flat, c.Nodes, c.Inserts, c.Rows, c.Named, c.Known = c.Flat+o.Flat, c.Nodes+o.Nodes, c.Inserts+o.Inserts, c.Rows+o.Rows, c.Named+o.Named, c.Known+o.Known
	c.Last, c.Called, c.CalledAt, c.FoldedAt, c.CPU = max(c.Last, o.Last), c.Called+o.Called, max(c.CalledAt, o.CalledAt), max(c.FoldedAt, o.FoldedAt), c.CPU+o.CPU
}

// TreeClient is a Client whose jobs may build a tree in tables of their own, which other processes do: see TreeWork.
type TreeClient interface {
	// Plant creates the tables, empty; Fell drops them.
	Plant(ctx context.Context) error
	Fell(ctx context.Context) error
	// Workers returns how many workers work the queue.
	Workers(ctx context.Context) (int, error)
	// FillFlat enqueues n jobs, each of which inserts a row, for nobody to start before Release.
	FillFlat(ctx context.Context, n int) error
	Release(ctx context.Context) error
	// Root enqueues the root of a tree, the one to warm up or the one to measure, and returns the tree.
	Root(ctx context.Context, warmUp bool) (tree int64, err error)
	// Grown returns how many nodes a tree has, and how many of them are counted as children.
	Grown(ctx context.Context, tree int64) (nodes, children int64, err error)
	// InsertAlone inserts n rows like those of a tree, one by one, in one transaction.
	InsertAlone(ctx context.Context, n int) error
}

// Tree is what trees of nodes have shown beside as many flat jobs.
type Tree struct {
	TreeShape
	Processes   int      `json:"processes"`
	Concurrency int      `json:"concurrency"` // of each
	Connections int      `json:"connections"` // of each, for transactions
	Rounds      int      `json:"rounds"`
	Flat        *Figures `json:"flat"`
	Grown       *Figures `json:"tree"`
	Ratio       *Spread  `json:"ratio"` // of nodes per second to flat jobs per second
	OwnWAL      float64  `json:"own_insert_wal_bytes_per_node"`
	Inserts     int64    `json:"inserts"` // of the application, of all trees
	Rows        int64    `json:"inserted_rows"`
	Named       int64    `json:"named"`         // children that were passed to enqueue
	Known       int64    `json:"known"`         // of these, that were found to be there
	Dropped     int64    `json:"dropped"`       // and that were set aside when claimed
	Callback    *Spread  `json:"callback_ms"`   // from the last node's commit to the start of the callback
	Counted     *Spread  `json:"counted_ms"`    // from then until all children were counted
	Lab         []Built  `json:"lab,omitempty"` // as the story's fleet built its tree, and with one fix after another
}

// Built is what the lab's fleet has built in a time.
type Built struct {
	What        string  `json:"what"`
	Nodes       int64   `json:"nodes"`
	Seconds     float64 `json:"seconds"`
	PerSecond   float64 `json:"nodes_per_second"`
	CallsPerRow float64 `json:"inserts_per_row"`
	WAL         float64 `json:"wal_bytes_per_node"`
}

func (t *Tree) text(w io.Writer) {
	if t == nil {
		return
	}
	t.Flat.text(w, "flat: ")
	t.Grown.text(w, "tree: ")
	fmt.Fprintf(w, "ratio of nodes/s to flat jobs/s\t%s\tin %s\n", t.Ratio.text("%.2f"), Plural(t.Rounds, "round"))
	fmt.Fprintf(w, "WAL bytes of the node's own insert, of a node's\t%.0f\n", t.OwnWAL)
	fmt.Fprintf(w, "inserts of the application\t%d\tfor %d rows\n", t.Inserts, t.Rows)
	fmt.Fprintf(w, "children named\t%d\t%d of them known when enqueued, %d set aside when claimed\n", t.Named, t.Known, t.Dropped)
	fmt.Fprintf(w, "ms from the last node to the callback\t%s\n", t.Callback.text("%.0f"))
	fmt.Fprintf(w, "ms to count all children\t%s\n", t.Counted.text("%.0f"))
	if len(t.Lab) > 0 {
		fmt.Fprintln(w, "the lab's fleet\tnodes/s\tinserts per row\tWAL bytes per node")
	}
	for _, b := range t.Lab {
		fmt.Fprintf(w, "%s\t%.0f\t%.2f\t%.0f\n", b.What, b.PerSecond, b.CallsPerRow, b.WAL)
	}
}
