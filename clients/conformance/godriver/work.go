package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// The kinds that the suite works. A kind is a type, so each has one.
type (
	alpha   json.RawMessage
	beta    json.RawMessage
	unicode json.RawMessage
)

func (alpha) Kind() string   { return "alpha" }
func (beta) Kind() string    { return "beta" }
func (unicode) Kind() string { return "Größe 漢字 🚀" }

func (a *alpha) UnmarshalJSON(b []byte) error   { *a = append(alpha{}, b...); return nil }
func (a *beta) UnmarshalJSON(b []byte) error    { *a = append(beta{}, b...); return nil }
func (a *unicode) UnmarshalJSON(b []byte) error { *a = append(unicode{}, b...); return nil }

// ending is how a handler ends.
type ending struct {
	How    string          `json:"how"`
	Output json.RawMessage `json:"output"`
	Error  string          `json:"error"`
	Delay  float64         `json:"delay"`
	Then   string          `json:"then"`
}

// run is a handler that was called.
type run struct {
	ctx context.Context
	job reporter
	end chan command
}

// reporter is what a handler reports to.
type reporter interface {
	progress(percent float64, message string) error
	log(text string) error
	setCheckpoint(data json.RawMessage) error
	checkpoint(ctx context.Context) (json.RawMessage, error)
}

// local is a job of a worker over SQL.
type local struct{ *weir.JobMeta }

func (l local) progress(percent float64, message string) error {
	l.SetProgress(percent, message)
	return nil
}
func (l local) log(text string) error                    { l.Log().Info(text); return nil }
func (l local) setCheckpoint(data json.RawMessage) error { return l.SetCheckpoint(data) }
func (l local) checkpoint(ctx context.Context) (data json.RawMessage, err error) {
	_, err = l.Checkpoint(ctx, &data)
	return data, err
}

// work is the worker that runs, if any, and its handlers.
type work struct {
	mu   sync.Mutex // guards all of it
	last int
	runs map[int]*run
	stop context.CancelFunc // nil: no worker runs
}

func (d *driver) startWork(ctx context.Context, c command) error {
	if d.remote != nil {
		return d.begin(ctx, d.remote.worker(d, c).run)
	}
	handlers := weir.NewHandlers()
	for _, kind := range c.Kinds {
		switch kind {
		case alpha{}.Kind():
			weir.Handle(handlers, func(ctx context.Context, job *weir.Job[alpha]) error { return d.handle(ctx, &job.JobMeta, job.Args) })
		case beta{}.Kind():
			weir.Handle(handlers, func(ctx context.Context, job *weir.Job[beta]) error { return d.handle(ctx, &job.JobMeta, job.Args) })
		case unicode{}.Kind():
			weir.Handle(handlers, func(ctx context.Context, job *weir.Job[unicode]) error { return d.handle(ctx, &job.JobMeta, job.Args) })
		default:
			return fmt.Errorf("this driver has no type for the kind %q", kind)
		}
	}
	worker, err := d.client.NewWorker(weir.WorkerConfig{
		Handlers: handlers, Queues: c.Queues, Lease: seconds(c.Lease), Timeout: seconds(c.Timeout), StopTimeout: seconds(c.StopTimeout),
	})
	if err != nil {
		return err
	}
	return d.begin(ctx, worker.Run)
}

// begin runs a worker until stop.
func (d *driver) begin(ctx context.Context, work func(context.Context) error) error {
	d.work.mu.Lock()
	defer d.work.mu.Unlock()
	if d.work.stop != nil {
		return errors.New("a worker runs already")
	}
	ctx, d.work.stop = context.WithCancel(ctx)
	go func() { // ends with ctx, or with the process
		err := work(ctx)
		d.work.mu.Lock()
		d.work.stop = nil
		d.work.mu.Unlock()
		event := object{"event": "stopped"}
		if err != nil {
			event["error"] = failure(err)
		}
		d.say(event)
	}()
	return nil
}

// end tells the worker to stop.
func (w *work) end() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop == nil {
		return errors.New("no worker runs")
	}
	w.stop()
	return nil
}

