package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/relay"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirotel"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	dashboardFile = "../../../deploy/grafana/weir.json"
	rulesFile     = "../../../deploy/prometheus/weir.rules.yaml"
	patience      = time.Minute
)

type task struct {
	N int `json:"n"`
}

func (task) Kind() string { return "task" }

type stranger struct{}

func (stranger) Kind() string { return "stranger" }

// system is a database with a hub that runs the doctor, and a program that enqueues and works, and runs a relay. Both are scraped at these addresses.
type system struct {
	hub, program string
	work         func() // runs some more jobs, with all outcomes
}

func start(t *testing.T) system {
	t.Helper()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	bounded, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	hub, err := server.Start(bounded, server.Config{
		Database: url, ListenPG: "127.0.0.1:0", ListenHTTP: "127.0.0.1:0", Name: t.Name(), Doctor: true, Web: web.Config{Anonymous: true}, Logger: quiet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := hub.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	telemetry, err := weirotel.New(weirotel.Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
	if err != nil {
		t.Fatal(err)
	}
	client := weir.NewClient(pool).WithMiddleware(telemetry.Enqueue)
	registration, err := telemetry.Observe(client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := registration.Unregister(); err != nil {
			t.Error(err)
		}
	})
	relaying(t, registry, pool)
	program := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(program.Close)

	// A job of a kind without a handler, which the doctor reports.
	if _, err := client.Enqueue(t.Context(), stranger{}, &weir.Options{Queue: "tasks"}); err != nil {
		t.Fatal(err)
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(_ context.Context, job *weir.Job[task]) error {
		if job.Args.N%3 == 0 {
			return errors.New("no")
		}
		return nil
	})
	worker, err := client.NewWorker(weir.WorkerConfig{
		Handlers: handlers, Queues: map[string]int{"tasks": 4}, Hooks: []weir.Hooks{telemetry.Hooks()}, Logger: quiet(),
		Retry: func(int, error) time.Duration { return time.Millisecond },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }() // ends with the test
	t.Cleanup(func() {
		stop()
		if err := pgtest.Receive(t, ended, "the worker has stopped"); err != nil {
			t.Error(err)
		}
	})
	s := system{hub: "http://" + hub.HTTPAddr().String() + "/metrics", program: program.URL}
	s.work = func() {
		t.Helper()
		var last weir.Enqueued
		for n := range 9 {
			var err error
			if last, err = client.Enqueue(t.Context(), task{n}, &weir.Options{Queue: "tasks", MaxAttempts: 2}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := client.EnqueueMany(t.Context(), []weir.NewJob{{Args: task{}, Options: &weir.Options{Queue: strings.Repeat("x", 200)}}}); err == nil {
			t.Fatal("a queue with too long a name was accepted")
		}
		pgtest.Until(t, "the jobs are worked", func() bool {
			job, err := client.Job(t.Context(), last.ID)
			return err == nil && job.State == weir.StateCompleted
		})
		refused(t, strings.Replace(s.hub, "/metrics", "/v1/events", 1))
	}
	return s
}

// relaying runs a relay of messages that the registry has the metrics of.
func relaying(t *testing.T, registry prometheus.Registerer, pool *pgxpool.Pool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay.toml")
	if err := os.WriteFile(path, fmt.Appendf(nil, "[relay.copy]\nroute = [{ channels = \"orders\" }]\n[relay.copy.database]\nurl = %q\n", pgtest.Database(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	relays, err := relay.Open(t.Context(), relay.Config{Path: path, Log: quiet(), Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- relays.Run(ctx, pool) }() // ends with the test
	t.Cleanup(func() {
		stop()
		if err := pgtest.Receive(t, ended, "the relay has stopped"); err != nil {
			t.Error(err)
		}
		relays.Close()
	})
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, request)
}

// refused sends an anonymous hub a request for a host name that is not its own.
func refused(t *testing.T, url string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "elsewhere.example"
	do(t, request)
}

func do(t *testing.T, request *http.Request) string {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// query is a query of the dashboard.
type query struct{ panel, expr string }

func dashboard(t *testing.T) (all []query, text string) {
	t.Helper()
	text = read(t, dashboardFile)
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, query{p.Title, strings.NewReplacer("$__rate_interval", "1m", "$queue", ".*").Replace(target.Expr)})
		}
	}
	if len(all) < 20 {
		t.Fatalf("found only %d queries in the dashboard: the test proves nothing", len(all))
	}
	return all, text
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	ours   = regexp.MustCompile(`\b(?:weir|messaging)_[a-z_]+\b`)
	series = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? `)
	label  = regexp.MustCompile(`([a-z_]+)="`)
)

// TestDashboardAndAlertsAskForWhatThereIs: a hub, a program with weirotel, or a relay, exports every metric and label that the dashboard and the alerts use.
func TestDashboardAndAlertsAskForWhatThereIs(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.work()
	queries, text := dashboard(t)
	var wanted []string
	for _, q := range queries {
		wanted = append(wanted, ours.FindAllString(q.expr, -1)...)
	}
	wanted = append(wanted, ours.FindAllString(text, -1)...)
	wanted = append(wanted, ours.FindAllString(read(t, rulesFile), -1)...)
	pgtest.Eventually(t, func() error {
		there := map[string]bool{}
		for _, m := range series.FindAllStringSubmatch(get(t, s.hub)+get(t, s.program), -1) {
			there[m[1]] = true
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				there[l[1]] = true
			}
		}
		var missing []string
		for _, name := range wanted {
			if !there[name] && !slices.Contains(missing, name) {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("neither the hub, nor weirotel, nor a relay exports %s", strings.Join(missing, ", "))
		}
		return nil
	})
	// Both export the state of queues under the same names and labels.
	for _, name := range []string{"weir_queue_jobs", "weir_queue_oldest_seconds", "weir_queue_workers", "weir_queue_paused", "weir_queue_claimed_total"} {
		for _, from := range []string{s.hub, s.program} {
			if !regexp.MustCompile(`(?m)^` + name + `\{(.*,)?queue="tasks"`).MatchString(get(t, from)) {
				t.Errorf("%s does not export %s by queue", from, name)
			}
		}
	}
}
