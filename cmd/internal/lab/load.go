package lab

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// Scenarios are the names that Run and Load know, in the order of `weir lab all`.
var Scenarios = []string{"notify", "listeners", "storm", "tree", "pinned"}

// LoadConfig says which collapse to run. Scenario and Database are required.
type LoadConfig struct {
	Scenario string // one of Scenarios

	// Database is the URL of the database that the load runs in. Its schema weir_lab is made, and dropped at the end;
	// one that is there already is dropped first. Nothing else in it is touched, and nothing is asked of what it holds:
	// that is for the caller to know.
	Database string

	// Clients is how many sessions are at work; the default, 0, is the scenario's own:
	//
	//	notify     writers, each inserts a row and notifies; default 32
	//	listeners  idle listeners, beside two sessions that play ping-pong; default 100
	//	storm      connections that are opened in the same instant, again and again; default what the server's
	//	           max_connections leaves, at most 500
	//	tree       workers that add children under four shared parents; default 24
	//	pinned     claimers of a queue with SKIP LOCKED, beside one producer and one long transaction; default 4
	Clients int

	// Pin is what the long transaction of scenario pinned does: "read" (default; a snapshot that stays open) or
	// "write" (an idle transaction that holds an xid).
	Pin string

	// Rate is how many jobs a second the producer of scenario pinned enqueues; default 1,000.
	Rate int

	// SlowFlush makes every commit of scenario notify wait 2 ms at its flush, as network storage does (commit_delay, which
	// needs a superuser and a server with fsync on).
	SlowFlush bool

	// Ready, where set, is called once, when tables are filled and every session has begun its work.
	Ready func()

	// Log hears of what goes on; default: nobody.
	Log *slog.Logger
}

// Load runs the collapse of one scenario against a database, without any measurement, until ctx ends, and cleans up
// after itself. It returns nil when it ended because ctx did, and an error when the load could not go on.
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
	return fmt.Errorf("lab: there is no scenario %q: they are %s", name, strings.Join(Scenarios, ", "))
}
