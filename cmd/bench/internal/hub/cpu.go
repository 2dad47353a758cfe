package hub

import (
	"context"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/embedded"
)

// cpuWatch measures how many cores the hubs, the clients, the server and its standby keep busy.
type cpuWatch struct {
	d                   *load.Database
	hubs                []*hubProcess
	began               time.Time
	hub, client, server time.Duration
	knowsServer         bool
	standby             *embedded.Server // nil: there is none
	ofStandby           time.Duration
}

func startCPU(ctx context.Context, d *load.Database, standby *embedded.Server, hubs ...*hubProcess) (*cpuWatch, error) {
	w := &cpuWatch{d: d, hubs: hubs, began: time.Now(), standby: standby}
	var err error
	if w.hub, err = w.ofHubs(ctx); err != nil {
		return nil, err
	}
	w.client, _ = load.OwnCPU()
	w.server, w.knowsServer = d.ServerCPU()
	if standby != nil {
		w.ofStandby, _ = load.CPUOf(standby.PID())
	}
	return w, nil
}

func (w *cpuWatch) stop(ctx context.Context) (*load.Cores, error) {
	hub, err := w.ofHubs(ctx)
	if err != nil {
		return nil, err
	}
	took := time.Since(w.began).Seconds()
	client, _ := load.OwnCPU()
	cores := &load.Cores{Hub: (hub - w.hub).Seconds() / took, Client: (client - w.client).Seconds() / took}
	if server, ok := w.d.ServerCPU(); ok && w.knowsServer {
		busy := (server - w.server).Seconds() / took
		cores.Postgres = &busy
	}
	if w.standby != nil {
		if standby, ok := load.CPUOf(w.standby.PID()); ok {
			cores.Standby = new((standby - w.ofStandby).Seconds() / took)
		}
	}
	return cores, nil
}

// ofHubs returns the CPU time of all hubs together.
func (w *cpuWatch) ofHubs(ctx context.Context) (sum time.Duration, err error) {
	for _, h := range w.hubs {
		u, err := h.usage(ctx, false)
		if err != nil {
			return 0, err
		}
		sum += u.CPU
	}
	return sum, nil
}
