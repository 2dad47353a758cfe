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

// keep puts the span's context into the jobs' metas, and returns the contexts that some of them already had.
func (t *Telemetry) keep(ctx context.Context, jobs []weir.NewJob) (found []trace.SpanContext) {
	injected := propagation.MapCarrier{}
	t.propagator.Inject(ctx, injected)
	for _, job := range jobs {
		if own, ok := carried(job.Options.Meta); ok {
			if remote := t.remote(own); remote.IsValid() {
				found = append(found, remote)
			}
			continue
		}
		if len(injected) > 0 {
			_ = job.Options.SetMeta(MetaKey, injected) // the database refuses meta that is not an object
		}
	}
	return found
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
