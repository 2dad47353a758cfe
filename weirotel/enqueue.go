package weirotel

import (
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-pg/weir"
)

// Enqueue is middleware for a client: Client.WithMiddleware(telemetry.Enqueue).
func (t *Telemetry) Enqueue(next weir.EnqueueFunc) weir.EnqueueFunc {
	return func(ctx context.Context, tx weir.Tx, jobs []weir.NewJob) ([]weir.Enqueued, error) {
		attrs := operation("enqueue", semconv.MessagingOperationTypeSend)
		name := "enqueue"
		if queue, same := queueOf(jobs); same {
			name += " " + queue
			attrs = append(attrs, semconv.MessagingDestinationName(queue))
		}
		if len(jobs) == 1 {
			attrs = append(attrs, kindKey.String(jobs[0].Args.Kind()))
		} else {
			attrs = append(attrs, semconv.MessagingBatchMessageCount(len(jobs)))
		}
		links, rest := t.created(jobs)
		kind := trace.SpanKindProducer
		if len(rest) == 0 { // the jobs have contexts of their own, so this span is not where they were created
			kind = trace.SpanKindClient
		}
		ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attrs...), trace.WithLinks(links...))
		defer span.End() // even if next panics
		t.keep(ctx, rest)
		began := time.Now()
		all, err := next(ctx, tx, jobs)
		var failure []attribute.KeyValue
		if err != nil {
			class := t.class(err)
			failure = append(failure, class)
			span.SetStatus(codes.Error, err.Error())
			span.SetAttributes(class)
		} else if len(all) == 1 {
			span.SetAttributes(semconv.MessagingMessageID(strconv.FormatInt(all[0].ID, 10)))
		}
		t.took(ctx, "enqueue", semconv.MessagingOperationTypeSend, time.Since(began), failure...)
		t.count(ctx, jobs, failure)
		return all, err
	}
}

// count counts jobs whose enqueueing succeeded or failed.
func (t *Telemetry) count(ctx context.Context, jobs []weir.NewJob, failure []attribute.KeyValue) {
	n := map[string]int64{}
	for _, job := range jobs {
		n[t.queues.bounded(job.Options.Queue)]++
	}
	for queue, n := range n {
		attrs := append(operation("enqueue", semconv.MessagingOperationTypeSend), semconv.MessagingDestinationName(queue))
		t.sent.Add(ctx, n, metric.WithAttributes(append(attrs, failure...)...))
	}
}

// queueOf returns the queue of all jobs, if they have the same.
func queueOf(jobs []weir.NewJob) (queue string, same bool) {
	for i, job := range jobs {
		if i > 0 && job.Options.Queue != queue {
			return "", false
		}
		queue = job.Options.Queue
	}
	return queue, len(jobs) > 0
}

// operation returns the attributes that all spans and metrics of an operation share.
func operation(name string, class attribute.KeyValue) []attribute.KeyValue {
	return []attribute.KeyValue{system, semconv.MessagingOperationName(name), class}
}

// took records how long an operation took.
func (t *Telemetry) took(ctx context.Context, name string, class attribute.KeyValue, d time.Duration, more ...attribute.KeyValue) {
	t.operation.Record(ctx, d.Seconds(), metric.WithAttributes(append(operation(name, class), more...)...))
}
