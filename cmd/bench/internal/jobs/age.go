// Package jobs measures Weir's jobs in other respects than their rate: under a pinned horizon, in a log that has grown, with many workers, and in memory.
package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// AgeConfig configures Age.
type AgeConfig struct {
	Jobs      int     // number of jobs, which are enqueued and worked one by one
	Queues    int     // number of their queues
	Scheduled int     // number of jobs scheduled for a distant time
	Failing   float64 // percentage of attempts that fail
	Clients   int     // number of connections that enqueue; default 8
}

// ageTimeout limits each wait for something that others do, such as the reclaiming of a segment.
const ageTimeout = 2 * time.Minute

// Age fills Weir's log in the way that a steady flow does, with one job per transaction and a few per batch, and then measures inspections,
// cancellations, claims, and reclaiming.
func Age(ctx context.Context, d *load.Database, e load.Engine, c AgeConfig) (r *load.Report, err error) {
	c.Clients = cmp.Or(c.Clients, 8)
	if c.Jobs < 1000 || c.Queues < 1 || c.Queues > 10_000 || c.Scheduled < 0 || c.Failing < 0 || c.Failing > 100 {
		return nil, fmt.Errorf("bench: age needs at least 1000 jobs, 1 to 10000 queues and 0 to 100 percent of failures, got %d jobs, %d queues, %d scheduled and %g percent",
			c.Jobs, c.Queues, c.Scheduled, c.Failing)
	}
	if r, err = d.Begin(ctx, "age", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d jobs over %d queues, each enqueued in a transaction of its own from %d connections while one worker works, %g%% of the attempts failing; then %d scheduled for next year",
		c.Jobs, c.Queues, c.Clients, c.Failing, c.Scheduled)
	a := &aging{d: d, AgeConfig: c}
	if err := a.fill(ctx, e, r); err != nil {
		return nil, fmt.Errorf("bench: fill: %w", err)
	}
	if a.pool, err = d.Pool(ctx, 2); err != nil {
		return nil, err
	}
	defer a.pool.Close()
	for _, step := range []func(context.Context) error{a.schedule, a.looks, a.claims, a.space} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("bench: age: %w", err)
		}
	}
	r.Operations = a.found
	for _, o := range a.found {
		switch {
		case strings.HasPrefix(o.What, "job_info"), o.What == "cancel":
			r.AtMost("ms, "+o.What, o.Median, 2)
		case strings.HasPrefix(o.What, "jobs("):
			r.AtMost("ms, "+o.What, o.Median, 100)
		case o.What == "claim while segments come back":
			r.AtMost("longest ms, "+o.What, o.Max, 250)
		}
	}
	return r, nil
}

// aging is the state of a run of Age.
type aging struct {
	AgeConfig
	d     *load.Database
	pool  *pgxpool.Pool
	found []load.Operation
}

func (a *aging) queue(n int) string { return fmt.Sprintf("%s-%d", load.Queue, n%a.Queues) }

// The clients run in the server, because a client's round trips make no difference to the log: each call enqueues several jobs, each in its own
// transaction. They may be ahead of the worker only by a limited number of jobs, or the worker would find them in bulk.
const (
	atOnce    = 50
	mostAhead = 2000
)

// fill enqueues and works the jobs.
func (a *aging) fill(ctx context.Context, e load.Engine, r *load.Report) (err error) {
	pool, err := a.d.Pool(ctx, a.Clients)
	if err != nil {
		return err
	}
	defer pool.Close()
	workers, workerClient, err := a.d.Client(ctx, e, 4)
	if err != nil {
		return err
	}
	defer workers.Close()
	queues := map[string]int{}
	for n := range a.Queues {
		queues[a.queue(n)] = 10
	}
	m := &load.Meter{}
	var failures atomic.Int64
	fail := func(int64) bool {
		if rand.Float64()*100 >= a.Failing {
			return false
		}
		failures.Add(1)
		return true
	}
	stop, failed := load.Start(ctx, workerClient, load.Work{Queues: queues, Recorded: m.Add, Fail: fail})
	defer func() { err = errors.Join(err, stop()) }()
	began := time.Now()
	var clients sync.WaitGroup
	var sent atomic.Int64
	errs := make([]error, a.Clients)
	for i := range a.Clients {
		clients.Go(func() { // ends with the last of the jobs
			for upto := sent.Add(atOnce); upto < int64(a.Jobs)+atOnce && errs[i] == nil; upto = sent.Add(atOnce) {
				if errs[i] = m.Reach(ctx, upto-mostAhead, failed); errs[i] != nil {
					return
				}
				few := min(atOnce, int64(a.Jobs)+atOnce-upto)
				_, errs[i] = pool.Exec(ctx, fmt.Sprintf(`DO $$ BEGIN
					FOR n IN 1..%d LOOP PERFORM weir.enqueue('%s-' || floor(random() * %d)::int, 'bench'); COMMIT; END LOOP; END $$`, few, load.Queue, a.Queues))
				if upto%100_000 < atOnce && upto > atOnce {
					a.d.Say("age: %d jobs enqueued, %d attempts recorded", upto, m.Done.Load())
				}
			}
		})
	}
	clients.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := m.Reach(ctx, int64(a.Jobs), failed); err != nil {
		return err
	}
	// A log of some age contains jobs that were retried.
	if err := m.Reach(ctx, int64(a.Jobs)+failures.Load(), failed); err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	r.Figures = &load.Figures{Jobs: int64(a.Jobs), Seconds: took, JobsPerSecond: float64(a.Jobs) / took}
	err = stop()
	a.d.Say("age: filled in %.0f s", took)
	return err
}

