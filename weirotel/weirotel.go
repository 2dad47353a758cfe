// Package weirotel gives Weir's jobs traces and metrics by OpenTelemetry.
//
//	telemetry, err := weirotel.New(weirotel.Config{})
//	client := weir.NewClient(pool).WithMiddleware(telemetry.Enqueue)
//	worker, err := client.NewWorker(weir.WorkerConfig{
//		Handlers: handlers,
//		Queues:   map[string]int{"mail": 8},
//		Hooks:    []weir.Hooks{telemetry.Hooks()},
//	})
//	registration, err := telemetry.Observe(client) // metrics of queues, in one process or in some
//	defer registration.Unregister()
//
// # Spans
//
// They are those of the semantic conventions for messaging, version 1.43.0. A call that enqueues is a producer span, "enqueue mail"; its context is kept
// in each job's meta under [MetaKey], and each attempt is a consumer span, "work mail", that links to it. The first attempt is its child
// too; later ones are traces of their own, for they may follow a day later. EnqueueMany makes one span for all its jobs. The span of an attempt lasts as long as its handler, and ends
// when the database has recorded how the attempt ended: its messaging.weir.outcome is that, whatever the handler returned. An attempt whose end can't be
// recorded, as its job was given to others, is lost. A rescue of what a lost worker had is a span with the ids of the jobs. A span for an enqueue in a transaction
// of yours does not tell whether that was committed.
//
// # Metrics
//
//	messaging.process.duration            how long handlers took, by queue, kind, outcome as recorded, and error.type
//	messaging.client.sent.messages        jobs enqueued, by queue and error.type
//	messaging.client.operation.duration   how long enqueue, claim and record took
//	weir.job.wait.duration                from when an attempt could be claimed until it started, by queue and kind
//	weir.jobs.rescued                     jobs that were taken from lost workers
//	weir.queue.jobs                       jobs of a queue that are available, running and for later, by state
//	weir.queue.oldest                     how long the available job that has waited longest has been waiting
//	weir.queue.claimed                    attempts that were handed to workers
//	weir.queue.workers                    workers of a queue
//	weir.queue.paused                     1 for a queue that is paused
//
// Queues and kinds are attributes; past the first 100 of each, and 500 queues of those observed, they are _OTHER. A job's wait is by the clocks of the server and the worker.
package weirotel

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Config says where telemetry goes. Its zero value is OpenTelemetry's global providers, and W3C trace context.
type Config struct {
	TracerProvider trace.TracerProvider          // nil: otel.GetTracerProvider()
	MeterProvider  metric.MeterProvider          // nil: otel.GetMeterProvider()
	Propagator     propagation.TextMapPropagator // what is kept in a job's meta; nil: propagation.TraceContext{}
}

// Telemetry makes spans and counts. It is safe for concurrent use, by any number of clients and workers.
type Telemetry struct {
	tracer     trace.Tracer
	meter      metric.Meter
	propagator propagation.TextMapPropagator

	process, wait, operation metric.Float64Histogram
	sent, rescued            metric.Int64Counter

	queues, kinds, errors names
}

const scope = "github.com/weir-pg/weir/weirotel"

// What this package adds to the conventions' attributes.
const (
	kindKey    = attribute.Key("messaging.weir.kind")
	attemptKey = attribute.Key("messaging.weir.attempt")
	putOffKey  = attribute.Key("messaging.weir.put_off")
	outcomeKey = attribute.Key("messaging.weir.outcome")
	workerKey  = attribute.Key("messaging.weir.worker")
	reasonKey  = attribute.Key("messaging.weir.reason")
	jobsKey    = attribute.Key("messaging.weir.jobs")
)

var system = semconv.MessagingSystemKey.String("weir")

// seconds are the conventions' buckets, and some more: jobs may take long, and wait longer.
var seconds = metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 900, 3600)

// New returns telemetry for clients and workers.
func New(c Config) (*Telemetry, error) {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.Propagator == nil {
		c.Propagator = propagation.TraceContext{}
	}
	t := &Telemetry{
		tracer:     c.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
		meter:      c.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL)),
		propagator: c.Propagator,
	}
	var errs [5]error
	t.process, errs[0] = t.meter.Float64Histogram("messaging.process.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("How long handlers took, once it was recorded how their attempts ended."))
	t.wait, errs[1] = t.meter.Float64Histogram("weir.job.wait.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("From when an attempt could be claimed until its handler started."))
	t.operation, errs[2] = t.meter.Float64Histogram("messaging.client.operation.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("How long enqueuing, claiming and recording took."))
	t.sent, errs[3] = t.meter.Int64Counter("messaging.client.sent.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Jobs that were enqueued, or were to be."))
	t.rescued, errs[4] = t.meter.Int64Counter("weir.jobs.rescued", metric.WithUnit("{job}"),
		metric.WithDescription("Jobs that were taken from lost workers."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("weirotel: %w", err)
	}
	t.rescued.Add(context.Background(), 0) // so that the first is an increase
	return t, nil
}

// names bounds how many values an attribute has.
type names struct {
	mu   sync.RWMutex
	seen map[string]bool
}

const (
	namesMost = 100
	other     = "_OTHER"
)

// bounded is the name, or other past the first so many.
func (n *names) bounded(name string) string {
	n.mu.RLock()
	known, full := n.seen[name], len(n.seen) >= namesMost
	n.mu.RUnlock()
	switch {
	case known:
		return name
	case full:
		return other
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.seen[name] && len(n.seen) >= namesMost {
		return other
	}
	if n.seen == nil {
		n.seen = map[string]bool{}
	}
	n.seen[name] = true
	return name
}
