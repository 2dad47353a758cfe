package bench

import (
	"context"
	"sync/atomic"
	"time"
)

// cpuWatch tells how many cores hub, clients and server kept busy.
type cpuWatch struct {
	d                   *Database
	h                   *hubProcess
	began               time.Time
	hub, client, server time.Duration
	knowsServer         bool
}

func (d *Database) startCPU(ctx context.Context, h *hubProcess) (*cpuWatch, error) {
	u, err := h.usage(ctx, false)
	if err != nil {
		return nil, err
	}
	w := &cpuWatch{d: d, h: h, began: time.Now(), hub: u.CPU}
	w.client, _ = ownCPU()
	w.server, w.knowsServer = d.serverCPU()
	return w, nil
}

func (w *cpuWatch) stop(ctx context.Context) (*Cores, error) {
	u, err := w.h.usage(ctx, false)
	if err != nil {
		return nil, err
	}
	took := time.Since(w.began).Seconds()
	client, _ := ownCPU()
	cores := &Cores{Hub: (u.CPU - w.hub).Seconds() / took, Client: (client - w.client).Seconds() / took}
	if server, ok := w.d.serverCPU(); ok && w.knowsServer {
		busy := (server - w.server).Seconds() / took
		cores.Postgres = &busy
	}
	return cores, nil
}

// sampleRate returns how fast a counter grew in each interval until ctx ends; the last, incomplete one is left out.
func sampleRate(ctx context.Context, every time.Duration, n *atomic.Int64) (rates []float64) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	last, at := n.Load(), time.Now()
	for {
		select {
		case <-tick.C:
			now, then := n.Load(), time.Now()
			rates = append(rates, float64(now-last)/then.Sub(at).Seconds())
			last, at = now, then
		case <-ctx.Done():
			return rates
		}
	}
}
