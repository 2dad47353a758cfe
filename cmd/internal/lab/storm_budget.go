package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// budgetWay measures servers whose postmasters have a small share of a core each. A small machine has too few cores to bring a postmaster to the
// limit of one. With a budget that is small enough, its limit is reached while the machine has time left, as on a large machine.
type budgetWay struct {
	name, what string
	kind       Kind
	servers    []*site
	queries    *sessions // that run at the same time; nil: none
}

// MostServers bounds the private servers of a storm.
const MostServers = 64

const budgetUsed = "used of their budgets"

// budgetOf chooses the share of a core from what a sweep has shown: so many postmasters together should serve six tenths of what the machine can.
func budgetOf(all []sweep, postmasters int) float64 {
	var most float64
	var ran time.Duration
	var answered int64
	for _, s := range all {
		most = max(most, s.way.Rate)
		ran += s.ran
		answered += s.way.Done
	}
	if answered == 0 || ran == 0 {
		return 0
	}
	return min(max(0.6/float64(postmasters)*most*ran.Seconds()/float64(answered), 0.004), 0.3)
}

// runBudgets measures the ways.
func runBudgets(ctx context.Context, r *run, share float64, ways []budgetWay) error {
	clients := min(max(r.Storm.Clients/10, 10), 100) // of each server
	setting := Setting{"CPU budget of each postmaster", fmt.Sprintf("%s%% of a core", Number(100*share))}
	for _, w := range ways {
		way := &Way{Name: budgetName(w.name), Kind: w.kind, What: fmt.Sprintf("%s; %d clients of each connect again and again, and leave with the request for authentication", w.what, clients),
			Unit: "connections", Settings: []Setting{setting}}
		if err := measureBudget(ctx, r, way, w, share, clients); err != nil {
			if ctx.Err() != nil || !errors.Is(err, errBudget) {
				return err
			}
			r.note("Postmasters at a fixed CPU budget were not measured: %v.", err)
			return nil
		}
	}
	return nil
}

func budgetName(name string) string { return "at a CPU budget: " + name }

var errBudget = errors.New("the system does not grant budgets of CPU time")

// grant gives a postmaster a budget, and sees it answer. On Linux 6.18, at least, a process that has used up its budget at the moment when that is lifted
// may get no time at all with the next one; it gets some with the one after that.
func grant(ctx context.Context, to target, pid int, share float64) error {
	const tries, patience = 5, time.Second
	for range tries {
		if err := setBudget(pid, share); err != nil {
			return fmt.Errorf("%w to this user: %w", errBudget, err)
		}
		waits, cancel := context.WithTimeout(ctx, patience)
		k := knockAt(waits, to, 0)
		cancel()
		if k.conn != nil {
			k.conn.Close()
		}
		if k.err == nil {
			return nil
		}
		if err := lift(pid); err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
	}
	return fmt.Errorf("%w: the postmaster with process id %d did not answer within %s of getting one, %d times", errBudget, pid, patience, tries)
}

