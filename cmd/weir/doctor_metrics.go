package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-pg/weir/cmd/internal/doctor"
)

// levelOf returns the level at which something of a severity is logged: alerts are often made of levels.
func levelOf(s doctor.Severity) slog.Level {
	switch s {
	case doctor.Critical:
		return slog.LevelError
	case doctor.Warning:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// serve runs until ctx ends and serves metrics. With --watch it also shows what it sees; without, it logs what comes and goes.
func (c *doctorCmd) serve(ctx context.Context, s *streams, d *doctor.Doctor) error {
	log := newLogger(s.err, slog.LevelInfo)
	var metrics doctor.Metrics
	stop, err := c.serveMetrics(&metrics, metrics.Stuck, metrics.Ready, log)
	if err != nil {
		return err
	}
	defer stop()
	if c.Watch {
		return watchDoctor(ctx, s, d, metrics.Show)
	}
	var unseen []string // as last logged
	err = d.Watch(ctx, func(now doctor.Snapshot) {
		metrics.Show(now)
		for _, change := range now.Changes {
			log.Log(ctx, levelOf(change.Severity), change.Text)
		}
		if now.Report != nil && len(now.Report.Unseen) > 0 && !slices.Equal(unseen, now.Report.Unseen) {
			unseen = now.Report.Unseen
			log.Warn("what can't be examined", "unchecked", strings.Join(unseen, "; "))
		}
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // interrupting is how it ends
}

// serveMetrics serves metrics, with the probes of whoever they are about, until stop is called.
func (c *doctorCmd) serveMetrics(metrics prometheus.Collector, stuck, ready func() error, log *slog.Logger) (stop func(), err error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	mux := probes(stuck, ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return serveHTTP("--listen-metrics", loopback(c.ListenMetrics), mux, "metrics and probes", "/metrics", log)
}
