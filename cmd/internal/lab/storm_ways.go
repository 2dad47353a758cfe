package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// stormWay is one way for many clients to connect.
type stormWay struct {
	*track
	targets []target // over which the clients are spread
	jitter  time.Duration
	queries *sessions // that run at the same time; nil: none
	knocks  []knock
	cpu     time.Duration // used by the first server's postmaster during the storms
}

// stormWays prepares the servers and sessions of the ways that can be measured here.
func stormWays(ctx context.Context, r *run, h *hub) (ways []*stormWay, closeAll func(), err error) {
	var closes []func()
	closeAll = func() {
		for _, f := range closes {
			f()
		}
	}
	size := r.Storm
	home, err := targetOf(r.site.url)
	if err != nil {
		return nil, closeAll, err
	}
	add := func(kind Kind, name, what string, targets ...target) *stormWay {
		w := &stormWay{targets: targets, track: newTrack(&Way{Name: name, Kind: kind, What: what, Unit: "connections"}, 10*time.Second)}
		w.latencyOf = "from startup message to request for authentication"
		ways = append(ways, w)
		return w
	}
	add(Collapse, "at once", "all clients connect at the same moment", home)
	for _, parallel := range []int{2, 0} {
		queries, err := openSessions(ctx, r.site.url, size.Queries, map[string]string{
			"parallel_setup_cost": "0", "parallel_tuple_cost": "0", "min_parallel_table_scan_size": "0", "max_parallel_workers_per_gather": strconv.Itoa(parallel),
		})
		if err != nil {
			return nil, closeAll, err
		}
		closes = append(closes, queries.close)
		name, what, kind := "at once, beside parallel queries", "the same, while some sessions run small queries, each with two parallel "+
			"workers that the postmaster must start and reap too", Collapse
		if parallel == 0 {
			name, what, kind = "at once, beside the same queries without workers", "the same queries without parallel workers, to separate the cost of the "+
				"workers from that of the queries", Baseline
		}
		w := add(kind, name, what, home)
		w.queries = queries
		w.way.Settings = []Setting{{"max_parallel_workers_per_gather", strconv.Itoa(parallel)}, {"parallel_setup_cost", "0"}, {"min_parallel_table_scan_size", "0"}}
	}
	add(Fix, "with jitter", fmt.Sprintf("each client first waits for a random time of up to %s", size.Jitter), home).jitter = size.Jitter
	targets := []target{home}
	if r.site.server == nil {
		r.note("Two and three servers were not measured: that requires private servers, and a database was given.")
	} else {
		n := needs{connections: size.Clients + 20, parameters: stormParameters}
		for range 2 {
			more := &site{}
			closes = append(closes, func() { _ = more.close() })
			if err := more.start(ctx, r.Major, n, r.say); err != nil {
				return nil, closeAll, err
			}
			next, err := targetOf(more.url)
			if err != nil {
				return nil, closeAll, err
			}
			targets = append(targets, next)
			add(Fix, fmt.Sprintf("over %d servers", len(targets)), fmt.Sprintf("the clients are spread over %d servers on this machine, each with its own "+
				"postmaster", len(targets)), slices.Clone(targets)...)
		}
	}
	huge, err := hugeSite(ctx, r, size)
	if err != nil {
		return nil, closeAll, err
	}
	if huge != nil {
		closes = append(closes, func() { _ = huge.close() })
		target, err := targetOf(huge.url)
		if err != nil {
			return nil, closeAll, err
		}
		w := add(Fix, "at once, huge pages", "all at once, on a server whose shared memory is in huge pages, so that a fork has less to copy", target)
		w.way.Settings = []Setting{{"huge_pages", "on"}}
	}
	if h != nil {
		to, err := targetOf(h.url)
		if err != nil {
			return nil, closeAll, err
		}
		add(Fix, "to the hub", "all clients connect at the same moment, to a hub instead of PostgreSQL", to)
	}
	return ways, closeAll, nil
}

// hugeSite starts a server with huge pages, or notes why it can't.
func hugeSite(ctx context.Context, r *run, size StormSize) (*site, error) {
	free, ok := meminfo("HugePages_Free")
	switch {
	case !ok:
		r.note("Huge pages were not measured: this system does not report whether it has any.")
		return nil, nil
	case free == 0:
		r.note("Huge pages were not measured: this machine has none reserved (vm.nr_hugepages).")
		return nil, nil
	}
	huge := &site{}
	parameters := map[string]string{"authentication_timeout": "600s", "huge_pages": "on"}
	if err := huge.start(ctx, r.Major, needs{connections: size.Clients + 20, parameters: parameters}, r.say); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		r.note("Huge pages were not measured: the %d free pages are not enough for a server (%v).", free, err)
		return nil, huge.close()
	}
	return huge, nil
}

// blow runs one storm. It returns when all clients have their answers.
func (w *stormWay) blow(ctx, until context.Context, clients int, signal *signal, m *load.Tally) error {
	stop := func() error { return nil }
	if w.queries != nil {
		querying, cancel := context.WithCancel(until)
		ended := make(chan error, 1)
		go func() { // ends with querying; stop waits for it
			ended <- w.queries.work(ctx, querying, load.NewTally(), repeatQuery)
		}()
		stop = func() error {
			cancel()
			return <-ended
		}
	}
	jitter := noJitter
	if w.jitter > 0 {
		jitter = func() time.Duration { return rand.N(w.jitter) }
	}
	knocks, err := storm(until, clients, w.targets, signal, jitter, m)
	w.knocks = append(w.knocks, knocks...)
	if ended := stop(); err == nil {
		err = ended
	}
	return err
}

// repeatQuery runs one small query.
func repeatQuery(ctx context.Context, conn *pgx.Conn, _ int) error {
	_, err := conn.Exec(ctx, countSmall)
	return err
}