func measureBudget(ctx context.Context, r *run, way *Way, w budgetWay, share float64, clients int) (err error) {
	lasts := max(r.Duration/4, 300*time.Millisecond)
	var targets []target
	for _, s := range w.servers {
		to, err := targetOf(s.url)
		if err != nil {
			return err
		}
		targets = append(targets, to)
	}
	stopQueries := w.query(ctx)
	defer func() {
		err = errors.Join(err, stopQueries())
		if err == nil {
			err = settle(ctx, targets) // the postmasters still have to answer those who have left
		}
	}()
	for i, s := range w.servers { // lifted before the queries end, which need their postmaster for that
		if err := grant(ctx, targets[i], s.server.PID(), share); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lift(s.server.PID())) }()
	}
	t := newTrack(way, lasts)
	t.latencyOf = "from startup message to request for authentication"
	works := make([]toil, len(w.servers))
	err = r.measure(ctx, t, lasts, nil, nil, func(until context.Context, m *load.Tally) error {
		before := make([]effort, len(works))
		for i, s := range w.servers {
			before[i], _ = effortOf(s.server.PID())
		}
		var all sync.WaitGroup
		errs := make([]error, clients*len(targets))
		for i := range errs {
			all.Go(func() {
				for until.Err() == nil {
					k := knockAt(until, targets[i%len(targets)], i)
					if k.conn != nil {
						k.conn.Close()
					}
					if k.err != nil && !cutOff(until, k.err) {
						errs[i] = k.err
						return
					}
					if k.err == nil && !k.refused {
						m.Did(1, k.answered)
					}
				}
			})
		}
		all.Wait()
		for i, s := range w.servers {
			after, _ := effortOf(s.server.PID())
			works[i].add(before[i], after)
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	t.sum()
	var ran, lasted time.Duration
	for _, work := range works {
		ran, lasted = ran+work.ran, lasted+work.lasted
	}
	way.Figures = append(way.Figures, Figure{budgetUsed, round(100 * ratio(ran.Seconds(), share*lasted.Seconds())), "%"},
		Figure{machineCPU, round(100 * ratio(float64(works[0].busy), float64(works[0].all))), "%"})
	r.result.Ways = append(r.result.Ways, way)
	return nil
}

// query runs the way's queries until the returned function is called.
func (w budgetWay) query(ctx context.Context) (stop func() error) {
	if w.queries == nil {
		return func() error { return nil }
	}
	return w.queries.during(ctx, load.NewTally(), repeatQuery)
}

// budgetText compares the ways that were measured.
func budgetText(r *Result) (sentences []string) {
	rate := func(name string) (float64, *Way) {
		if w := r.Way(budgetName(name)); w != nil {
			return w.Rate, w
		}
		return 0, nil
	}
	one, first := rate("1 postmaster")
	if first == nil {
		return nil
	}
	machine, _ := first.Figure(machineCPU)
	text := fmt.Sprintf("With %s each, one postmaster answers %s connections per second%s, while the machine's CPUs are %.0f%% busy", first.Settings[0].Value, Number(one), unused(first), machine)
	for n := 2; n <= MostServers; n *= 2 {
		if more, w := rate(fmt.Sprintf("%d postmasters", n)); w != nil {
			text += fmt.Sprintf("; %d answer %s, %s times as many%s", n, Number(more), Number(ratio(more, one)), unused(w))
		}
	}
	sentences = append(sentences, text+".")
	with, w := rate("beside parallel queries")
	without, v := rate("beside the same queries without workers")
	if w != nil && v != nil {
		sentences = append(sentences, fmt.Sprintf("Beside parallel queries, whose workers the same postmaster starts and reaps, it answers %s%s; beside the same queries without workers, %s%s.",
			Number(with), unused(w), Number(without), unused(v)))
	}
	if huge, w := rate("huge pages"); w != nil {
		sentences = append(sentences, fmt.Sprintf("With huge pages it answers %s%s, %.0f%% of what it answers without.", Number(huge), unused(w), 100*ratio(huge, one)))
	}
	return sentences
}

// unused is a remark about a way whose postmasters had budget left, so that something else was the limit.
func unused(w *Way) string {
	used, _ := w.Figure(budgetUsed)
	if used >= 90 {
		return ""
	}
	machine, _ := w.Figure(machineCPU)
	return fmt.Sprintf(" (with only %.0f%% of the budget used, because the machine's CPUs were %.0f%% busy)", used, machine)
}

// budgetWays lists what can be measured with the servers and sessions of the storms.
func budgetWays(servers []*site, huge *site, parallel, serial *sessions) []budgetWay {
	ways := []budgetWay{{"1 postmaster", "one server", Collapse, servers[:1], nil}}
	for n := 2; n <= len(servers); n *= 2 {
		ways = append(ways, budgetWay{fmt.Sprintf("%d postmasters", n), fmt.Sprintf("%d servers", n), Fix, slices.Clone(servers[:n]), nil})
	}
	// One session is enough: for each query the postmaster starts six workers.
	parallel, serial = &sessions{parallel.conns[:1]}, &sessions{serial.conns[:1]}
	ways = append(ways,
		budgetWay{"beside parallel queries", "one server, whose postmaster also starts and reaps the workers of parallel queries", Collapse, servers[:1], parallel},
		budgetWay{"beside the same queries without workers", "one server, next to the same queries without workers", Baseline, servers[:1], serial})
	if huge != nil {
		ways = append(ways, budgetWay{"huge pages", "one server with huge pages", Fix, []*site{huge}, nil})
	}
	return ways
}
