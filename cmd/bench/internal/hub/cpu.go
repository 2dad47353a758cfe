package hub

import (
	"context"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// cpuWatch measures how many cores the hub, the clients and the server keep busy.
type cpuWatch struct {
	d                   *load.Database
	h                   *hubProcess
	began               time.Time
	hub, client, server time.Duration
	knowsServer         bool
}

func startCPU(ctx context.Context, d *load.Database, h *hubProcess) (*cpuWatch, error) {
	u, err := h.usage(ctx, false)
	if err != nil {
		return nil, err
	}
	w := &cpuWatch{d: d, h: h, began: time.Now(), hub: u.CPU}
	w.client, _ = load.OwnCPU()
	w.server, w.knowsServer = d.ServerCPU()
	return w, nil
}

func (w *cpuWatch) stop(ctx context.Context) (*load.Cores, error) {
	u, err := w.h.usage(ctx, false)
	if err != nil {
		return nil, err
	}
	took := time.Since(w.began).Seconds()
	client, _ := load.OwnCPU()
	cores := &load.Cores{Hub: (u.CPU - w.hub).Seconds() / took, Client: (client - w.client).Seconds() / took}
	if server, ok := w.d.ServerCPU(); ok && w.knowsServer {
		busy := (server - w.server).Seconds() / took
		cores.Postgres = &busy
	}
	return cores, nil
}
