package weirrelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/seam"
)

// JobsConfig specifies a relay of jobs. Name, Pool, Target and Routes are required.
type JobsConfig struct {
	// Name is the relay's, 1 to 100 characters. Any number of processes may run it at the same time, as any number may be workers.
	Name string
	// Pool connects to the database as a user with the role weir_work.
	Pool   *pgxpool.Pool
	Target Target
	Routes []Route // each names a queue, or queues by a pattern, of which all jobs are passed on

	// MaxRecords and MaxBytes bound what is sent at once, as in Config.
	MaxRecords int
	MaxBytes   int

	// Logger is the log's destination; default slog.Default().
	Logger *slog.Logger
	// Observe, if set, is called with what the relay has done, by one goroutine at a time.
	Observe func(Progress)
}

const (
	// jobsAtOnce is how many batches of jobs are on their way to the target at most, so that one is collected while another is sent. All queues share them,
	jobsAtOnce = 4
	// leastOfQueue is what each queue has of them at least,
	leastOfQueue = 10
	// mostOfQueue at most.
	mostOfQueue = 10_000
)

// RunJobs passes jobs on until ctx ends. It works the routes' queues as a worker does: a job has completed once the target has it. So it is passed on at least once, and
// a target that knows IDs drops repeats, which come when a process was killed between the two: NATS within the stream's duplicate window, Redis within a day; Kafka knows none. A job that
// the target refuses for good has failed. While the target can't be reached, jobs wait, and use up no attempts.
//
// A queue that fits a pattern and comes into being while the relay runs is taken up within seconds.
//
// It returns the same errors as Run.
func RunJobs(ctx context.Context, c JobsConfig) error {
	r, err := newJobs(c)
	if err != nil {
		return fmt.Errorf("weirrelay: %w", err)
	}
	return r.run(ctx)
}

// jobs is a relay of jobs.
type jobs struct {
	JobsConfig
	router  *router
	waiting chan *sending
}

// sending is a job that waits until the target has it.
type sending struct {
	job  *weir.Job[json.RawMessage]
	done chan error
}

// CheckJobs returns what is wrong with a configuration, apart from Pool and Target.
func CheckJobs(c JobsConfig) error {
	_, err := check(c.config(), true)
	return err
}

// config has what relays of jobs and of messages have in common.
func (c JobsConfig) config() Config {
	return Config{Name: c.Name, Pool: c.Pool, Target: c.Target, Routes: c.Routes, MaxRecords: c.MaxRecords, MaxBytes: c.MaxBytes, Logger: c.Logger, Observe: c.Observe}
}

func newJobs(c JobsConfig) (*jobs, error) {
	full := c.config()
	router, err := full.complete(true)
	if err != nil {
		return nil, err
	}
	c.MaxRecords, c.MaxBytes, c.Logger, c.Observe = full.MaxRecords, full.MaxBytes, full.Logger, full.Observe
	return &jobs{JobsConfig: c, router: router, waiting: make(chan *sending, c.MaxRecords)}, nil
}

func (r *jobs) run(ctx context.Context) error {
	h := weir.NewHandlers()
	weir.HandleRest(h, weir.KindOptions{Timeout: -1}, r.handle)
	config := weir.WorkerConfig{Handlers: h, Queues: map[string]int{}, Name: "relay " + r.Name, Logger: r.Logger}
	all, each := jobsAtOnce*r.MaxRecords, jobsAtOnce*r.MaxRecords/len(r.Routes)
	if len(r.router.patterns) > 0 { // how many queues share them is not known
		each = all
		seam.Follow(&config, func(queue string) bool { return r.router.route(queue) != nil }, r.router.wanted(), ofQueue(all))
	}
	for name := range r.router.named {
		config.Queues[name] = ofQueue(each)
	}
	worker, err := weir.NewClient(r.Pool).NewWorker(config)
	if err != nil {
		return fmt.Errorf("weirrelay: %w", err)
	}
	sendCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	sent := make(chan struct{})
	go func() { // ends with sendCtx, after the worker
		defer close(sent)
		r.send(sendCtx)
	}()
	err = worker.Run(ctx)
	stop()
	<-sent
	if err != nil {
		err = fmt.Errorf("weirrelay: relay %s: %w", r.Name, err)
	}
	return err
}

// ofQueue returns how many jobs a queue may have on their way, if its part of them is n.
func ofQueue(n int) int { return min(max(n, leastOfQueue), mostOfQueue) }

// handle waits until the target has the job.
func (r *jobs) handle(ctx context.Context, job *weir.Job[json.RawMessage]) error {
	s := &sending{job: job, done: make(chan error, 1)}
	select {
	case r.waiting <- s:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-s.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send sends what waits, until ctx ends: the worker releases what it has then.
func (r *jobs) send(ctx context.Context) {
	s := sender{target: &begun{Target: r.Target}, what: "sending jobs to the target", outage: outage.Of(r.Logger, "calls of the target")}
	for {
		batch, records := r.collect(ctx)
		read, all := time.Now(), len(batch)
		if all == 0 {
			return
		}
		_, err := s.send(ctx, records, func(i int, why error) error {
			batch[i].done <- weir.Fail(why)
			batch = append(batch[:i], batch[i+1:]...)
			return nil
		})
		if err != nil {
			return
		}
		for _, one := range batch {
			one.done <- nil
		}
		r.Observe(Progress{Active: true, Sent: len(batch), Dead: all - len(batch), Lag: time.Since(read)})
	}
}

// begun is a target that begins when something is sent: a relay of jobs has no position from which it would go on.
type begun struct {
	Target
	is bool
}

func (b *begun) Send(ctx context.Context, records []Record) error {
	if !b.is {
		if _, err := b.Begin(ctx, ""); err != nil {
			return fmt.Errorf("begin at the target: %w", err)
		}
		b.is = true
	}
	err := b.Target.Send(ctx, records)
	if errors.Is(err, ErrMoved) {
		b.is = false
		err = errors.New(err.Error()) // it begins anew by itself
	}
	return err
}

// collect waits for jobs, and returns what can be sent at once; none: ctx has ended.
func (r *jobs) collect(ctx context.Context) (batch []*sending, records []Record) {
	var next *sending
	select {
	case next = <-r.waiting:
	case <-ctx.Done():
		return nil, nil
	}
	for size := 0; next != nil; {
		batch, records, size = append(batch, next), append(records, r.router.job(r.Name, next.job)), size+len(next.job.Args)
		next = nil
		if len(batch) < r.MaxRecords && size < r.MaxBytes {
			select {
			case next = <-r.waiting:
			default:
			}
		}
	}
	return batch, records
}
