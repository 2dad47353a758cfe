package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// sameSignal is the time within which further signals count as the first: a process is often signalled twice, once alone and once with its
// group, as by timeout(1).
const sameSignal = time.Second

// trap provides a context that ends at the first Ctrl-C or SIGTERM. At a second one the process exits immediately.
type trap struct {
	mu    sync.Mutex
	last  []func() // called before an immediate exit
	close func()
}

// catchSignals starts a goroutine, which release ends.
func catchSignals(stderr io.Writer) (context.Context, *trap) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	t := &trap{close: func() {
		signal.Stop(signals)
		cancel()
		close(done)
	}}
	go func() {
		var first time.Time
		for {
			select {
			case <-done:
				return
			case <-signals:
			}
			if first.IsZero() {
				first = time.Now()
				cancel()
			}
			if time.Since(first) < sameSignal {
				continue
			}
			fmt.Fprintln(stderr, "weir: stopped immediately by a second signal")
			t.mu.Lock()
			for _, f := range t.last {
				f()
			}
			os.Exit(exitInterrupted)
		}
	}()
	return ctx, t
}

// beforeForcedExit registers a function that is called even before an immediate exit; it must be quick.
func (t *trap) beforeForcedExit(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, f)
}

func (t *trap) release() { t.close() }
