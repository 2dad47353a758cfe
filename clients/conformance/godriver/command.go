package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir"
)

// command is a line of the suite: a command and its fields.
type command struct {
	N  int    `json:"n"`
	Do string `json:"do"`
	newJob

	ID           int64           `json:"id"`
	Tx           int             `json:"tx"`
	Run          int             `json:"run"`
	Jobs         []newJob        `json:"jobs"`
	SQL          string          `json:"sql"`
	Queues       map[string]int  `json:"queues"`
	Kinds        []string        `json:"kinds"`
	Lease        float64         `json:"lease"`
	Timeout      float64         `json:"timeout"`
	StopTimeout  float64         `json:"stop_timeout"`
	Percent      float64         `json:"percent"`
	Message      string          `json:"message"`
	Text         string          `json:"text"`
	Checkpoint   json.RawMessage `json:"checkpoint"`
	Channels     []string        `json:"channels"`
	After        string          `json:"after"`
	Subscription int             `json:"subscription"`
	Channel      string          `json:"channel"`
	Payload      string          `json:"payload"`
	ending
}

// newJob is a job to enqueue.
type newJob struct {
	Queue       string          `json:"queue"`
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args"`
	Priority    int             `json:"priority"`
	RunAt       time.Time       `json:"run_at"`
	MaxAttempts int             `json:"max_attempts"`
	Meta        json.RawMessage `json:"meta"`
	Key         string          `json:"key"`
	Flow        int64           `json:"flow"`
	Unique      *struct {
		Key     string     `json:"key"`
		Fields  []string   `json:"fields"`
		Until   weir.Until `json:"until"`
		Within  float64    `json:"within"`
		Replace bool       `json:"replace"`
		Wait    bool       `json:"wait"`
	} `json:"unique"`
}

// given are args whose kind is only known when the program runs.
type given struct {
	kind string
	args json.RawMessage
}

func (g given) Kind() string { return g.kind }

func (g given) MarshalJSON() ([]byte, error) {
	if g.args == nil {
		return []byte("{}"), nil
	}
	return g.args, nil
}

func (j newJob) job() weir.NewJob {
	o := &weir.Options{Queue: j.Queue, Priority: j.Priority, RunAt: j.RunAt, MaxAttempts: j.MaxAttempts, Key: j.Key, Flow: j.Flow}
	if j.Meta != nil {
		o.Meta = j.Meta
	}
	if u := j.Unique; u != nil {
		o.Unique = &weir.Unique{Key: u.Key, Fields: u.Fields, Until: u.Until, Within: seconds(u.Within), Replace: u.Replace, Wait: u.Wait}
	}
	return weir.NewJob{Args: given{j.Kind, j.Args}, Options: o}
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// do runs a command, and returns its answer.
func (d *driver) do(ctx context.Context, c command) (object, error) {
	switch c.Do {
	case "enqueue":
		all, err := d.enqueue(ctx, c.Tx, c.newJob)
		if err != nil {
			return nil, err
		}
		return all[0], nil
	case "enqueue_many":
		all, err := d.enqueue(ctx, c.Tx, c.Jobs...)
		return object{"jobs": all}, err
	case "begin":
		tx, err := d.pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		return object{"tx": d.open.add(tx)}, nil
	case "sql":
		tx, err := d.open.find(c.Tx)
		if err == nil {
			_, err = tx.Exec(ctx, c.SQL)
		}
		return object{}, err
	case "commit", "rollback":
		tx, err := d.open.remove(c.Tx)
		if err != nil {
			return nil, err
		}
		if c.Do == "rollback" {
			return object{}, tx.Rollback(ctx)
		}
		return object{}, tx.Commit(ctx)
	case "job", "cancel":
		if d.remote != nil {
			return d.remote.look(ctx, c)
		}
		if c.Do == "job" {
			job, err := d.client.Job(ctx, c.ID)
			return object{"job": job}, err
		}
		state, err := d.client.CancelJob(ctx, c.ID)
		return object{"state": state}, err
	case "retry":
		state, err := d.client.RetryJob(ctx, c.ID)
		return object{"state": state}, err
	case "work":
		return object{}, d.startWork(ctx, c)
	case "stop":
		return object{}, d.work.end()
	case "end", "progress", "log", "set_checkpoint", "checkpoint":
		return d.tell(ctx, c)
	case "subscribe":
		return d.subscribe(ctx, c)
	case "unsubscribe":
		return object{}, d.subs.end(c.Subscription)
	case "publish":
		if c.Tx == 0 {
			return object{}, d.client.Publish(ctx, c.Channel, []byte(c.Payload), nil)
		}
		tx, err := d.open.find(c.Tx)
		if err == nil {
			err = d.client.PublishTx(ctx, tx, c.Channel, []byte(c.Payload), nil)
		}
		return object{}, err
	}
	return nil, errUnknown
}

func (d *driver) enqueue(ctx context.Context, in int, jobs ...newJob) (answers []object, err error) {
	if d.remote != nil {
		return d.remote.enqueue(ctx, jobs)
	}
	all := make([]weir.NewJob, len(jobs))
	for i, j := range jobs {
		all[i] = j.job()
	}
	var done []weir.Enqueued
	if in != 0 {
		var tx pgx.Tx
		if tx, err = d.open.find(in); err == nil {
			done, err = d.client.EnqueueManyTx(ctx, tx, all)
		}
	} else {
		done, err = d.client.EnqueueMany(ctx, all)
	}
	if err != nil {
		if refused := new(pgconn.PgError); !errors.As(err, &refused) && !pgconn.SafeToRetry(err) && !errors.Is(err, weir.ErrNotFound) {
			err = &invalidError{err} // all that is left are the library's own checks
		}
		return nil, err
	}
	for _, e := range done {
		answers = append(answers, object{"id": e.ID, "duplicate": e.Duplicate})
	}
	return answers, nil
}
