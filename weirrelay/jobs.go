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
	"github.com/weir-pg/weir/internal/sleep"
)

// JobsConfig specifies a relay of jobs. Name, Pool, Target and Routes are required.
type JobsConfig struct {
	// Name is the relay's, 1 to 100 characters. Any number of processes may run it at the same time, as any number may be workers.
	Name string
	// Pool connects to the database as a user with the role weir_work.
	Pool   *pgxpool.Pool
	Target Target
	Routes []Route // each names a queue, of which all jobs are passed on

	// MaxRecords and MaxBytes bound what is sent at once, as in Config.
	MaxRecords int
	MaxBytes   int

	// Logger is the log's destination; default slog.Default().
	Logger *slog.Logger
	// Observe, if set, is called with what the relay has done, by one goroutine at a time.
	Observe func(Progress)
}

// jobsAtOnce is how many jobs of a queue are on their way to the target at most: several batches, so that one is collected while another is sent.
const jobsAtOnce = 4

// RunJobs passes jobs on until ctx ends. It works the routes' queues as a worker does: a job has completed once the target has it. So it is passed on at least once, and
// a target that knows IDs drops repeats, which come when a process was killed between the two: NATS within the stream's duplicate window, Redis within a day. A job that
// the target refuses for good has failed. While the target can't be reached, jobs wait, and use up no attempts.
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
	outage  *outage.Log
	waiting chan *sending
}

// sending is a job that waits until the target has it.
type sending struct {
	job  *weir.Job[json.RawMessage]
	done chan error
}

// CheckJobs returns what is wrong with a configuration, apart from Pool and Target.
func CheckJobs(c JobsConfig) error {
	_, err := check(Config{Name: c.Name, Routes: c.Routes, MaxRecords: c.MaxRecords, MaxBytes: c.MaxBytes}, true)
	return err
}

func newJobs(c JobsConfig) (*jobs, error) {
	full := Config{Name: c.Name, Pool: c.Pool, Target: c.Target, Routes: c.Routes, MaxRecords: c.MaxRecords, MaxBytes: c.MaxBytes, Logger: c.Logger, Observe: c.Observe}
	router, err := full.complete(true)
	if err != nil {
		return nil, err
	}
	c.MaxRecords, c.MaxBytes, c.Logger, c.Observe = full.MaxRecords, full.MaxBytes, full.Logger, full.Observe
	return &jobs{JobsConfig: c, router: router, outage: outage.New(c.Logger), waiting: make(chan *sending, c.MaxRecords)}, nil
}

func (r *jobs) run(ctx context.Context) error {
	queues := map[string]int{}
	for _, route := range r.Routes {
		queues[route.Queue] = min(jobsAtOnce*r.MaxRecords, 10_000)
	}
	h := weir.NewHandlers()
	weir.HandleRest(h, weir.KindOptions{Timeout: -1}, r.handle)
	worker, err := weir.NewClient(r.Pool).NewWorker(weir.WorkerConfig{Handlers: h, Queues: queues, Name: "relay " + r.Name, Logger: r.Logger})
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
	return err
}

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

// send sends what waits, until ctx ends.
func (r *jobs) send(ctx context.Context) {
	var retry backoff
	begun := false
	var batch []*sending
	var records []Record
	const what = "sending jobs to the target"
	for {
		var first *sending
		select {
		case first = <-r.waiting:
		case <-ctx.Done():
			return
		}
		size := 0
		batch, records = batch[:0], records[:0]
		for s := first; s != nil; {
			batch, records, size = append(batch, s), append(records, r.router.job(r.Name, s.job)), size+len(s.job.Args)
			s = nil
			if len(batch) < r.MaxRecords && size < r.MaxBytes {
				select {
				case s = <-r.waiting:
				default:
				}
			}
		}
		read, dead := time.Now(), 0
		for len(records) > 0 {
			err := error(nil)
			if !begun {
				_, err = r.Target.Begin(ctx, "")
			}
			if err == nil {
				begun = true
				err = r.Target.Send(ctx, records)
			}
			var refused *Refused
			if errors.As(err, &refused) && refused.Index < len(records) {
				i := refused.Index
				batch[i].done <- weir.Fail(refused.Err)
				batch, records, dead = append(batch[:i], batch[i+1:]...), append(records[:i], records[i+1:]...), dead+1
				continue
			}
			if err == nil {
				r.outage.Worked(what)
				retry = backoff{}
				break
			}
			if ctx.Err() != nil {
				return // the worker has released the jobs
			}
			begun = begun && !errors.Is(err, ErrMoved)
			r.outage.Failed(what, err)
			if !sleep.For(ctx, sleep.Jitter(retry.next())) {
				return
			}
		}
		for _, s := range batch {
			s.done <- nil
		}
		r.Observe(Progress{Active: true, Sent: len(batch), Dead: dead, Lag: time.Since(read)})
	}
}
