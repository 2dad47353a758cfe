package lab

import (
	"context"
	"fmt"
	"time"
)

// signal starts all clients of a storm at the same moment. It is published through a hub, to which each client has its own connection;
// without a hub, it is given within this process.
type signal struct {
	site      *site
	listeners *sessions     // nil: no hub
	gong      chan struct{} // of the next storm, closed to start it
}

const signalChannel = "weir_lab_storm"

// newSignal subscribes n clients to the hub, which may be nil.
func newSignal(ctx context.Context, s *site, h *hub, n int) (*signal, error) {
	g := &signal{site: s, gong: make(chan struct{})}
	if h == nil {
		return g, nil
	}
	listeners, err := openSessions(ctx, h.url, n, nil)
	if err != nil {
		return nil, fmt.Errorf("subscribe to the hub: %w", err)
	}
	g.listeners = listeners
	if err := listeners.exec(ctx, `LISTEN `+signalChannel); err != nil {
		listeners.close()
		return nil, fmt.Errorf("subscribe to the hub: %w", err)
	}
	return g, nil
}

// hear waits for the signal as client i.
func (g *signal) hear(ctx context.Context, i int) error {
	if g.listeners != nil {
		_, err := g.listeners.conns[i].WaitForNotification(ctx)
		return err
	}
	select {
	case <-g.gong:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send sends the signal, for which all clients wait, and returns when it has been sent.
func (g *signal) send(ctx context.Context) (at time.Time, err error) {
	at = time.Now()
	if g.listeners == nil {
		close(g.gong)
		return at, nil
	}
	_, err = g.site.guard.Exec(ctx, `SELECT weir.publish($1, 'go')`, signalChannel)
	return at, err
}

// again prepares the signal for the next storm.
func (g *signal) again() { g.gong = make(chan struct{}) }

func (g *signal) close() {
	if g.listeners != nil {
		g.listeners.close()
	}
}
