package weirotel

import (
	"context"
	"encoding/json"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-pg/weir"
)

// MetaKey is the key of a job's meta under which the context of the span that enqueued it is kept: an object with traceparent and tracestate, as
// W3C Trace Context has them. What is there already is left as it is: so a program that enqueues by SQL, or has a context of its own for the job, can set it.
const MetaKey = "weir.otel"

// keep puts the span's context into the jobs' metas, and returns those that were there.
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
			_ = job.Options.SetMeta(MetaKey, injected) // meta that is not an object is refused further in
		}
	}
	return found
}

// carried is what a job's meta has under MetaKey.
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
	_ = json.Unmarshal(mine, &carrier) // something else is no context, and is not to be replaced
	return carrier, true
}

// remote is the context of the span that enqueued the job, if it is known.
func (t *Telemetry) remote(carrier propagation.MapCarrier) trace.SpanContext {
	return trace.SpanContextFromContext(t.propagator.Extract(context.Background(), carrier))
}
