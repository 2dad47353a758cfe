package lab

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// Scenarios are the names that Run and Load know, in the order of `weir lab all`.
var Scenarios = []string{"notify", "listeners", "storm", "tree", "pinned"}

// LoadConfig selects the collapse to run. Scenario and Database are required.
type LoadConfig struct {
	Scenario string // one of Scenarios

	// Database is the URL of the database to load. Its schema weir_lab is dropped if it exists, created, and dropped at the end. Nothing else
	// is touched. The database may contain anything else: the caller must know whether the load may disturb it.
	Database string

	// Clients is the number of working sessions; the default, 0, depends on the scenario:
	//
	//	notify     writers that insert a row and notify; default 32
	//	listeners  idle listeners, next to two sessions that play ping-pong; default 100
	//	storm      connections that are repeatedly opened at the same moment; default: those left of
	//	           max_connections, at most 500
	//	tree       workers that add children under four shared parents; default 24
	//	pinned     claimers of a queue with SKIP LOCKED, next to one producer and one long transaction; default 4
	Clients int

	// Pin is what the long transaction of scenario pinned does: "read" (default; a snapshot that stays open) or
	// "write" (an idle transaction that holds an xid).
	Pin string

	// Rate is the number of jobs per second that the producer of scenario pinned enqueues; default 1,000.
	Rate int

	// SlowFlush makes every commit of scenario notify wait 2 ms at its flush, as network storage does (commit_delay, which
	// needs a superuser and a server with fsync on).
	SlowFlush bool

	// Ready, if set, is called once, when the tables are filled and all sessions have begun to work.
	Ready func()

	// Log receives progress; default: none.
	Log *slog.Logger
}

// Load runs the collapse of one scenario on a database, without measuring, until ctx ends, and then cleans up. It returns nil if it ended
// because ctx did, and an error if the load could not continue.
func Load(ctx context.Context, c LoadConfig) error {
	s, ok := scenarios[c.Scenario]
	if !ok {
		return unknownScenario(c.Scenario)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Ready == nil {
		c.Ready = func() {}
	}
	return runLoad(ctx, s, c)
}

func unknownScenario(name string) error {
	return fmt.Errorf("lab: %q is not a scenario: use one of %s", name, strings.Join(Scenarios, ", "))
}
