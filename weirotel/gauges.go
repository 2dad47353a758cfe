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

// observeTimeout limits how long a collection waits for the database. After it, the collection lacks these metrics.
const observeTimeout = 2 * time.Second

// Observe makes each collection of metrics query the state of the queues through the client, until the registration is undone. The client
// needs the role weir_operate. The metrics describe the database, not the process: one process is enough, and if there are several, take
// the max by queue and state. Hubs (weir serve) have the same metrics. If the database does not answer within 2 seconds, they are missing.
func (t *Telemetry) Observe(client *weir.Client) (metric.Registration, error) {
	var errs [5]error
	var g gauges
	g.jobs, errs[0] = t.meter.Int64ObservableGauge("weir.queue.jobs", metric.WithUnit("{job}"),
		metric.WithDescription("Jobs of a queue, by state. Beyond about 10,000 it is an estimate."))
	g.oldest, errs[1] = t.meter.Float64ObservableGauge("weir.queue.oldest", metric.WithUnit("s"),
		metric.WithDescription("How long the oldest available job has been waiting; 0 if none is waiting."))
	g.workers, errs[2] = t.meter.Int64ObservableGauge("weir.queue.workers", metric.WithUnit("{worker}"), metric.WithDescription("Workers that are alive and work a queue."))
	g.paused, errs[3] = t.meter.Int64ObservableGauge("weir.queue.paused", metric.WithDescription("1 for a queue that is paused."))
	g.claimed, errs[4] = t.meter.Int64ObservableCounter("weir.queue.claimed", metric.WithUnit("{attempt}"), metric.WithDescription("Attempts claimed by workers."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("weirotel: %w", err)
	}
	return t.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		ctx, cancel := context.WithTimeout(ctx, observeTimeout)
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

// gauges are the metrics of queues.
type gauges struct {
	jobs, workers, paused metric.Int64ObservableGauge
	claimed               metric.Int64ObservableCounter
	oldest                metric.Float64ObservableGauge
}

func (g *gauges) observe(o metric.Observer, q weir.QueueInfo, now time.Time) {
	queue := attribute.String("queue", q.Name)
	for state, n := range map[weir.State]int64{weir.StateAvailable: q.Available, weir.StateRunning: q.Running, weir.StateScheduled: q.Scheduled} {
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

// maxQueues limits how many queues are observed separately; the rest are combined into one.
const maxQueues = 500

// folded combines the queues beyond the first maxQueues into one, because programs may use any number of names.
func folded(all []weir.QueueInfo) []weir.QueueInfo {
	if len(all) <= maxQueues {
		return all
	}
	rest := weir.QueueInfo{Name: other}
	for _, q := range all[maxQueues:] {
		rest.Available += q.Available
		rest.Running += q.Running
		rest.Scheduled += q.Scheduled
		rest.Claimed += q.Claimed
		rest.Workers = max(rest.Workers, q.Workers)
		if rest.ReadySince == nil || q.ReadySince != nil && q.ReadySince.Before(*rest.ReadySince) {
			rest.ReadySince = q.ReadySince
		}
	}
	return append(all[:maxQueues:maxQueues], rest)
}