// schedule enqueues jobs for a distant time.
func (a *aging) schedule(ctx context.Context) error {
	for left := a.Scheduled; left > 0; left -= 10_000 {
		_, err := a.pool.Exec(ctx, `SELECT cardinality(weir.enqueue_many(array_agg($1 || '-' || n % $2), array_agg('bench'::text), array_agg('{}'::jsonb),
			run_at => array_agg(now() + interval '1 year' + n * interval '1 ms'))) FROM generate_series(1, $3::int) n`, load.Queue, a.Queues, min(left, 10_000))
		if err != nil {
			return err
		}
	}
	return nil
}

// time runs something several times and keeps the durations.
func (a *aging) time(ctx context.Context, what string, times int, f func(context.Context) error) error {
	var took []float64
	for n := range times + 3 { // the first runs make plans
		began := time.Now()
		if err := f(ctx); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if n >= 3 {
			took = append(took, float64(time.Since(began).Microseconds())/1000)
		}
	}
	a.keep(what, took)
	return nil
}

func (a *aging) keep(what string, took []float64) {
	if s := load.SpreadOf(took); s != nil {
		a.found = append(a.found, load.Operation{What: what, Times: s.Samples, Median: s.Median, Max: s.Max})
		a.d.Say("age: %s: %.2f ms", what, s.Median)
	}
}

