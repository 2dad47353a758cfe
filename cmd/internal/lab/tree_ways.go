package lab

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/bouncer"
	"github.com/weir-pg/weir/internal/sleep"
)

const (
	crowdWay = "foreign keys alone, many sessions"
	halfWay  = "as it was, half the cores"

	seldomBefore = "keys asked for again, hardly any new"
	seldomAfter  = "keys remembered, hardly any new"

	perRow      = "statements per row written"
	rowsPerSec  = "rows written per second"
	deadPerItem = "rows left dead per item"
	moreCores   = "cores of the machine to those of the server"
)

// treeWay is a step, under conditions of its own.
type treeWay struct {
	treeStep
	size   TreeSize
	pool   int  // sessions of PgBouncer, through which the workers go; 0: they have sessions of their own
	vacuum bool // the tables are vacuumed without pause
	half   bool // the server has half of the cores
}

// treePlan measures the ways of a run.
type treePlan struct {
	*run
	sampler *activity
	dead    gauge
	tracks  []*track
}

// ways returns what is measured, in order: the collapse, what does not cure it, and the cures.
func (p *treePlan) ways() []treeWay {
	size := p.Tree
	was := treeSteps[0]
	ways := []treeWay{{treeStep: was, size: size}}
	add := func(kind Kind, name, what string, with func(w *treeWay)) {
		w := treeWay{treeStep: treeStep{name: name, what: what, kind: kind, fixes: was.fixes}, size: size}
		with(&w)
		ways = append(ways, w)
	}
	if size.Crowd > size.Workers {
		add(Collapse, crowdWay, fmt.Sprintf("%d workers, and no counters, which would serialize them: what is left of the parents are the locks of their children's foreign keys, and the MultiXacts that these make", size.Crowd),
			func(w *treeWay) { w.size.Workers, w.fixes.uncounted = size.Crowd, true })
	}
	if _, err := bouncer.Find(); err != nil {
		p.note("A pooler was not measured: PgBouncer is not installed.")
	} else {
		pool := max(size.Workers/4, 1)
		add(Symptom, "as it was, a pooler", fmt.Sprintf("the workers go through PgBouncer, which has %d sessions, and so can't prepare their statements", pool), func(w *treeWay) { w.pool = pool })
	}
	add(Symptom, "as it was, more vacuum", "the tables are vacuumed without pause", func(w *treeWay) { w.vacuum = true })
	switch {
	case runtime.NumCPU() < 2:
		p.note("What a bigger machine would bring was not measured: this one has a single core.")
	case p.site.server == nil || !canConfine:
		p.note("What a bigger machine would bring was not measured: only a private server on Linux can be confined to some of the cores.")
	default:
		add(Symptom, halfWay, fmt.Sprintf("the server may use %d of the %d cores: what the others bring is how much faster the first variant is", runtime.NumCPU()/2, runtime.NumCPU()), func(w *treeWay) { w.half = true })
	}
	for _, step := range treeSteps[1:] {
		ways = append(ways, treeWay{treeStep: step, size: size})
	}
	seldom := size
	seldom.Seldom = max(int(seldomNew*float64(size.New)/float64(size.Children)), 1)
	for _, f := range []struct {
		name, what string
		kind       Kind
		fixes      fixes
	}{
		{seldomBefore, "no foreign keys, and one item in %d has new children, as in the steady state of the story's fleet: each of the others is found to be there by an insert", Collapse, fixes{noForeignKeys: true}},
		{seldomAfter, "the same (one item in %d), with the set of keys already written, which was filled when they were written", Fix, fixes{noForeignKeys: true, remember: true}},
	} {
		ways = append(ways, treeWay{treeStep: treeStep{f.name, fmt.Sprintf(f.what, seldom.Seldom), f.kind, f.fixes}, size: seldom})
	}
	return ways
}

// measure measures one way.
func (p *treePlan) measure(ctx context.Context, w treeWay) (err error) {
	t := newTrack(&Way{Name: w.name, Kind: w.kind, What: w.what, Unit: "items"}, p.Duration)
	if w.size.Workers != p.Tree.Workers {
		t.way.Settings = []Setting{{"workers", fmt.Sprint(w.size.Workers)}}
	}
	tree, err := plantTree(ctx, p.site, w.size, w.fixes)
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	if w.half {
		var undo func() error
		if undo, err = confine(p.site.server.PID(), runtime.NumCPU()/2); err != nil {
			p.note("What a bigger machine would bring was not measured: %v.", err)
			p.steps--
			return nil
		}
		defer func() { err = errors.Join(err, undo()) }()
	}
	workers, closeAll, err := p.workers(ctx, w)
	switch {
	case err == nil:
		defer closeAll()
	case w.pool > 0 && ctx.Err() == nil: // it may not reach a server that this process does, for example by a socket or with TLS
		p.note("A pooler was not measured: %v.", err)
		p.steps--
		return nil
	default:
		return fmt.Errorf("%s: %w", w.name, err)
	}
	err = p.run.measure(ctx, t, p.Duration, p.sampler, []gauge{p.dead}, func(until context.Context, m *load.Tally) error {
		if !w.vacuum {
			return tree.grow(ctx, until, workers, m)
		}
		var vacuuming sync.WaitGroup
		var failed error
		vacuuming.Go(func() { failed = vacuumTree(ctx, p.site, until) })
		err := tree.grow(ctx, until, workers, m)
		vacuuming.Wait()
		return errors.Join(err, failed)
	})
	if err != nil {
		return err
	}
	if err := tree.check(ctx, p.site.guard); err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	sum := t.sum()
	multixacts, err := nextMultiXact(ctx, p.site.guard)
	if err != nil {
		return err
	}
	sum.Figures = tree.figures(sum, multixacts)
	if y := t.gauges[p.dead.name]; len(y) > 0 {
		sum.Figures = append(sum.Figures, Figure{"dead tuples at the end", y[len(y)-1], "rows"})
	}
	if w.half {
		sum.Figures = append(sum.Figures, Figure{moreCores, round(float64(runtime.NumCPU()) / float64(runtime.NumCPU()/2)), "times"})
	}
	p.result.Ways = append(p.result.Ways, sum)
	p.tracks = append(p.tracks, t)
	return nil
}

