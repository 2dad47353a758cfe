package weirotel

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-pg/weir"
)

// Hooks returns the hooks for WorkerConfig.Hooks.
func (t *Telemetry) Hooks() weir.Hooks {
	return weir.Hooks{
		Start: t.start,
		End:   t.end,
		Claimed: func(_ int, took time.Duration) {
			t.took(context.Background(), "claim", semconv.MessagingOperationTypeReceive, took)
		},
		Recorded: func(_ int, took time.Duration) {
			t.took(context.Background(), "record", semconv.MessagingOperationTypeSettle, took)
		},
		Rescued: t.rescue,
	}
}

// attempt is kept in the handler's context from the start of an attempt to its end.
type attempt struct {
	span  trace.Span
	began time.Time // when the handler started
}

type attemptKeyType struct{}

func (t *Telemetry) start(ctx context.Context, job weir.JobMeta) context.Context {
	began := time.Now()
	carrier, _ := carried(job.Meta)
	first := job.Attempt == 1 && job.PutOff == 0
	t.wait.Record(ctx, max(began.Sub(job.ReadyAt), 0).Seconds(),
		metric.WithAttributes(attribute.String("queue", t.queues.bounded(job.Queue)), attribute.String("kind", t.kinds.bounded(job.Kind))))
	attrs := append(operation("work", semconv.MessagingOperationTypeProcess), semconv.MessagingDestinationName(job.Queue),
		semconv.MessagingMessageID(strconv.FormatInt(job.ID, 10)), kindKey.String(job.Kind), attemptKey.Int(job.Attempt))
	if job.PutOff > 0 {
		attrs = append(attrs, putOffKey.Int(job.PutOff))
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attrs...), trace.WithTimestamp(began)}
	remote := t.remote(carrier)
	if remote.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: remote}))
	}
	// The span in which the worker runs, if any, has nothing to do with the job.
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	if len(carrier) > 0 {
		ctx = t.propagator.Extract(ctx, carrier)
	}
	if !first || !remote.IsValid() {
		options = append(options, trace.WithNewRoot())
	}
	ctx, span := t.tracer.Start(ctx, "work "+job.Queue, options...)
	return context.WithValue(ctx, attemptKeyType{}, attempt{span, time.Now()})
}

func (t *Telemetry) end(ctx context.Context, job weir.JobMeta, outcome weir.Outcome, took time.Duration, err error) {
	a, ok := ctx.Value(attemptKeyType{}).(attempt)
	if !ok {
		return
	}
	at := a.began.Add(took)
	attrs := append(operation("work", semconv.MessagingOperationTypeProcess), semconv.MessagingDestinationName(t.queues.bounded(job.Queue)),
		kindKey.String(t.kinds.bounded(job.Kind)), outcomeKey.String(string(outcome)))
	a.span.SetAttributes(outcomeKey.String(string(outcome)))
	switch outcome {
	case weir.OutcomeFailed, weir.OutcomeRetried, weir.OutcomeLost:
		class := t.class(err)
		if outcome == weir.OutcomeLost { // whatever the handler returned
			class = semconv.ErrorTypeKey.String(string(outcome))
		}
		attrs = append(attrs, class)
		a.span.SetAttributes(class)
		var panicked *weir.PanicError
		if job.Encrypted { // what it stores must not be in traces
			a.span.SetStatus(codes.Error, "the text of the error is encrypted with the job")
		} else if errors.As(err, &panicked) { // its text contains the stack
			a.span.SetStatus(codes.Error, "panic")
			a.span.RecordError(err, trace.WithTimestamp(at), trace.WithAttributes(semconv.ExceptionStacktrace(string(panicked.Stack))))
		} else if err != nil {
			a.span.SetStatus(codes.Error, err.Error())
			a.span.RecordError(err, trace.WithTimestamp(at))
		} else {
			a.span.SetStatus(codes.Error, "")
		}
	}
	a.span.End(trace.WithTimestamp(at))
	t.process.Record(ctx, took.Seconds(), metric.WithAttributes(attrs...))
}

// maxIDs limits the number of job ids in a span.
const maxIDs = 100

func (t *Telemetry) rescue(r weir.Rescue) {
	ctx := context.Background()
	t.rescued.Add(ctx, int64(len(r.Jobs)))
	_, span := t.tracer.Start(ctx, "rescue", trace.WithNewRoot(), trace.WithAttributes(system, workerKey.Int64(int64(r.Worker)), reasonKey.String(r.Reason),
		semconv.MessagingBatchMessageCount(len(r.Jobs)), jobsKey.Int64Slice(r.Jobs[:min(len(r.Jobs), maxIDs)])))
	span.End()
}

// class returns the error.type of an error. It has few values, because there are few types.
func (t *Telemetry) class(err error) attribute.KeyValue {
	var panicked *weir.PanicError
	switch {
	case err == nil:
		return semconv.ErrorTypeOther
	case errors.As(err, &panicked):
		return semconv.ErrorTypeKey.String("panic")
	case errors.Is(err, context.DeadlineExceeded):
		return semconv.ErrorTypeKey.String("timeout")
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) { // skip wrappers that only add where it happened
		err = inner
	}
	return semconv.ErrorTypeKey.String(t.errors.bounded(semconv.ErrorType(err).Value.AsString()))
}
