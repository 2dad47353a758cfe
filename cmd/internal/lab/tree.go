package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// TreeSize is the size of scenario tree.
type TreeSize struct {
	Workers  int // default 32
	Parents  int // shared by the workers; default 4
	Children int // per item; default 20
	New      int // of these; the others were written by earlier items; default one in ten
	Seldom   int // only one item in so many has new children; default 1
	Crowd    int // sessions that make MultiXacts, where the machine has so many; default 8 times the workers

	Flows *TreeFlows // builds a tree in Weir's flows, beside the others; nil: it is not measured
}

var treeScenario = &scenario{
	title: "Foreign keys, one row per statement, and hot counters",
	about: "A fleet of workers builds a tree. An item has children under one of a few shared parents, most of which earlier items have already " +
		"written. Each child is upserted in its own transaction, with foreign keys to its parent and its source in the same table, and to the one job, and counted on " +
		"the parent. What is often tried first is measured as well: a pooler, more vacuum, and what a bigger machine would bring. Then one fix after another is added, and after each the lab " +
		"measures what sessions wait for.",
	needs: func(c *Config) needs {
		c.Tree = c.Tree.withDefaults()
		return needs{connections: max(2*c.Tree.Workers, c.Tree.Crowd) + treeFlowsConnections + 10, weir: c.Tree.Flows != nil}
	},
	run:  runTree,
	load: loadTree,
}

func (s TreeSize) withDefaults() TreeSize {
	s.Workers, s.Parents, s.Children = cmp.Or(s.Workers, 32), cmp.Or(s.Parents, 4), cmp.Or(s.Children, 20)
	s.New = cmp.Or(s.New, max(s.Children/10, 1))
	s.Crowd = cmp.Or(s.Crowd, 8*s.Workers)
	return s
}

func (s TreeSize) every() int { return max(s.Seldom, 1) }

// fixes are the fixes of the tree. Each step includes those of the steps before it.
type fixes struct {
	noForeignKeys, remember, onePerItem, coalesce bool
	uncounted                                     bool // for comparison: without counters on the parents
}

// treeStep is one way to build the tree.
type treeStep struct {
	name, what string
	kind       Kind
	fixes      fixes
}

var treeSteps = []treeStep{
	{"as it was", "three foreign keys, two of them to the table itself; one commit per child; counters on the parent", Collapse, fixes{}},
	{"no foreign keys", "the children's foreign keys to parent, source and job are dropped: the transaction that writes a child has just read all three", Fix, fixes{noForeignKeys: true}},
	{"+ keys remembered", "keys already written are remembered in memory, instead of being tried again with ON CONFLICT DO NOTHING", Fix, fixes{noForeignKeys: true, remember: true}},
	{"+ one transaction per item", "all new children of an item in one statement and one commit", Fix, fixes{noForeignKeys: true, remember: true, onePerItem: true}},
	{"+ deltas, coalesced", "increments of a parent's counters are inserted as rows, and one session adds these up five times a " +
		"second", Fix, fixes{noForeignKeys: true, remember: true, onePerItem: true, coalesce: true}},
}

// seldomNew is the share of the story's fleet in its steady state: 1,439 calls for 2.78 rows.
const seldomNew = 1439 / 2.78

func runTree(ctx context.Context, r *run) error {
	size := r.Tree
	r.set("workers", size.Workers)
	r.set("parents", size.Parents)
	r.set("children of an item", size.Children)
	r.set("duration of each step", r.Duration)
	sampler, conn, err := r.watchers(ctx)
	if err != nil {
		return err
	}
	p := &treePlan{run: r, sampler: sampler, dead: deadTuples(conn, "weir_lab")}
	ways := p.ways()
	r.steps = len(ways) + 2 // and the paced ones
	if size.Flows != nil && r.site.weir {
		r.steps++
	}
	err = p.all(ctx, ways, conn)
	r.chartTracks(p.tracks, "Items")
	r.chartGauge(p.tracks, p.dead.name, Chart{Title: "Dead tuples", Note: "as autovacuum leaves them", Y: Axis{Label: "rows"}})
	if err != nil {
		return err
	}
	r.result.Verdict = treeVerdict(r.result)
	return nil
}

// all measures the ways, and what is measured beside them.
func (p *treePlan) all(ctx context.Context, ways []treeWay, conn *pgx.Conn) error {
	for _, w := range ways {
		if err := p.measure(ctx, w); err != nil {
			return err
		}
	}
	if err := p.connections(ctx); err != nil {
		return err
	}
	return p.flows(ctx, conn)
}

