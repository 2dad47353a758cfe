package oteltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weircrypt"
	"github.com/weir-pg/weir/weirotel"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type mail struct {
	N int `json:"n"`
}

func (mail) Kind() string { return "mail" }

// rig is a database and a client whose spans and metrics are collected.
type rig struct {
	*testing.T
	pool      *pgxpool.Pool
	telemetry *weirotel.Telemetry
	client    *weir.Client
	tracer    trace.Tracer
	spans     *tracetest.InMemoryExporter
	reader    *metric.ManualReader
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, pool: pgtest.Pool(t, pgtest.Database(t)), spans: tracetest.NewInMemoryExporter(), reader: metric.NewManualReader()}
	traces := sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans))
	var err error
	r.telemetry, err = weirotel.New(weirotel.Config{TracerProvider: traces, MeterProvider: metric.NewMeterProvider(metric.WithReader(r.reader))})
	if err != nil {
		t.Fatal(err)
	}
	r.tracer = traces.Tracer("test")
	r.client = weir.NewClient(r.pool).WithMiddleware(r.telemetry.Enqueue)
	return r
}

// work runs a worker until the end of the test; stop ends it earlier.
func (r *rig) work(run func(ctx context.Context, job *weir.Job[mail]) error) (stop func()) {
	r.Helper()
	handlers := weir.NewHandlers()
	weir.Handle(handlers, run)
	worker, err := r.client.NewWorker(weir.WorkerConfig{
		Handlers: handlers, Queues: map[string]int{"mail": 4}, Hooks: []weir.Hooks{r.telemetry.Hooks()},
		Retry: func(int, error) time.Duration { return time.Millisecond }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		r.Fatal(err)
	}
	// A worker may be started within a span, which has nothing to do with its jobs.
	ctx, span := r.tracer.Start(context.Background(), "main")
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }() // ends with stop
	stop = func() {
		r.Helper()
		if cancel(); ended != nil {
			if err := pgtest.Receive(r, ended, "the worker has stopped"); err != nil {
				r.Error(err)
			}
			span.End()
			ended = nil
		}
	}
	r.Cleanup(stop)
	return stop
}

func (r *rig) enqueue(ctx context.Context, n int, o weir.Options) int64 {
	r.Helper()
	o.Queue = "mail"
	job, err := r.client.Enqueue(ctx, mail{n}, &o)
	if err != nil {
		r.Fatal(err)
	}
	return job.ID
}

// await waits until n spans with the name have ended, and returns them.
func (r *rig) await(name string, n int) (found []tracetest.SpanStub) {
	r.Helper()
	pgtest.Eventually(r, func() error {
		found = nil
		for _, s := range r.spans.GetSpans() {
			if s.Name == name {
				found = append(found, s)
			}
		}
		if len(found) < n {
			return fmt.Errorf("%d spans are named %q, want %d", len(found), name, n)
		}
		return nil
	})
	return found
}

// attributes returns the attributes of a span as text, by key.
func attributes(s tracetest.SpanStub) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

func (r *rig) expect(s tracetest.SpanStub, kind trace.SpanKind, want map[string]string) {
	r.Helper()
	if got := attributes(s); fmt.Sprint(got) != fmt.Sprint(want) || s.SpanKind != kind {
		r.Errorf("span %q of kind %s has %v, want %v and kind %s", s.Name, s.SpanKind, got, want, kind)
	}
}

