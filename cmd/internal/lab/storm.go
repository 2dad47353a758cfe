package lab

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// StormSize is the size of scenario storm.
type StormSize struct {
	Clients int           // that connect at the same moment; default 2,000
	Rounds  int           // rounds in which the ways alternate; default 2
	Jitter  time.Duration // period over which clients with jitter spread; default 10 s
	Queries int           // sessions that run small parallel queries at the same time; default 4
	Pool    int           // sessions of PgBouncer and of the standing pool; default 20
	Servers int           // private servers over which the clients are spread, in powers of two; default 8, 1: none
	Rates   []int         // connections per second of the sweep; default 100, 200, 400, …, 6400

	// NoReserve measures huge pages only if the machine has some. Otherwise, if root runs the lab, it reserves what it needs for the run.
	NoReserve bool
}

var stormScenario = &scenario{
	title: "A connection storm saturates the postmaster",
	about: "Clients wait for a signal and connect when they receive it, all at the same moment. The postmaster forks their backends, reaps " +
		"them and starts parallel workers in one loop on one core. The lab measures the time from a client's startup message to the server's " +
		"first answer, the request for authentication. Clients do not go beyond that, and none disconnects before the last has its answer. Before " +
		"the storms, clients arrive at one rate after another, until the server does not keep up. After them, postmasters get a small share of a " +
		"core each, so that their limit is reached while the machine has time left.",
	needs: func(c *Config) needs {
		c.Storm.Clients = cmp.Or(c.Storm.Clients, 2000)
		c.Storm.Rounds = cmp.Or(c.Storm.Rounds, 2)
		c.Storm.Queries = cmp.Or(c.Storm.Queries, 4)
		c.Storm.Jitter = cmp.Or(c.Storm.Jitter, 10*time.Second)
		c.Storm.Pool = cmp.Or(c.Storm.Pool, 20)
		c.Storm.Servers = cmp.Or(c.Storm.Servers, 8)
		if len(c.Storm.Rates) == 0 {
			c.Storm.Rates = []int{100, 200, 400, 800, 1600, 3200, 6400}
		}
		slices.Sort(c.Storm.Rates)
		return needs{connections: c.Storm.Clients + 2*c.Storm.Queries + 2*c.Storm.Pool + 20, weir: true, parameters: stormParameters}
	},
	run:  runStorm,
	load: loadStorm,
}

// A waiting client must not be disconnected by the timeout. Huge pages, if the machine has any, are measured separately. There are as many
// parallel workers as in the story.
var stormParameters = map[string]string{"authentication_timeout": "600s", "huge_pages": "off", "max_worker_processes": "520", "max_parallel_workers": "512"}

const (
	makeSmall = `CREATE TABLE weir_lab.small AS SELECT n::bigint AS id FROM generate_series(0, 100000) n; ANALYZE weir_lab.small`
	sumSmall  = `SELECT sum(id) FROM weir_lab.small`
)

// churnSettings are those of the story's function that starts as many workers as it can: a query over 100,001 rows, which takes some
// milliseconds, gets six workers, and its session waits for all of them.
func churnSettings(workers string) []Setting {
	return []Setting{
		{"max_parallel_workers_per_gather", workers}, {"max_parallel_workers", "512"}, {"parallel_leader_participation", "off"}, {"parallel_setup_cost", "0"},
		{"parallel_tuple_cost", "0"}, {"min_parallel_table_scan_size", "0"}, {"min_parallel_index_scan_size", "0"},
	}
}

