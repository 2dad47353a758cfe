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

// Observe has each collection of metrics ask the database, through the client, how its queues stand, until the registration is undone. They are the database's, whoever
// asks: in one process is enough, and where several ask, take the max by queue and state. While the database doesn't answer there are none.
func (t *Telemetry) Observe(client *weir.Client) (metric.Registration, error) {
	var errs [3]error
	jobs, err := t.meter.Int64ObservableGauge("weir.queue.jobs", metric.WithUnit("{job}"), metric.WithDescription("Jobs of a queue, by state."))
	errs[0] = err
	workers, err := t.meter.Int64ObservableGauge("weir.queue.workers", metric.WithUnit("{worker}"), metric.WithDescription("Workers that work a queue."))
	errs[1] = err
	paused, err := t.meter.Int64ObservableGauge("weir.queue.paused", metric.WithDescription("1 for a queue that is paused."))
	errs[2] = err
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
		for _, q := range all {
			queue := attribute.String("queue", t.queues.bounded(q.Name))
			o.ObserveInt64(jobs, q.Available, metric.WithAttributes(queue, attribute.String("state", string(weir.StateAvailable))))
			o.ObserveInt64(workers, q.Workers, metric.WithAttributes(queue))
			stopped := int64(0)
			if q.PausedAt != nil {
				stopped = 1
			}
			o.ObserveInt64(paused, stopped, metric.WithAttributes(queue))
		}
		return nil
	}, jobs, workers, paused)
}
