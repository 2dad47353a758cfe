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

// sameSignal is for how long further signals count as the first: who stops a process often tells it twice, once by itself and once with its
// group, as timeout(1) does.
const sameSignal = time.Second

// trap gives out a context that ends at the first Ctrl-C or SIGTERM; at a second, later one the process exits at once.
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