// looks measures inspections and cancellations.
func (a *aging) looks(ctx context.Context) error {
	if _, err := a.pool.Exec(ctx, `SELECT weir.enqueue($1, 'bench') FROM generate_series(1, 200)`, a.queue(0)); err != nil {
		return err
	}
	query := func(sql string, args func() []any) func(context.Context) error {
		return func(ctx context.Context) error { _, err := a.pool.Exec(ctx, sql, args()...); return err }
	}
	pick := func(sql string) (func() []any, error) {
		rows, err := a.pool.Query(ctx, sql)
		if err != nil {
			return nil, err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(ids) == 0 {
			return nil, err
		}
		return func() []any { return []any{ids[rand.IntN(len(ids))]} }, nil
	}
	for _, look := range []struct{ what, call, ids string }{
		{"job_info", `SELECT * FROM weir.job_info($1)`, fmt.Sprintf(`SELECT (random() * %d)::bigint + 1 FROM generate_series(1, 100)`, a.Jobs)},
		{"job_info of retried", `SELECT * FROM weir.job_info($1)`, `SELECT id FROM weir.job WHERE attempt > 1 LIMIT 1000`},
		{"job_info of scheduled", `SELECT * FROM weir.job_info($1)`, `SELECT id FROM weir.later LIMIT 1000`},
		{"cancel", `SELECT weir.cancel($1)`, `SELECT id FROM weir.later WHERE run_at > now() + interval '1 day' LIMIT 10000`},
	} {
		ids, err := pick(look.ids)
		if err != nil {
			return err
		}
		if ids == nil {
			continue // there are no such jobs
		}
		if err := a.time(ctx, look.what, 50, query(look.call, ids)); err != nil {
			return err
		}
	}
	for _, state := range []string{"available", "running", "scheduled", "completed", "failed", "cancelled"} {
		all := query(`SELECT * FROM weir.jobs($1)`, func() []any { return []any{state} })
		if err := a.time(ctx, "jobs("+state+")", 10, all); err != nil {
			return err
		}
		one := query(`SELECT * FROM weir.jobs($1, $2)`, func() []any { return []any{state, a.queue(0)} })
		if err := a.time(ctx, "jobs("+state+") of a queue", 10, one); err != nil {
			return err
		}
	}
	none := func() []any { return nil }
	return errors.Join(a.time(ctx, "queues()", 5, query(`SELECT * FROM weir.queues()`, none)), a.time(ctx, "workers()", 10, query(`SELECT * FROM weir.workers()`, none)))
}

// all returns the names of all queues, with limits.
func (a *aging) all() (queues []string, limits []int32) {
	for n := range a.Queues {
		queues, limits = append(queues, a.queue(n)), append(limits, 10)
	}
	return queues, limits
}

// claims measures claims from all queues, of which one has a job.
func (a *aging) claims(ctx context.Context) error {
	queues, limits := a.all()
	var worker int32
	if err := a.pool.QueryRow(ctx, `SELECT weir._start('bench', $1, '5 minutes')`, queues).Scan(&worker); err != nil {
		return err
	}
	claim := func(ctx context.Context) error {
		_, err := a.pool.Exec(ctx, `SELECT id FROM weir._claim($1, $2, $3)`, worker, queues, limits)
		return err
	}
	if err := a.time(ctx, "claim from all queues", 20, claim); err != nil {
		return err
	}
	for range 1000 { // the remaining jobs are worked, or they would disturb the next measurement
		tag, err := a.pool.Exec(ctx, `SELECT id FROM weir._claim($1, $2, $3)`, worker, queues, limits)
		if err != nil || tag.RowsAffected() == 0 {
			return errors.Join(err, a.fence(ctx, worker))
		}
	}
	return a.fence(ctx, worker)
}

// fence ends a worker of the bench; its claims count as failed attempts.
func (a *aging) fence(ctx context.Context, worker int32) error {
	_, err := a.pool.Exec(ctx, `SELECT weir._fence($1, 'the bench is over')`, worker)
	return err
}

// space measures the opening of a segment and the reclaiming of the full one, while claims are made without a pause.
func (a *aging) space(ctx context.Context) (err error) {
	var was string
	if err := a.pool.QueryRow(ctx, `SELECT value FROM weir.setting WHERE name = 'completed_retention'`).Scan(&was); err != nil {
		return err
	}
	if _, err := a.pool.Exec(ctx, `SELECT weir.set('completed_retention', '0 s')`); err != nil {
		return err
	}
	defer func() {
		_, setErr := a.pool.Exec(context.WithoutCancel(ctx), `SELECT weir.set('completed_retention', $1)`, was)
		err = errors.Join(err, setErr)
	}()
	queues, limits := a.all()
	var worker int32
	if err := a.pool.QueryRow(ctx, `SELECT weir._start('bench', $1, '5 minutes')`, queues).Scan(&worker); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.fence(context.WithoutCancel(ctx), worker)) }()

	claiming, stop := context.WithCancel(ctx)
	var claims []float64
	claimed := make(chan error, 1)
	go func() { // ends when stop is closed
		for claiming.Err() == nil {
			began := time.Now()
			if _, err := a.pool.Exec(claiming, `SELECT id FROM weir._claim($1, $2, $3)`, worker, queues, limits); err != nil && claiming.Err() == nil {
				claimed <- err
				return
			}
			claims = append(claims, float64(time.Since(began).Microseconds())/1000)
		}
		claimed <- nil
	}()
	took := map[string][]float64{}
	for end := time.Now().Add(ageTimeout); len(took["reclaim"]) == 0; <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			a.d.Say("age: no segment was reclaimed within %s", ageTimeout)
			break
		}
		began := time.Now()
		var did string
		if err = a.pool.QueryRow(ctx, `SELECT coalesce(weir._rotate(), '')`).Scan(&did); err != nil {
			break
		}
		ms := float64(time.Since(began).Microseconds()) / 1000
		switch verb, _, _ := strings.Cut(did, " "); verb {
		case "opened":
			took["rotate"] = append(took["rotate"], ms)
		case "carried":
			took["a step of carrying"] = append(took["a step of carrying"], ms)
		case "reclaimed":
			took["reclaim"] = append(took["reclaim"], ms)
		}
	}
	stop()
	err = errors.Join(err, <-claimed)
	for _, what := range slices.Sorted(maps.Keys(took)) {
		a.keep(what, took[what])
	}
	a.keep("claim while segments come back", claims)
	return err
}
