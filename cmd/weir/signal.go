package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// trap gives out a context that ends at the first Ctrl-C or SIGTERM; at the second the process exits at once.
type trap struct {
	mu    sync.Mutex
	last  []func() // called before the exit at once
	close func()
}

// catchSignals starts one goroutine, which release ends.
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
		for range 2 {
			select {
			case <-done:
				return
			case <-signals:
			}
			if ctx.Err() == nil {
				cancel()
				continue
			}
			fmt.Fprintln(stderr, "weir: stopped at once by a second signal")
			t.mu.Lock()
			for _, f := range t.last {
				f()
			}
			os.Exit(exitInterrupted)
		}
	}()
	return ctx, t
}

// beforeForcedExit registers what must be done even when there is no time for anything; it must be quick.
func (t *trap) beforeForcedExit(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, f)
}

func (t *trap) release() { t.close() }