// TestAJobIsOneTraceFromEnqueueToWork: the enqueueing and the first attempt are one trace, and each later attempt is a trace of its own
// that links to the enqueueing.
func TestAJobIsOneTraceFromEnqueueToWork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(func(ctx context.Context, job *weir.Job[mail]) error {
		_, span := r.tracer.Start(ctx, fmt.Sprint("within attempt ", job.Attempt))
		defer span.End()
		if job.Attempt == 1 {
			return errors.New("no connection")
		}
		return nil
	})
	ctx, request := r.tracer.Start(t.Context(), "request")
	id := r.enqueue(ctx, 1, weir.Options{Meta: map[string]string{"tenant": "a"}})
	request.End()

	attempts := r.await("work mail", 2)
	sent := r.await("enqueue mail", 1)[0]
	r.expect(sent, trace.SpanKindProducer, map[string]string{
		"messaging.system": "weir", "messaging.operation.name": "enqueue", "messaging.operation.type": "send", "messaging.destination.name": "mail",
		"messaging.message.id": fmt.Sprint(id), "messaging.weir.kind": "mail",
	})
	if sent.Parent.SpanID() != request.SpanContext().SpanID() {
		t.Errorf("the parent of the enqueue is %v, want the request", sent.Parent)
	}
	first, second := attempts[0], attempts[1]
	worked := map[string]string{
		"messaging.system": "weir", "messaging.operation.name": "work", "messaging.operation.type": "process", "messaging.destination.name": "mail",
		"messaging.message.id": fmt.Sprint(id), "messaging.weir.kind": "mail", "messaging.weir.attempt": "1", "messaging.weir.outcome": "retried",
		"error.type": "*errors.errorString",
	}
	r.expect(first, trace.SpanKindConsumer, worked)
	worked["messaging.weir.attempt"], worked["messaging.weir.outcome"] = "2", "completed"
	delete(worked, "error.type")
	r.expect(second, trace.SpanKindConsumer, worked)
	if first.Parent.SpanID() != sent.SpanContext.SpanID() || first.SpanContext.TraceID() != request.SpanContext().TraceID() {
		t.Errorf("the first attempt's parent is %v, want the enqueue", first.Parent)
	}
	if second.Parent.IsValid() || second.SpanContext.TraceID() == first.SpanContext.TraceID() {
		t.Errorf("the second attempt's parent is %v, want none", second.Parent)
	}
	for _, s := range attempts {
		if len(s.Links) != 1 || s.Links[0].SpanContext.SpanID() != sent.SpanContext.SpanID() {
			t.Errorf("attempt %s links to %v, want the enqueue", attributes(s)["messaging.weir.attempt"], s.Links)
		}
	}
	if first.Status.Code != codes.Error || first.Status.Description != "no connection" || second.Status.Code != codes.Unset {
		t.Errorf("the statuses are %v and %v", first.Status, second.Status)
	}
	for i, s := range attempts {
		within := r.await(fmt.Sprint("within attempt ", i+1), 1)[0]
		if within.Parent.SpanID() != s.SpanContext.SpanID() || within.StartTime.Before(s.StartTime) {
			t.Errorf("the span made by the handler of attempt %d is not a child of the attempt's span", i+1)
		}
	}
}

// TestErrorsOfEncryptedJobsAreNotTraced: the span of an attempt at an encrypted job has the type of its error, and not its text or stack.
func TestErrorsOfEncryptedJobsAreNotTraced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	codec, err := weircrypt.New(weircrypt.Key{ID: "k1", Secret: make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	r.client = r.client.WithCodec(codec)
	r.work(func(_ context.Context, job *weir.Job[mail]) error {
		if job.Attempt == 1 {
			return errors.New("hunter2")
		}
		panic("hunter2")
	})
	r.enqueue(t.Context(), 1, weir.Options{MaxAttempts: 2})
	for i, class := range []string{"*errors.errorString", "panic"} {
		span := r.await("work mail", 2)[i]
		if text := fmt.Sprintf("%+v", span); strings.Contains(text, "hunter2") || len(span.Events) != 0 || span.Status.Code != codes.Error || attributes(span)["error.type"] != class {
			t.Errorf("the span of attempt %d is %s", i+1, text)
		}
	}
}

// TestManyJobsAreOneSpanThatEachIsWorkedUnder: EnqueueMany makes one span, in the caller's transaction too, and every job's attempt is its child.
func TestManyJobsAreOneSpanThatEachIsWorkedUnder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(func(context.Context, *weir.Job[mail]) error { return nil })
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	jobs := []weir.NewJob{{Args: mail{1}, Options: &weir.Options{Queue: "mail"}}, {Args: mail{2}, Options: &weir.Options{Queue: "mail"}}, {Args: mail{3}}}
	if _, err := r.client.EnqueueManyTx(t.Context(), tx, jobs); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	sent := r.await("enqueue", 1)[0] // they go to two queues
	r.expect(sent, trace.SpanKindProducer, map[string]string{
		"messaging.system": "weir", "messaging.operation.name": "enqueue", "messaging.operation.type": "send", "messaging.batch.message_count": "3",
	})
	for _, s := range r.await("work mail", 2) {
		if s.Parent.SpanID() != sent.SpanContext.SpanID() || len(s.Links) != 1 {
			t.Errorf("an attempt's parent is %v and its links are %v, want the enqueue", s.Parent, s.Links)
		}
	}
}