// figures returns the work of the database per item.
func (t *tree) figures(w *Way, multixacts int64) []Figure {
	per := func(n int64) float64 { return round(ratio(float64(n), float64(w.Done))) }
	figures := []Figure{
		{rowsPerSec, round(ratio(float64(t.rows.Load()), w.Seconds)), "rows/s"},
		{"commits per item", per(t.commits.Load()), "commits"},
		{"MultiXacts per item", per(multixacts - t.multixacts), "MultiXacts"},
		{deadPerItem, per(t.dead.Load()), "rows"},
		{"deadlocks", float64(t.deadlocks.Load()), "transactions"},
	}
	if rows := t.rows.Load(); rows > 0 { // otherwise any number of statements wrote none
		figures = slices.Insert(figures, 1, Figure{perRow, round(ratio(float64(t.calls.Load()), float64(rows))), "statements"})
	}
	return figures
}

// workers opens the sessions of the workers.
func (p *treePlan) workers(ctx context.Context, w treeWay) (workers *sessions, closeAll func(), err error) {
	url, stop := p.site.url, func() {}
	if w.pool > 0 {
		b, err := bouncer.Start(ctx, bouncer.Config{Target: url, Sessions: w.pool, Clients: w.size.Workers + 10})
		if err != nil {
			return nil, nil, err
		}
		stop = b.Stop
		url = b.URL() + "&default_query_exec_mode=exec" // its sessions are shared, so nothing may be prepared in them
	}
	if workers, err = openSessions(ctx, url, w.size.Workers, nil); err != nil {
		stop()
		return nil, nil, err
	}
	return workers, func() { workers.close(); stop() }, nil
}

// vacuumTree vacuums without pause.
func vacuumTree(ctx context.Context, s *site, until context.Context) error {
	conn, err := connect(ctx, s.url, watcherName, nil)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	for sleep.For(until, 10*time.Millisecond) {
		if _, err := conn.Exec(ctx, `VACUUM weir_lab.node`); err != nil {
			return fmt.Errorf("vacuum: %w", err)
		}
	}
	return nil
}

// pacedShare is the share of the first way's rate at which items arrive while connections are counted: more would be a queue that grows.
const pacedShare = 0.6

// connections counts, at the same rate of items, how many connections the fleet has in use at a time before all fixes and after.
func (p *treePlan) connections(ctx context.Context) error {
	rate := pacedShare * p.result.Way(treeSteps[0].name).Rate
	if rate <= 0 {
		return nil
	}
	const inUse = "connections in use"
	var tracks []*track
	for _, step := range []treeStep{treeSteps[0], treeSteps[len(treeSteps)-1]} {
		tree, err := plantTree(ctx, p.site, p.Tree, step.fixes)
		if err != nil {
			return err
		}
		workers, err := openSessions(ctx, p.site.url, p.Tree.Workers, nil)
		if err != nil {
			return err
		}
		d := p.Duration / 2
		t := newTrack(&Way{Name: step.name, Kind: step.kind, Unit: "items"}, d)
		var busy, most atomic.Int64
		err = p.run.measure(ctx, t, d, nil, []gauge{{inUse, func(context.Context) (float64, error) { return float64(busy.Load()), nil }}}, func(until context.Context, m *load.Tally) error {
			items := &arrivals{pace: pace{{d, rate}}, begun: time.Now()}
			return tree.growOn(ctx, func() error {
				return workers.each(ctx, until, func(until context.Context, conn *pgx.Conn, _ int) error {
					for {
						_, at, ok := items.next(until)
						if !ok {
							return nil
						}
						if n := busy.Add(1); n > most.Load() {
							most.Store(n)
						}
						err := tree.work(ctx, conn)
						busy.Add(-1)
						if err != nil {
							return err
						}
						m.Did(1, time.Since(at))
					}
				})
			})
		})
		workers.close()
		if err != nil {
			return err
		}
		w := p.result.Way(step.name)
		at := fmt.Sprintf(" at %s items/s", Number(rate))
		w.Figures = append(w.Figures, Figure{inUse + at + ", mean", round(meanOf(t.gauges[inUse])), "connections"}, Figure{inUse + at + ", at most", float64(most.Load()), "connections"})
		tracks = append(tracks, t)
	}
	p.chartGauge(tracks, inUse, Chart{Title: "Connections in use", Note: fmt.Sprintf("%s items arrive per second, before the fixes and with all of them", Number(rate)), Y: Axis{Label: "connections"}})
	return nil
}
