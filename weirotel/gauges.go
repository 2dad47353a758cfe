package weirotel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weir-pg/weir"
)

// observeMost is how long a collection waits for the database. Then it goes without these metrics.
const observeMost = 2 * time.Second

// Observe has each collection of metrics ask the database, through the client, how its queues stand, until the registration is undone. It takes
// the role weir_operate. What it tells is the database's, whoever asks: one process is enough, and of several, take the max by queue and state.
// Hubs (weir serve) have the same metrics. While the database does not answer within 2 seconds there are none.
func (t *Telemetry) Observe(client *weir.Client) (metric.Registration, error) {
	var errs [5]error
	var g gauges
	g.jobs, errs[0] = t.meter.Int64ObservableGauge("weir.queue.jobs", metric.WithUnit("{job}"),
		metric.WithDescription("Jobs of a queue, by state. Past some 10,000 it is an estimate."))
	g.oldest, errs[1] = t.meter.Float64ObservableGauge("weir.queue.oldest", metric.WithUnit("s"),
		metric.WithDescription("How long the available job that has waited longest has been waiting; 0 while none waits."))
	g.workers, errs[2] = t.meter.Int64ObservableGauge("weir.queue.workers", metric.WithUnit("{worker}"), metric.WithDescription("Workers that work a queue."))
	g.paused, errs[3] = t.meter.Int64ObservableGauge("weir.queue.paused", metric.WithDescription("1 for a queue that is paused."))
	g.claimed, errs[4] = t.meter.Int64ObservableCounter("weir.queue.claimed", metric.WithUnit("{attempt}"), metric.WithDescription("Attempts that were handed to workers."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("weirotel: %w", err)
	}
	return t.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		ctx, cancel := context.WithTimeout(ctx, observeMost)
		defer cancel()
		all, err := client.Queues(ctx)
		if err != nil {
			return fmt.Errorf("weirotel: %w", err)
		}
		now := time.Now()
		for _, q := range folded(all) {
			g.observe(o, q, now)
		}
		return nil
	}, g.jobs, g.oldest, g.workers, g.paused, g.claimed)
}

// gauges tell how a queue stands.
type gauges struct {
	jobs, workers, paused metric.Int64ObservableGauge
	claimed               metric.Int64ObservableCounter
	oldest                metric.Float64ObservableGauge
}

func (g *gauges) observe(o metric.Observer, q weir.QueueInfo, now time.Time) {
	queue := attribute.String("queue", q.Name)
	for state, n := range map[weir.State]int64{weir.StateAvailable: q.Available, weir.StateRunning: q.Running, weir.StateLater: q.Later} {
		o.ObserveInt64(g.jobs, n, metric.WithAttributes(queue, attribute.String("state", string(state))))
	}
	oldest, paused := time.Duration(0), int64(0)
	if q.ReadySince != nil {
		oldest = max(now.Sub(*q.ReadySince), 0)
	}
	if q.PausedAt != nil {
		paused = 1
	}
	o.ObserveFloat64(g.oldest, oldest.Seconds(), metric.WithAttributes(queue))
	o.ObserveInt64(g.workers, q.Workers, metric.WithAttributes(queue))
	o.ObserveInt64(g.paused, paused, metric.WithAttributes(queue))
	o.ObserveInt64(g.claimed, q.Claimed, metric.WithAttributes(queue))
}

// queuesMost is how many queues are observed; the rest are one.
const queuesMost = 500

// folded makes one of the queues past the first so many: their names are whatever programs say.
func folded(all []weir.QueueInfo) []weir.QueueInfo {
	if len(all) <= queuesMost {
		return all
	}
	rest := weir.QueueInfo{Name: other}
	for _, q := range all[queuesMost:] {
		rest.Available += q.Available
		rest.Running += q.Running
		rest.Later += q.Later
		rest.Claimed += q.Claimed
		rest.Workers = max(rest.Workers, q.Workers)
		if rest.ReadySince == nil || q.ReadySince != nil && q.ReadySince.Before(*rest.ReadySince) {
			rest.ReadySince = q.ReadySince
		}
	}
	return append(all[:queuesMost:queuesMost], rest)
}