// TestABatchLinksToTheContextsThatItsJobsCarry: once to each, and is the producer of the jobs that carry none.
func TestABatchLinksToTheContextsThatItsJobsCarry(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	job := func(span string) weir.NewJob {
		o := &weir.Options{Queue: "mail"}
		if span != "" {
			o.Meta = map[string]any{weirotel.MetaKey: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-" + span + "-01"}}
		}
		return weir.NewJob{Args: mail{1}, Options: o}
	}
	const first, second = "b7ad6b7169203331", "00f067aa0ba902b7"
	for _, c := range []struct {
		spans []string
		kind  trace.SpanKind
		links []string
	}{
		{[]string{first, "", second, first}, trace.SpanKindProducer, []string{first, second}},
		{[]string{first, second, first}, trace.SpanKindClient, []string{first, second}},
		{[]string{"", ""}, trace.SpanKindProducer, nil},
	} {
		r.spans.Reset()
		var jobs []weir.NewJob
		for _, span := range c.spans {
			jobs = append(jobs, job(span))
		}
		if _, err := r.client.EnqueueMany(t.Context(), jobs); err != nil {
			t.Fatal(err)
		}
		sent := r.await("enqueue mail", 1)
		var links []string
		for _, link := range sent[0].Links {
			links = append(links, link.SpanContext.SpanID().String())
		}
		if len(sent) != 1 || sent[0].SpanKind != c.kind || !slices.Equal(links, c.links) || attributes(sent[0])["messaging.batch.message_count"] != fmt.Sprint(len(jobs)) {
			t.Errorf("%q: %d spans, the first of kind %s with links to %v and %v; want kind %s and links to %v", c.spans, len(sent), sent[0].SpanKind, links, attributes(sent[0]), c.kind, c.links)
		}
	}
}

// TestMetaOfTheCallersIsKept: the caller's other keys and its own trace context stay in the meta, and meta that is not an object is refused.
func TestMetaOfTheCallersIsKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	own := map[string]any{"a": []int{1}, weirotel.MetaKey: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	meta := func(id int64) (fields map[string]json.RawMessage) {
		t.Helper()
		job, err := r.client.Job(t.Context(), id)
		if err == nil {
			err = json.Unmarshal(job.Meta, &fields)
		}
		if err != nil {
			t.Fatal(err)
		}
		return fields
	}
	if got := meta(r.enqueue(t.Context(), 1, weir.Options{Meta: own})); string(got["a"]) != "[1]" || !strings.Contains(string(got[weirotel.MetaKey]), "b7ad6b7169203331") {
		t.Errorf("the meta is %s, want the caller's", got)
	}
	if got := meta(r.enqueue(t.Context(), 2, weir.Options{Meta: map[string]int{weirotel.MetaKey: 7}})); string(got[weirotel.MetaKey]) != "7" {
		t.Errorf("the meta is %s, want the caller's", got)
	}
	if _, err := r.client.Enqueue(t.Context(), mail{3}, &weir.Options{Meta: []int{1}}); err == nil {
		t.Error("meta that is not an object was accepted")
	}
	sent := append(r.await("enqueue mail", 2), r.await("enqueue default", 1)...)
	for i, want := range []trace.SpanKind{trace.SpanKindClient, trace.SpanKindClient, trace.SpanKindProducer} { // the first two jobs have contexts
		if sent[i].SpanKind != want {
			t.Errorf("span %d is of kind %s, want %s", i, sent[i].SpanKind, want)
		}
	}
	if links := sent[0].Links; len(links) != 1 || links[0].SpanContext.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("the enqueue links to %v, want the caller's context", links)
	}
	if len(sent[1].Links) != 0 || sent[2].Status.Code != codes.Error {
		t.Errorf("got %+v and %+v", sent[1], sent[2])
	}
	r.work(func(context.Context, *weir.Job[mail]) error { return nil })
	for _, s := range r.await("work mail", 2) {
		its := attributes(s)["messaging.message.id"] == attributes(sent[0])["messaging.message.id"]
		if parent := s.Parent.SpanID().String() == "b7ad6b7169203331"; parent != its {
			t.Errorf("the parent of %v is %v", attributes(s), s.Parent)
		}
	}
}