func (w *work) find(n int) (*run, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.runs[n]
	if !ok {
		return nil, fmt.Errorf("run %d: %w", n, weir.ErrNotFound)
	}
	return r, nil
}

// handle is the handler of all kinds.
func (d *driver) handle(ctx context.Context, job *weir.JobMeta, args []byte) error {
	meta := object{"id": job.ID, "queue": job.Queue, "priority": job.Priority, "kind": job.Kind, "args": json.RawMessage(args), "meta": job.Meta, "key": orNull(job.Key), "flow": orNull(job.Flow),
		"attempt": job.Attempt, "max_attempts": job.MaxAttempts, "enqueued_at": job.EnqueuedAt}
	c, err := d.called(ctx, local{job}, meta)
	if err != nil {
		return err
	}
	return d.end(ctx, job, c)
}

// called tells the suite that a handler was called, and returns how it is to end; or the context's error, if it was interrupted.
func (d *driver) called(ctx context.Context, job reporter, meta any) (command, error) {
	r := &run{ctx, job, make(chan command)}
	w := &d.work
	w.mu.Lock()
	if w.runs == nil {
		w.runs = map[int]*run{}
	}
	w.last++
	n := w.last
	w.runs[n] = r
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.runs, n)
		w.mu.Unlock()
	}()
	d.say(object{"event": "job", "run": n, "job": meta})
	select {
	case c := <-r.end:
		return c, nil
	case <-ctx.Done():
		d.say(object{"event": "interrupted", "run": n, "reason": reason(ctx)})
		return command{}, ctx.Err()
	}
}

func orNull[T comparable](v T) any {
	if v == *new(T) {
		return nil
	}
	return v
}

func reason(ctx context.Context) string {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, weir.ErrCancelled):
		return "cancelled"
	case errors.Is(cause, weir.ErrStopping):
		return "stopping"
	case errors.Is(cause, weir.ErrFenced), errors.Is(cause, weir.ErrLapsed):
		return "lost"
	case errors.Is(cause, context.DeadlineExceeded):
		return "timeout"
	default:
		return fmt.Sprint(cause)
	}
}

// tell passes a command to the handler that it is for.
func (d *driver) tell(ctx context.Context, c command) (object, error) {
	r, err := d.work.find(c.Run)
	if err != nil {
		return nil, err
	}
	switch c.Do {
	case "progress":
		return object{}, r.job.progress(c.Percent, c.Message)
	case "log":
		return object{}, r.job.log(c.Text)
	case "set_checkpoint":
		job, isLocal := r.job.(local)
		if c.Tx == 0 || !isLocal {
			return object{}, r.job.setCheckpoint(c.Checkpoint)
		}
		tx, err := d.open.find(c.Tx)
		if err == nil {
			err = job.SetCheckpointTx(ctx, tx, c.Checkpoint)
		}
		return object{}, err
	case "checkpoint":
		data, err := r.job.checkpoint(ctx)
		return object{"checkpoint": data}, err
	case "end":
		select {
		case r.end <- c:
		case <-r.ctx.Done():
			return nil, fmt.Errorf("run %d: %w", c.Run, weir.ErrNotFound)
		}
	}
	return object{}, nil
}

// end does what the suite has the handler do last.
func (d *driver) end(ctx context.Context, job *weir.JobMeta, c command) error {
	var failed error
	if c.Error != "" {
		failed = errors.New(c.Error)
	}
	if c.Output != nil {
		var text string
		if json.Unmarshal(c.Output, &text) != nil {
			text = string(c.Output)
		}
		job.SetOutput(text)
	}
	switch c.How {
	case "raise":
		return failed
	case "fail":
		return weir.Fail(failed)
	case "retry_after":
		return weir.RetryAfter(seconds(c.Delay), failed)
	case "snooze":
		return weir.Snooze(seconds(c.Delay))
	case "complete":
		err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, c.SQL); err != nil {
				return err
			}
			if err := job.CompleteTx(ctx, tx); err != nil {
				return err
			}
			if c.Then == "commit" {
				return nil
			}
			if failed == nil {
				failed = errors.New("roll back")
			}
			return failed
		})
		if c.Then == "rollback" && err == failed {
			return nil
		}
		return err
	}
	return nil
}
