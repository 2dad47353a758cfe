// Package lab reproduces five known collapses of PostgreSQL, each beside its cures and in the same run, and
// measures what happens.
//
//	notify     NOTIFY lets one commit of the cluster through at a time
//	listeners  every notification wakes every listener
//	storm      thousands of connections at once saturate the postmaster
//	tree       foreign keys, one row per statement and hot counters: locks upon locks
//	pinned     a long transaction makes a queue walk through its dead rows
//
// A scenario is a list of ways to do the same work: as it collapses, and as cures do it. Run measures all ways of
// one scenario and returns a Result, whose verdict is computed from the figures. Nothing is staged: a scenario that
// shows nothing on the machine at hand says so.
//
//	result, err := lab.Run(ctx, lab.Config{Scenario: "notify", Duration: 10 * time.Second})
//	fmt.Println(result.Verdict.Text)
//
// Load runs a scenario's collapse alone, against a database that is there, until its context ends: something for a
// doctor to look at.
//
//	err := lab.Load(ctx, lab.LoadConfig{Scenario: "notify", Database: url, Clients: 32})
//
// Everything that the lab makes lies in schema weir_lab, or in schema weir where the lab installed it, and is
// dropped at the end. Its sessions have the application name "weir lab".
//
// Each scenario has files of its own. What they share: server.go (where to measure), meter.go (counts and latencies
// over time), waits.go (what sessions wait for), result.go (what comes of it). Package lab/report makes a page of it.
package lab
