// Package lab reproduces five known collapses of PostgreSQL, each next to its fixes, and measures all of them in the same run.
//
//	notify     NOTIFY lets only one commit of the cluster through at a time
//	listeners  every notification wakes every listener
//	storm      thousands of simultaneous connections saturate the postmaster
//	tree       foreign keys, one row per statement, and hot counters: one lock after another
//	pinned     a long transaction makes a queue read through its dead rows
//
// A scenario is a list of ways to do the same work: as it collapses, and with each fix. Run measures all ways of one scenario and returns a
// Result, whose verdict is computed from the figures. Nothing is staged: if a collapse does not show on the machine, the verdict says so.
//
//	result, err := lab.Run(ctx, lab.Config{Scenario: "notify", Duration: 10 * time.Second})
//	fmt.Println(result.Verdict.Text)
//
// Load runs only the collapse of a scenario, on an existing database, until its context ends, for example as a case for the doctor's tests.
//
//	err := lab.Load(ctx, lab.LoadConfig{Scenario: "notify", Database: url, Clients: 32})
//
// The lab creates everything in schema weir_lab, and in schema weir if it installed it, and drops both at the end. Only Weir's roles
// stay, because they belong to the whole server: a note says so. The application name of its sessions is "weir lab".
//
// Each scenario has its own files. They share site.go (where to measure), meter.go (counts and latencies over time), waits.go (what sessions
// wait for) and result.go (the result). Package lab/report renders it as a page.
package lab
