package weirotel

import (
	"context"
	"encoding/json"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-pg/weir"
)

// MetaKey is the key in a job's meta that holds the context of the span that enqueued the job: an object with traceparent and tracestate, in
// the format of W3C Trace Context. An existing value is kept, so a program that enqueues by SQL, or has another context for the job, can set it.
const MetaKey = "weir.otel"

// maxLinks is the maximum number of links of a span; by default, the SDK keeps up to 128.
const maxLinks = 100

// created returns links to the contexts that jobs carry already, and the jobs that carry none.
func (t *Telemetry) created(jobs []weir.NewJob) (links []trace.Link, rest []weir.NewJob) {
	linked := map[trace.SpanID]bool{}
	for _, job := range jobs {
		own, ok := carried(job.Options.Meta)
		if !ok {
			rest = append(rest, job)
			continue
		}
		remote := t.remote(own)
		if remote.IsValid() && !linked[remote.SpanID()] && len(links) < maxLinks {
			linked[remote.SpanID()] = true
			links = append(links, trace.Link{SpanContext: remote})
		}
	}
	return links, rest
}

// keep puts the span's context into the jobs' metas.
func (t *Telemetry) keep(ctx context.Context, jobs []weir.NewJob) {
	injected := propagation.MapCarrier{}
	t.propagator.Inject(ctx, injected)
	if len(injected) == 0 {
		return
	}
	for _, job := range jobs {
		_ = job.Options.SetMeta(MetaKey, injected) // enqueueing refuses meta that is not an object
	}
}

// carried returns the value of MetaKey in a job's meta.
func carried(meta any) (propagation.MapCarrier, bool) {
	if meta == nil {
		return nil, false
	}
	text, ok := meta.(json.RawMessage)
	if !ok {
		var err error
		if text, err = json.Marshal(meta); err != nil {
			return nil, false
		}
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, false
	}
	mine, ok := fields[MetaKey]
	if !ok {
		return nil, false
	}
	var carrier propagation.MapCarrier
	_ = json.Unmarshal(mine, &carrier) // another value is not a context; it is kept
	return carrier, true
}

// remote returns the context of the span that enqueued the job, if it is known.
func (t *Telemetry) remote(carrier propagation.MapCarrier) trace.SpanContext {
	return trace.SpanContextFromContext(t.propagator.Extract(context.Background(), carrier))
}
