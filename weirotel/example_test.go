package weirotel_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirotel"
)

// A job is one trace from where it is enqueued to where it is worked.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, pgtest.Shared("examples")) // os.Getenv("DATABASE_URL")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	spans := tracetest.NewInMemoryExporter() // in your program: an exporter of OTLP
	traces := sdk.NewTracerProvider(sdk.WithSyncer(spans))

	telemetry, err := weirotel.New(weirotel.Config{TracerProvider: traces}) // without it: OpenTelemetry's global providers
	if err != nil {
		log.Fatal(err)
	}
	client := weir.NewClient(pool).WithMiddleware(telemetry.Enqueue)
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[mail]) error {
		stop() // this ends the example
		return nil
	})
	worker, err := client.NewWorker(weir.WorkerConfig{
		Handlers: handlers,
		Queues:   map[string]int{"mail": 8},
		Hooks:    []weir.Hooks{telemetry.Hooks()},
		Logger:   slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		log.Fatal(err)
	}

	if _, err := client.Enqueue(ctx, mail{1}, &weir.Options{Queue: "mail"}); err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	ended := spans.GetSpans()
	for _, span := range ended {
		fmt.Println(span.Name, "in the same trace:", span.SpanContext.TraceID() == ended[0].SpanContext.TraceID())
	}
	// Output:
	// enqueue mail in the same trace: true
	// work mail in the same trace: true
}
