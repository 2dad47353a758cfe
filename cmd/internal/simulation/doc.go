// Package simulation is what deterministic simulations are made of: a virtual time, events in its order, one source of random numbers, networks that fail, and clocks that are wrong.
//
//	w := simulation.New(seed)
//	w.After(time.Second, func() { … })   // events run one after the other, in one goroutine
//	w.Run(time.Minute)
//
// A seed reproduces a run exactly: the same events, in the same order, with the same random numbers. So nothing in a simulated node may depend on a goroutine, on the machine's clock, or on
// the order of a map. World.Hash tells whether two runs were the same.
//
// The nodes are in the tests of the packages whose code they run: cmd/internal/work has hubs and workers of jobs over HTTP, cmd/internal/cluster hubs that share ticks. Nothing but tests
// imports this package. docs/reliability.md describes what is simulated.
package simulation
