package lab

import (
	"cmp"
	"context"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// StormSize is the size of scenario storm.
type StormSize struct {
	Clients int           // that connect at the same moment; default 2,000
	Rounds  int           // rounds in which the ways alternate; default 3
	Jitter  time.Duration // period over which clients with jitter spread; default 10 s
	Queries int           // sessions that run small parallel queries at the same time; default 4
}

var stormScenario = &scenario{
	title: "A connection storm saturates the postmaster",
	about: "Clients wait for a signal and connect when they receive it, all at the same moment. The postmaster forks their backends, reaps " +
		"them and starts parallel workers in one loop on one core. The lab measures the time from a client's startup message to the server's " +
		"first answer, the request for authentication. Clients do not go beyond that, and none disconnects before the last has its answer.",
	needs: func(c *Config) needs {
		c.Storm.Clients = cmp.Or(c.Storm.Clients, 2000)
		c.Storm.Rounds = cmp.Or(c.Storm.Rounds, 3)
		c.Storm.Queries = cmp.Or(c.Storm.Queries, 4)
		c.Storm.Jitter = cmp.Or(c.Storm.Jitter, 10*time.Second)
		return needs{connections: c.Storm.Clients + c.Storm.Queries + 20, weir: true, parameters: stormParameters}
	},
	run:  runStorm,
	load: loadStorm,
}

// A waiting client must not be disconnected by the timeout. Huge pages, if the machine has any, are measured separately.
var stormParameters = map[string]string{"authentication_timeout": "600s", "huge_pages": "off"}

const (
	makeSmall  = `CREATE TABLE weir_lab.small AS SELECT n, repeat('x', 100) AS filler FROM generate_series(1, 2000) n`
	countSmall = `SELECT count(*) FROM weir_lab.small`
)

func runStorm(ctx context.Context, r *run) error {
	size := r.Storm
	if err := mayOpen(2*size.Clients + 200); err != nil {
		return err
	}
	r.set("clients", size.Clients)
	r.set("rounds", size.Rounds)
	r.set("jitter", size.Jitter)
	r.set("sessions with parallel queries", size.Queries)
	if _, err := r.site.guard.Exec(ctx, makeSmall); err != nil {
		return err
	}
	h, signal, err := stormSignal(ctx, r)
	if err != nil {
		return err
	}
	defer h.stop()
	defer signal.close()
	ways, closeWays, err := stormWays(ctx, r, h)
	defer closeWays()
	if err != nil {
		return err
	}
	sampler, _, err := r.watchers(ctx)
	if err != nil {
		return err
	}
	var gauges []gauge
	postmaster := 0
	if r.site.server != nil {
		postmaster = r.site.server.PID()
		gauges = postmasterGauge(postmaster)
	}
	if err := measureLone(ctx, r, ways[0].targets[0]); err != nil {
		return err
	}
	// The first storm of a process and of a server allocates memory that later ones reuse: it is not counted.
	r.say("running a storm that is not counted")
	if _, err := storm(ctx, size.Clients, ways[0].targets, signal, noJitter, load.NewTally()); err != nil {
		return err
	}
	r.steps = 1 + size.Rounds*len(ways)
	for range size.Rounds {
		for _, w := range ways {
			if err := settle(ctx, w.targets); err != nil {
				return err
			}
			err := r.measure(ctx, w.track, stormPatience, sampler, gauges, func(until context.Context, m *load.Tally) error {
				before, _ := cpuTime(postmaster)
				defer func() {
					after, _ := cpuTime(postmaster)
					w.cpu += after - before
				}()
				return w.blow(ctx, until, size.Clients, signal, m)
			})
			if err != nil {
				return err
			}
		}
	}
	for _, w := range ways {
		r.result.Ways = append(r.result.Ways, w.sumStorm())
	}
	chartStorm(r, ways)
	r.result.Verdict = stormVerdict(r.result, size)
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