// TestWhatIsTracedAndCountedIsWhatWasRecorded: spans and metrics have the outcome that the database recorded: retried for a handler that
// succeeded without committing its completion, and lost for an attempt whose job another worker holds.
func TestWhatIsTracedAndCountedIsWhatWasRecorded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	started, release := make(chan struct{}), make(chan struct{})
	r.work(func(ctx context.Context, job *weir.Job[mail]) error {
		switch {
		case job.Attempt > 1:
		case job.Args.N == 1:
			tx, err := r.pool.Begin(ctx)
			if err != nil {
				return err
			}
			return errors.Join(job.CompleteTx(ctx, tx), tx.Rollback(ctx))
		case job.Args.N == 2:
			started <- struct{}{}
			<-release
		case job.Args.N == 3:
			panic("ouch")
		case job.Args.N == 4 && job.PutOff == 0:
			return weir.Snooze(time.Millisecond)
		case job.Args.N == 5:
			return weir.Cancel(errors.New("needless"))
		}
		return nil
	})
	names := map[string]int{}
	for n := 1; n <= 5; n++ {
		names[fmt.Sprint(r.enqueue(t.Context(), n, weir.Options{MaxAttempts: 2}))] = n
	}
	pgtest.Receive(t, started, "the job starts")
	r.await("work mail", 7)
	// The second is taken from its worker, and rescued.
	workers, err := r.client.Workers(t.Context())
	if err != nil || len(workers) != 1 {
		t.Fatal(workers, err)
	}
	pgtest.Eventually(t, func() (err error) {
		var fenced bool
		if err = r.pool.QueryRow(t.Context(), `SELECT weir._fence($1, 'test')`, workers[0].ID).Scan(&fenced); err == nil && !fenced {
			err = errors.New("the worker is not fenced yet")
		}
		return err
	})
	close(release)
	got := map[int][]string{}
	for _, s := range r.await("work mail", 9) {
		a := attributes(s)
		n := names[a["messaging.message.id"]]
		got[n] = append(got[n], strings.TrimSpace(a["messaging.weir.outcome"]+" "+a["error.type"]))
	}
	want := map[int][]string{
		1: {"completed", "retried *errors.errorString"}, 2: {"completed", "lost lost"}, 3: {"completed", "retried panic"},
		4: {"completed", "snoozed"}, 5: {"cancelled"},
	}
	for _, ends := range got { // the order of two depends on when the worker learns that it was fenced
		slices.Sort(ends)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the attempts ended %v, want %v", got, want)
	}
	rescue := attributes(r.await("rescue", 1)[0])
	lost := ""
	for id, n := range names {
		if n == 2 {
			lost = id
		}
	}
	if rescue["messaging.weir.jobs"] != "["+lost+"]" || rescue["messaging.weir.reason"] != "test" || rescue["messaging.weir.worker"] != fmt.Sprint(workers[0].ID) {
		t.Errorf("the rescue is %v, want job %s", rescue, lost)
	}

	outcomes := map[string]int{}
	for _, p := range histogram(t, r, "messaging.process.duration") {
		if value(p.Attributes, "messaging.weir.kind") != "mail" || value(p.Attributes, "messaging.destination.name") != "mail" {
			t.Errorf("a data point has the attributes %v", p.Attributes)
		}
		outcomes[value(p.Attributes, "messaging.weir.outcome")] += int(p.Count)
	}
	if fmt.Sprint(outcomes) != "map[cancelled:1 completed:4 lost:1 retried:2 snoozed:1]" {
		t.Errorf("counted %v", outcomes)
	}
	if n := sum(t, r, "weir.jobs.rescued"); n != 1 {
		t.Errorf("%d rescues are counted, want 1", n)
	}
	if n := sum(t, r, "messaging.client.sent.messages"); n != 5 {
		t.Errorf("%d jobs are counted as enqueued, want 5", n)
	}
	operations := map[string]bool{}
	for _, p := range histogram(t, r, "messaging.client.operation.duration") {
		operations[value(p.Attributes, "messaging.operation.name")] = true
	}
	if !operations["enqueue"] || !operations["claim"] || !operations["record"] {
		t.Errorf("the operations are %v, want enqueue, claim and record", operations)
	}
}