// dominantWords describes the dominant class of waits with its share and its largest event.
func dominantWords(w *Way) string {
	words := "none"
	if len(w.Waits) == 0 {
		return "unknown, in so short a time"
	}
	for _, wait := range w.Waits {
		if wait.Class == w.Dominant.Class {
			words = fmt.Sprintf("%s, %.0f%% of the time (%s)", wait.Class, 100*w.Dominant.Share, wait.Event)
			break
		}
	}
	if idle := share(w, idleEvent); idle > 0.25 {
		words += fmt.Sprintf(", in addition to %.0f%% idle in a transaction between statements", 100*idle)
	}
	return words
}

func loadTree(ctx context.Context, s *site, c LoadConfig) error {
	size := TreeSize{Workers: cmp.Or(c.Clients, 24)}.withDefaults()
	tree, err := plantTree(ctx, s, size, fixes{})
	if err != nil {
		return err
	}
	workers, err := openSessions(ctx, s.url, size.Workers, nil)
	if err != nil {
		return err
	}
	defer workers.close()
	c.Ready()
	return tree.grow(ctx, ctx, workers, load.NewTally())
}

// tree is what the fleet builds, and the state of the fleet.
type tree struct {
	TreeSize
	fixes
	site  *site
	items atomic.Int64
	known *keySet

	calls, rows, commits, deadlocks atomic.Int64
	dead                            atomic.Int64 // rows that an update or a delete has left
	multixacts                      int64        // created by the server before the tree
}

// item is one unit of work, with children under one parent.
type item struct {
	parent, source int
	keys           []int64 // sorted, so that workers can't deadlock
}

// next makes the next item. Some of its children are new, a tenth by default; the others belong to earlier items under the same parent, so that each child
// then appears ten times. None of these is being processed at the moment, so that workers do not wait for each other's new keys.
func (t *tree) next(random func(n int64) int64) item {
	n := t.items.Add(1) - 1
	fresh, every := int64(t.New), int64(t.every())
	place := n / int64(t.Parents)    // among the parent's items
	generation := place/every + span // of new children
	isNew := place%every == every-1  // the last item of its generation
	it := item{parent: int(n%int64(t.Parents)) + 1, source: t.Parents + int(random(sources)) + 1}
	seen := make(map[int64]bool, t.Children)
	for i := range int64(t.Children) {
		if i < fresh && isNew {
			seen[generation*fresh+i] = true
		} else {
			seen[(generation-span+random(span-recent))*fresh+random(fresh)] = true
		}
	}
	for key := range seen {
		it.keys = append(it.keys, key)
	}
	return it
}

// An item contains children of the `span` items before it, except the most recent ones.
const span, recent = 200, 100

// grow makes all workers process items until the time is over.
func (t *tree) grow(ctx, until context.Context, workers *sessions, m *load.Tally) error {
	return t.growOn(ctx, func() error {
		return workers.work(ctx, until, m, func(ctx context.Context, conn *pgx.Conn, _ int) error { return t.work(ctx, conn) })
	})
}

// growOn adds up the deltas while work runs, and once more when it has returned, because the last items leave deltas too.
func (t *tree) growOn(ctx context.Context, work func() error) error {
	if !t.coalesce {
		return work()
	}
	folding, stop := context.WithCancel(ctx)
	defer stop()
	folded := make(chan error, 1)
	go func() { folded <- t.fold(ctx, folding) }() // ends with folding; waited for below
	err := work()
	stop()
	return errors.Join(err, <-folded)
}

// check checks that all children are counted, with the fixes too.
func (t *tree) check(ctx context.Context, conn *pgx.Conn) error {
	var children, counted int64
	err := conn.QueryRow(ctx, `SELECT count(*) FILTER (WHERE parent IS NOT NULL), coalesce(sum(children_total), 0)::bigint FROM weir_lab.node`).Scan(&children, &counted)
	if err != nil {
		return err
	}
	if t.uncounted {
		counted += children
	}
	if children != counted {
		return fmt.Errorf("the parents count %d children, but there are %d", counted, children)
	}
	return nil
}

// nextMultiXact returns the number of the server's next MultiXact.
func nextMultiXact(ctx context.Context, conn *pgx.Conn) (next int64, err error) {
	err = conn.QueryRow(ctx, `SELECT mxid_age('1') + 1`).Scan(&next)
	return next, err
}

const deadRows = "dead tuples"

// deadTuples reads the number of dead rows in the tables of schemas from the statistics, which sessions update about once a second.
func deadTuples(conn *pgx.Conn, schemas ...string) gauge {
	return gauge{deadRows, func(ctx context.Context) (dead float64, err error) {
		err = conn.QueryRow(ctx, `SELECT coalesce(sum(n_dead_tup), 0)::float8 FROM pg_stat_all_tables WHERE schemaname = ANY ($1)`, schemas).Scan(&dead)
		return dead, err
	}}
}

// isDeadlock reports whether the server cancelled a transaction because of a deadlock.
func isDeadlock(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "40P01"
}

const foldEvery = 200 * time.Millisecond
