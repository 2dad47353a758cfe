// Package weirotel provides OpenTelemetry traces and metrics of Weir's jobs.
//
//	telemetry, err := weirotel.New(weirotel.Config{})
//	client := weir.NewClient(pool).WithMiddleware(telemetry.Enqueue)
//	worker, err := client.NewWorker(weir.WorkerConfig{
//		Handlers: handlers,
//		Queues:   map[string]int{"mail": 8},
//		Hooks:    []weir.Hooks{telemetry.Hooks()},
//	})
//	registration, err := telemetry.Observe(client) // metrics of queues; one process is enough
//	defer registration.Unregister()
//
// # Spans
//
// The spans follow version 1.43.0 of the semantic conventions for messaging. A call that enqueues is a producer span, "enqueue mail"; its
// context is stored in each job's meta under [MetaKey], and each attempt is a consumer span, "work mail", that links to it. The first
// attempt is also its child; later attempts are traces of their own, because they may follow a day later. EnqueueMany makes one send
// span for all its jobs, with their number, and no create span for each, which the conventions leave open: 10,000 spans would cost more than
// enqueueing 10,000 jobs. If all jobs of a call carry a context of the caller's (see [MetaKey]), the span is a client span that links to
// these contexts, because the jobs were created elsewhere. The span of an attempt lasts as long as its handler, and ends when the database has recorded how the attempt ended: its
// messaging.weir.outcome is the recorded outcome, whatever the handler returned. If the end of an attempt can't be recorded, because the
// job was given to another worker, its outcome is "lost". The rescue of a lost worker's jobs is a span with the ids of these jobs. The
// span of an enqueue in your own transaction does not show whether the transaction was committed.
//
// # Metrics
//
//	messaging.process.duration            how long handlers took, by queue, kind, outcome as recorded, and error.type
//	messaging.client.sent.messages        jobs enqueued, by queue and error.type
//	messaging.client.operation.duration   how long calls to enqueue, claim and record took
//	weir.job.wait.duration                time between when an attempt became available and when its handler started, by queue and kind
//	weir.jobs.rescued                     jobs rescued from lost workers
//	weir.queue.jobs                       available, running and scheduled jobs of a queue, by state
//	weir.queue.oldest                     how long the oldest available job has been waiting
//	weir.queue.claimed                    attempts claimed by workers
//	weir.queue.workers                    workers of a queue
//	weir.queue.paused                     1 for a queue that is paused
//
// Queue and kind are attributes. Beyond the first 100 values of each, and beyond 500 observed queues, the value is _OTHER. A job's wait is
// the difference between the clocks of the server and the worker.
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

// Config specifies where telemetry goes. The zero value uses OpenTelemetry's global providers and W3C Trace Context.
type Config struct {
	TracerProvider trace.TracerProvider          // nil: otel.GetTracerProvider()
	MeterProvider  metric.MeterProvider          // nil: otel.GetMeterProvider()
	Propagator     propagation.TextMapPropagator // format of the context in a job's meta; nil: propagation.TraceContext{}
}

// Telemetry makes spans and records metrics. It is safe for concurrent use by any number of clients and workers.
type Telemetry struct {
	tracer     trace.Tracer
	meter      metric.Meter
	propagator propagation.TextMapPropagator

	process, wait, operation metric.Float64Histogram
	sent, rescued            metric.Int64Counter

	queues, kinds, errors names
}

const scope = "github.com/weir-pg/weir/weirotel"

// Attributes that this package adds to those of the conventions.
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

// seconds are the buckets of the conventions, and longer ones, because jobs may run long and wait even longer.
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
		metric.WithDescription("How long handlers took, measured when the end of the attempt has been recorded."))
	t.wait, errs[1] = t.meter.Float64Histogram("weir.job.wait.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time between when an attempt became available and when its handler started."))
	t.operation, errs[2] = t.meter.Float64Histogram("messaging.client.operation.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("How long calls to enqueue, claim and record took."))
	t.sent, errs[3] = t.meter.Int64Counter("messaging.client.sent.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Jobs whose enqueueing succeeded or failed."))
	t.rescued, errs[4] = t.meter.Int64Counter("weir.jobs.rescued", metric.WithUnit("{job}"),
		metric.WithDescription("Jobs rescued from lost workers."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("weirotel: %w", err)
	}
	t.rescued.Add(context.Background(), 0) // so that the first rescue is an increase
	return t, nil
}

// names limits the number of values of an attribute.
type names struct {
	mu   sync.RWMutex
	seen map[string]bool
}

const (
	maxNames = 100
	other    = "_OTHER"
)

// bounded returns the name, or other if the names before it have reached the limit.
func (n *names) bounded(name string) string {
	n.mu.RLock()
	known, full := n.seen[name], len(n.seen) >= maxNames
	n.mu.RUnlock()
	switch {
	case known:
		return name
	case full:
		return other
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.seen[name] && len(n.seen) >= maxNames {
		return other
	}
	if n.seen == nil {
		n.seen = map[string]bool{}
	}
	n.seen[name] = true
	return name
}