// TestQueuesAreObserved: the state of queues is observed, and a database that does not answer delays no collection for long.
func TestQueuesAreObserved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	registration, err := r.telemetry.Observe(r.client)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		r.enqueue(t.Context(), n, weir.Options{})
	}
	r.enqueue(t.Context(), 4, weir.Options{RunAt: time.Now().Add(time.Hour)})
	if err := r.client.PauseQueue(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	depth := map[string]int64{}
	for _, p := range gauge[int64](t, r, "weir.queue.jobs") {
		depth[value(p.Attributes, "queue")+" "+value(p.Attributes, "state")] = p.Value
	}
	if depth["mail available"] != 3 || depth["mail scheduled"] != 1 || depth["mail running"] != 0 || len(depth) != 3 {
		t.Errorf("the depths are %v, want 3 available and 1 scheduled", depth)
	}
	if oldest := gauge[float64](t, r, "weir.queue.oldest"); len(oldest) != 1 || oldest[0].Value <= 0 || oldest[0].Value > 600 {
		t.Errorf("the oldest is %v", oldest)
	}
	if paused := gauge[int64](t, r, "weir.queue.paused"); len(paused) != 1 || paused[0].Value != 1 {
		t.Errorf("paused is %v, want 1", paused)
	}
	// All connections are in use, and none is released.
	for range r.pool.Config().MaxConns {
		conn, err := r.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	var all metricdata.ResourceMetrics
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.reader.Collect(ctx, &all); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("the collection ended with %v, want that the database did not answer in time", err)
	}
	if err := registration.Unregister(); err != nil {
		t.Error(err)
	}
	if got := gauge[int64](t, r, "weir.queue.jobs"); len(got) != 0 {
		t.Errorf("%v is still observed", got)
	}
}

// TestAttributesOfMetricsAreBounded: the number of attribute values is limited, although programs may use any number of kinds and queues.
func TestAttributesOfMetricsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	enqueue := r.telemetry.Enqueue(func(_ context.Context, _ weir.Tx, jobs []weir.NewJob) ([]weir.Enqueued, error) {
		return make([]weir.Enqueued, len(jobs)), nil
	})
	for n := range 300 {
		job := weir.NewJob{Args: mail{n}, Options: &weir.Options{Queue: fmt.Sprint("queue ", n)}}
		if _, err := enqueue(t.Context(), nil, []weir.NewJob{job}); err != nil {
			t.Fatal(err)
		}
	}
	points, others := 0, int64(0)
	for _, p := range collect[metricdata.Sum[int64]](t, r, "messaging.client.sent.messages").DataPoints {
		points++
		if value(p.Attributes, "messaging.destination.name") == "_OTHER" {
			others = p.Value
		}
	}
	if points != 101 || others != 200 {
		t.Errorf("there are %d series, and %d jobs of other queues, want 101 and 200", points, others)
	}
}

func value(s attribute.Set, key string) string {
	v, _ := s.Value(attribute.Key(key))
	return v.String()
}

// collect reads one metric, or its zero value if it does not exist.
func collect[D metricdata.Aggregation](t *testing.T, r *rig, name string) (found D) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			if m.Name == name {
				found = m.Data.(D)
			}
		}
	}
	return found
}

func histogram(t *testing.T, r *rig, name string) []metricdata.HistogramDataPoint[float64] {
	t.Helper()
	return collect[metricdata.Histogram[float64]](t, r, name).DataPoints
}

func gauge[N int64 | float64](t *testing.T, r *rig, name string) []metricdata.DataPoint[N] {
	t.Helper()
	return collect[metricdata.Gauge[N]](t, r, name).DataPoints
}

func sum(t *testing.T, r *rig, name string) (n int64) {
	t.Helper()
	for _, p := range collect[metricdata.Sum[int64]](t, r, name).DataPoints {
		n += p.Value
	}
	return n
}
