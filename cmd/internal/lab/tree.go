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
}

var treeScenario = &scenario{
	title: "Foreign keys, one row per statement, and hot counters",
	about: "A fleet of workers builds a tree. An item has children under one of a few shared parents, most of which earlier items have already " +
		"written. Each child is upserted in its own transaction, with foreign keys to its parent, its source and the one job, and counted on " +
		"the parent. Then one fix after another is added, and after each the lab measures what sessions wait for.",
	needs: func(c *Config) needs {
		c.Tree = c.Tree.withDefaults()
		return needs{connections: c.Tree.Workers + 10}
	},
	run:  runTree,
	load: loadTree,
}

func (s TreeSize) withDefaults() TreeSize {
	s.Workers, s.Parents, s.Children = cmp.Or(s.Workers, 32), cmp.Or(s.Parents, 4), cmp.Or(s.Children, 20)
	s.New = cmp.Or(s.New, max(s.Children/10, 1))
	return s
}

// fixes are the fixes of the tree. Each step includes those of the steps before it.
type fixes struct {
	noForeignKeys, remember, onePerItem, coalesce bool
}

var treeSteps = []struct {
	name, what string
	kind       Kind
	fixes      fixes
}{
	{"as it was", "three foreign keys, one commit per child, counters on the parent", Collapse, fixes{}},
	{"no foreign keys", "the children's foreign keys to parent, source and job are dropped: the transaction that writes a child has just read all three", Fix, fixes{noForeignKeys: true}},
	{"+ keys remembered", "keys already written are remembered in memory, instead of being tried again with ON CONFLICT DO NOTHING", Fix, fixes{noForeignKeys: true, remember: true}},
	{"+ one transaction per item", "all new children of an item in one statement and one commit", Fix, fixes{noForeignKeys: true, remember: true, onePerItem: true}},
	{"+ deltas, coalesced", "increments of a parent's counters are inserted as rows, and one session adds these up five times a " +
		"second", Fix, fixes{true, true, true, true}},
}

func runTree(ctx context.Context, r *run) error {
	size := r.Tree
	r.set("workers", size.Workers)
	r.set("parents", size.Parents)
	r.set("children of an item", size.Children)
	r.set("duration of each step", r.Duration)
	workers, err := openSessions(ctx, r.site.url, size.Workers, nil)
	if err != nil {
		return err
	}
	defer workers.close()
	sampler, conn, err := r.watchers(ctx)
	if err != nil {
		return err
	}
	dead := deadTuples(conn, "weir_lab")
	r.steps = len(treeSteps)
	var tracks []*track
	for _, step := range treeSteps {
		t := newTrack(&Way{Name: step.name, Kind: step.kind, What: step.what, Unit: "items"}, r.Duration)
		tree, err := plantTree(ctx, r.site, size, step.fixes)
		if err != nil {
			return err
		}
		err = r.measure(ctx, t, r.Duration, sampler, []gauge{dead}, func(until context.Context, m *load.Tally) error {
			return tree.grow(ctx, until, workers, m)
		})
		if err != nil {
			return err
		}
		if err := tree.check(ctx, r.site.guard); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		w := t.sum()
		multixacts, err := nextMultiXact(ctx, r.site.guard)
		if err != nil {
			return err
		}
		w.Figures = tree.figures(w, multixacts)
		if y := t.gauges[dead.name]; len(y) > 0 {
			w.Figures = append(w.Figures, Figure{"dead tuples at the end", y[len(y)-1], "rows"})
		}
		r.result.Ways = append(r.result.Ways, w)
		tracks = append(tracks, t)
	}
	r.chartTracks(tracks, "Items")
	r.chartGauge(tracks, dead.name, Chart{Title: "Dead tuples", Y: Axis{Label: "rows"}})
	r.result.Verdict = treeVerdict(r.result)
	return nil
}

func treeVerdict(r *Result) Verdict {
	first, last := r.Ways[0], r.Ways[len(r.Ways)-1]
	times := ratio(last.Rate, first.Rate)
	what := fmt.Sprintf("as it was, the fleet processes %s items per second, and %s with all fixes: %s times more", Number(first.Rate), Number(last.Rate), Number(times))
	var steps []string
	for _, w := range r.Ways {
		steps = append(steps, fmt.Sprintf("%s: %s items per second. Dominant wait: %s.", capital(w.Name), Number(w.Rate), dominantWords(w)))
	}
	return verdict(times, what, steps)
}

// dominantWords describes the dominant class of waits with its share and its largest event.
func dominantWords(w *Way) string {
	words := "none"
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
	multixacts                      int64 // created by the server before the tree
}

// figures returns the work of the database per item.
func (t *tree) figures(w *Way, multixacts int64) []Figure {
	per := func(n int64) float64 { return round(ratio(float64(n), float64(w.Done))) }
	return []Figure{
		{"statements per row written", round(ratio(float64(t.calls.Load()), float64(t.rows.Load()))), "statements"},
		{"commits per item", per(t.commits.Load()), "commits"},
		{"MultiXacts per item", per(multixacts - t.multixacts), "MultiXacts"},
		{"deadlocks", float64(t.deadlocks.Load()), "transactions"},
	}
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
	fresh := int64(t.New)
	place := n/int64(t.Parents) + span // position among the parent's items
	it := item{parent: int(n%int64(t.Parents)) + 1, source: int(random(sources)) + 1}
	seen := make(map[int64]bool, t.Children)
	for i := range int64(t.Children) {
		if i < fresh {
			seen[place*fresh+i] = true
		} else {
			seen[(place-span+random(span-recent))*fresh+random(fresh)] = true
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
	folded := make(chan error, 1)
	folding, stop := context.WithCancel(ctx) // not until, because the last items leave deltas too
	defer stop()
	if t.coalesce {
		go func() { folded <- t.fold(ctx, folding) }() // ends with folding; waited for below
	} else {
		folded <- nil
	}
	err := workers.work(ctx, until, m, func(ctx context.Context, conn *pgx.Conn, i int) error {
		return t.work(ctx, conn)
	})
	stop()
	return errors.Join(err, <-folded)
}

// check checks that all children are counted, with the fixes too.
func (t *tree) check(ctx context.Context, conn *pgx.Conn) error {
	var children, counted int64
	err := conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM weir_lab.child), (SELECT sum(children_total)::bigint FROM weir_lab.parent)`).Scan(&children, &counted)
	if err != nil {
		return err
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

// deadTuples reads the number of dead rows in a schema's tables from the statistics, which sessions update about once a second.
func deadTuples(conn *pgx.Conn, schema string) gauge {
	return gauge{deadRows, func(ctx context.Context) (dead float64, err error) {
		err = conn.QueryRow(ctx, `SELECT coalesce(sum(n_dead_tup), 0)::float8 FROM pg_stat_all_tables WHERE schemaname = $1`, schema).Scan(&dead)
		return dead, err
	}}
}

// isDeadlock reports whether the server cancelled a transaction because of a deadlock.
func isDeadlock(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "40P01"
}

const foldEvery = 200 * time.Millisecond