func runStorm(ctx context.Context, r *run) error {
	size := r.Storm
	if err := mayOpen(2*size.Clients + 200); err != nil {
		return err
	}
	r.set("clients", size.Clients)
	r.set("rounds", size.Rounds)
	r.set("jitter", size.Jitter)
	r.set("sessions with parallel queries", size.Queries)
	r.set("sessions of PgBouncer and of the standing pool", size.Pool)
	r.set("private servers at most", size.Servers)
	r.set("rates of the sweep", list(size.Rates))
	if _, err := r.site.guard.Exec(ctx, makeSmall); err != nil {
		return err
	}
	h, signal, err := stormSignal(ctx, r)
	if err != nil {
		return err
	}
	defer h.stop()
	defer signal.close()
	plan, err := stormWays(ctx, r, h)
	defer plan.close()
	if err != nil {
		return err
	}
	ways := plan.ways
	sampler, _, err := r.watchers(ctx)
	if err != nil {
		return err
	}
	var gauges []gauge
	postmaster := 0
	if r.site.server != nil {
		postmaster = r.site.server.PID()
	}
	if err := measureLone(ctx, r, plan.home); err != nil {
		return err
	}
	r.steps = 1 + len(size.Rates) + size.Rounds*len(ways) + 6
	swept, err := runSweep(ctx, r, plan.home, postmaster)
	if err != nil {
		return err
	}
	// The first storm of a process and of a server allocates memory that later ones reuse: it is not counted.
	r.say("running a storm that is not counted")
	if _, err := storm(ctx, size.Clients, ways[0].call, signal, noJitter, load.NewTally()); err != nil {
		return err
	}
	measured, err := inRounds(r, size.Rounds, ways, func(w *stormWay) error {
		if err := settle(ctx, w.targets); err != nil {
			return fmt.Errorf("%s: %w", w.way.Name, err)
		}
		if postmaster > 0 {
			gauges = postmasterGauge(postmaster)
		}
		return r.measure(ctx, w.track, stormPatience, sampler, gauges, func(until context.Context, m *load.Tally) error {
			before, known := effortOf(w.postmaster)
			defer func() {
				if after, ok := effortOf(w.postmaster); ok && known {
					w.work.add(before, after)
				}
			}()
			return w.blow(ctx, until, size.Clients, signal, m)
		})
	}, (*stormWay).sumStorm)
	chartStorm(r, measured)
	if err != nil {
		return err
	}
	if err := settle(ctx, plan.ends()); err != nil {
		return err
	}
	if share := budgetOf(swept, size.Servers); share > 0 && r.site.server != nil {
		if err := runBudgets(ctx, r, share, plan.budgets()); err != nil {
			return err
		}
	} else {
		r.note("Postmasters at a fixed CPU budget were not measured: that requires private servers, and a system that tells what they use.")
	}
	r.result.Verdict = stormVerdict(r.result, size, swept)
	return nil
}

func noJitter() time.Duration { return 0 }

// stormSignal starts a hub, if possible, and subscribes the clients to the signal.
func stormSignal(ctx context.Context, r *run) (*hub, *signal, error) {
	if !r.site.weir {
		g, err := newSignal(ctx, r.site, nil, 0)
		return nil, g, err
	}
	h, err := startHub(ctx, r.site)
	if err != nil {
		return nil, nil, err
	}
	heard := h
	// Both ends of a subscription, and of a connection to the hub, are open files of this process.
	if err := mayOpen(4*r.Storm.Clients + 200); err != nil {
		r.note("The signal was given within the process, not published through the hub: %v.", err)
		heard = nil
	}
	r.say("subscribing the clients to the signal")
	g, err := newSignal(ctx, r.site, heard, r.Storm.Clients)
	if err != nil {
		h.stop()
		return nil, nil, err
	}
	return h, g, nil
}

// stormPatience limits one round.
const stormPatience = 3 * time.Minute

// measureLone measures single connections, the baseline of the storm.
func measureLone(ctx context.Context, r *run, to target) error {
	way := &Way{Name: "one after the other", Kind: Baseline, What: "one client connects repeatedly, and no others do", Unit: "connections"}
	t := newTrack(way, r.Duration/5)
	t.latencyOf = "from startup message to request for authentication"
	err := r.measure(ctx, t, max(r.Duration/5, 200*time.Millisecond), nil, nil, func(until context.Context, m *load.Tally) error {
		for i := 0; until.Err() == nil; i++ {
			k := knockAt(ctx, to, i)
			if k.err != nil {
				return k.err
			}
			k.conn.Close()
			m.Did(1, k.answered)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.result.Ways = append(r.result.Ways, t.sum())
	return nil
}

// loadStorm keeps the postmaster busy: each client connects again as soon as it has its answer.
func loadStorm(ctx context.Context, s *site, c LoadConfig) error {
	to, err := targetOf(s.url)
	if err != nil {
		return err
	}
	clients := c.Clients
	if clients == 0 {
		var left int
		err := s.guard.QueryRow(ctx, `SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
			- (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend')`).Scan(&left)
		if err != nil {
			return err
		}
		// A backend still counts for a moment after its client has disconnected, and other clients need connections too.
		clients = max(min(left*2/3-10, 500), 1)
	}
	c.Ready()
	return eachOf(clients, clients, func(i int) error {
		for ctx.Err() == nil {
			k := knockAt(ctx, to, i)
			if k.conn != nil {
				k.conn.Close()
			}
			if k.err != nil && !sleep.For(ctx, 100*time.Millisecond) {
				return nil
			}
		}
		return nil
	})
}
