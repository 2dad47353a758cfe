package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/weirui"
)

// PagesConfig configures Pages.
type PagesConfig struct {
	Finished int // jobs that have completed
	Failed   int
	Waiting  int
	Times    int // how often each page is opened
}

// Pages measures how long each page of the web UI takes in a log with very many jobs, and the longest statement behind it. Each time, nothing
// is remembered from the time before.
func Pages(ctx context.Context, d *load.Database, e load.Engine, c PagesConfig) (r *load.Report, err error) {
	if c.Finished < 1 || c.Failed < 0 || c.Waiting < 0 || c.Times < 5 {
		return nil, fmt.Errorf("bench: ui needs finished jobs and at least 5 times, got %d and %d", c.Finished, c.Times)
	}
	if r, err = d.Begin(ctx, "ui", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d jobs completed, %d failed, %d waiting; each page %d times, with nothing remembered", c.Finished, c.Failed, c.Waiting, c.Times)
	p := &pages{PagesConfig: c, d: d}
	config, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.ConnConfig.Tracer = 4, p
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	defer p.pool.Close()
	if err := p.fill(ctx, e); err != nil {
		return nil, fmt.Errorf("bench: fill: %w", err)
	}
	var all []float64
	for _, path := range p.paths(ctx) {
		took, statement, err := p.open(ctx, path)
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		s := load.SpreadOf(took)
		r.Operations = append(r.Operations, load.Operation{What: "page " + path, Times: s.Samples, Median: s.Median, Max: s.Max},
			load.Operation{What: "its longest statement", Times: s.Samples, Median: load.SpreadOf(statement).Median, Max: slices.Max(statement)})
		r.AtMost("ms, page "+path+", p95", p95(took), 100)
		r.AtMost("ms, its longest statement, p95", p95(statement), 50)
		all = append(all, took...)
	}
	r.AtMost("ms, all pages, p95", p95(all), 100)
	return r, nil
}

func p95(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)*95/100]
}

// pages is the state of a run of Pages. It traces the statements of its pool.
type pages struct {
	PagesConfig
	d    *load.Database
	pool *pgxpool.Pool

	mu      sync.Mutex
	longest time.Duration
}

type beganKey struct{}

// TraceQueryStart implements pgx.QueryTracer.
func (p *pages) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, beganKey{}, time.Now())
}

// TraceQueryEnd implements pgx.QueryTracer.
func (p *pages) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	began, _ := ctx.Value(beganKey{}).(time.Time)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.longest = max(p.longest, time.Since(began))
}

// fill makes the jobs: those that complete, those that fail, in two other queues, and those that wait, in a third. None of them is reclaimed.
func (p *pages) fill(ctx context.Context, e load.Engine) (err error) {
	if _, err := p.pool.Exec(ctx, `SELECT weir.set('completed_retention', '1 year'), weir.set('retention_bytes', (1::bigint << 40)::text)`); err != nil {
		return err
	}
	workers, client, err := p.d.Client(ctx, e, 4)
	if err != nil {
		return err
	}
	defer workers.Close()
	m := &load.Meter{}
	queues := map[string]int{"done": 2000, "failing": 100}
	stop, failed := load.Start(ctx, client, load.Work{Queues: queues, Recorded: m.Add})
	defer func() { err = errors.Join(err, stop()) }()
	const part = 100_000
	for made := 0; made < p.Finished; made += part {
		if err := client.Fill(ctx, "done", min(part, p.Finished-made)); err != nil {
			return err
		}
		if err := m.Reach(ctx, int64(made-part), failed); err != nil {
			return err
		}
		if made%1_000_000 == 0 {
			p.d.Say("ui: %d jobs enqueued", made)
		}
	}
	if err := m.Reach(ctx, int64(p.Finished), failed); err != nil {
		return err
	}
	if err := fail(ctx, p.pool, p.Failed); err != nil {
		return err
	}
	for made := 0; made < p.Waiting; made += part {
		if err := client.Fill(ctx, "waiting", min(part, p.Waiting-made)); err != nil {
			return err
		}
	}
	if err := p.minutes(ctx); err != nil {
		return err
	}
	return client.Fill(ctx, "few", 10)
}

// minutes makes a history of 72 hours, of ten queues, as if each had been busy all the time, with durations of which the longest is 45 times the shortest.
func (p *pages) minutes(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, `INSERT INTO weir.minute (at, ring, queue, upto, completed, failed, retried, sampled, waiting, oldest, waits, runs)
		SELECT t.at, weir._minute_ring(t.at), q.queue, CASE WHEN k.is_count THEN t.at + interval '1 minute' END, CASE WHEN k.is_count THEN 5000 END, CASE WHEN k.is_count THEN 10 END, CASE WHEN k.is_count THEN 20 END,
		  CASE WHEN k.is_count THEN 500 END, CASE WHEN NOT k.is_count THEN 100 END, CASE WHEN NOT k.is_count THEN interval '3 s' END, CASE WHEN k.is_count THEN h.h END, CASE WHEN k.is_count THEN h.h END
		FROM generate_series(date_trunc('minute', now()) - interval '72 hours', date_trunc('minute', now()) - interval '3 minutes', interval '1 minute') t(at)
		CROSS JOIN (SELECT '' AS queue UNION ALL SELECT 'q' || n FROM generate_series(1, 9) n) q CROSS JOIN (VALUES (true), (false)) k(is_count)
		CROSS JOIN (SELECT sum(200 * ('1e' || 12 * b)::numeric) AS h FROM generate_series(4, 15) b) h`)
	return err
}

// paths are the pages that are opened.
func (p *pages) paths(ctx context.Context) []string {
	all := []string{"", "queues", "queues/waiting", "queues/done", "failures", "failures?queue=broken", "jobs", "schedules", "flows", "workers", "channels", "storage", "operations", "history?hours=72", "jobs?queue=done&kind=none", "jobs?state=completed&kind=none", "jobs?text=none", "jobs?state=failed&queue=broken"}
	for _, s := range weir.States {
		all = append(all, "jobs?state="+string(s), "jobs?queue=done&state="+string(s))
	}
	for _, state := range []string{"completed", "failed", "available"} {
		var id int64
		if err := p.pool.QueryRow(ctx, `SELECT id FROM weir.jobs($1, NULL, 1)`, state).Scan(&id); err == nil {
			all = append(all, fmt.Sprintf("jobs/%d", id))
		}
	}
	return all
}

// open opens a page several times, and returns how long it took each time, and its longest statement.
func (p *pages) open(ctx context.Context, path string) (took, statement []float64, err error) {
	for n := range p.Times + 2 { // the first ones make plans
		ui, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: p.pool}}, Access: weirui.Open(weirui.Admin), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, nil, err
		}
		p.longest = 0
		w := httptest.NewRecorder()
		request := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1/"+path, nil)
		began := time.Now()
		ui.ServeHTTP(w, request)
		if w.Code != http.StatusOK {
			return nil, nil, fmt.Errorf("page %s answers %d: %s", path, w.Code, w.Body)
		}
		if n >= 2 {
			took = append(took, float64(time.Since(began).Microseconds())/1000)
			statement = append(statement, float64(p.longest.Microseconds())/1000)
		}
	}
	return took, statement, nil
}
