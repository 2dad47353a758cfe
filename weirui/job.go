package weirui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir"
)

func showJob(v *visit) (*view, error) {
	id, err := v.id()
	if err != nil {
		return nil, err
	}
	found, err := v.job(id)
	if err != nil {
		return nil, err
	}
	shown := jobPage{JobInfo: *found}
	if found.Flow != 0 {
		f, err := read(v.Context(), v.db, "flow "+strconv.FormatInt(found.Flow, 10), func(ctx context.Context) (*weir.FlowInfo, error) { return v.db.client.FlowInfo(ctx, found.Flow) })
		if err != nil && !errors.Is(err, weir.ErrNotFound) {
			return nil, err
		}
		if err == nil && f.IsTask {
			shown.Task, shown.TaskOf = f.Name, f.Parent
		}
	}
	return &view{template: "job", title: fmt.Sprintf("Job %d", id), data: shown}, nil
}

// jobPage is what the page of a job shows.
type jobPage struct {
	weir.JobInfo
	Task   string `json:"task,omitempty"`    // the task that it belongs to
	TaskOf int64  `json:"task_of,omitempty"` // the task's flow
}

// job looks up a job, as it may be shown.
func (v *visit) job(id int64) (*weir.JobInfo, error) {
	found, err := read(v.Context(), v.db, "job "+strconv.FormatInt(id, 10), func(ctx context.Context) (*weir.JobInfo, error) {
		return v.db.client.Job(ctx, id)
	})
	if err != nil {
		return nil, err
	}
	shown := *found
	v.ui.redactJob(&shown)
	return &shown, nil
}

func retryJob(v *visit) (string, error) {
	id, err := v.id()
	if err != nil {
		return "", err
	}
	before, err := v.db.client.Job(v.Context(), id)
	if err != nil {
		return "", err
	}
	state, err := v.db.client.RetryJob(v.Context(), id)
	if err == nil && before.FinishedAt == nil {
		return fmt.Sprintf("Job %d is %s: only finished jobs are retried.", id, state), nil
	}
	return fmt.Sprintf("Job %d is %s again.", id, state), err
}

func cancelJob(v *visit) (string, error) {
	id, err := v.id()
	if err != nil {
		return "", err
	}
	state, err := v.db.client.CancelJob(v.Context(), id)
	switch {
	case err != nil:
		return "", err
	case state == weir.StateRunning:
		return fmt.Sprintf("Job %d is running: its worker has been asked to end it.", id), nil
	case state == weir.StateCancelled:
		return fmt.Sprintf("Job %d is cancelled.", id), nil
	}
	return fmt.Sprintf("Job %d has already %s.", id, ended(state)), nil
}

// ended is what a job has done that has ended, after "has".
func ended(state weir.State) string {
	if state == weir.StateCancelled {
		return "been cancelled"
	}
	return string(state)
}

// draft is a job in the form for a new one.
type draft struct {
	Copied      int64  `json:"copied,omitempty"` // the job that it is a copy of; 0: none
	Queue       string `json:"queue"`
	Kind        string `json:"kind"`
	Key         string `json:"key,omitempty"`
	Args        string `json:"args"`
	Meta        string `json:"meta,omitempty"`
	Priority    int    `json:"priority"`
	MaxAttempts int    `json:"max_attempts"`
	Lacks       string `json:"lacks,omitempty"` // why its args are not those of the copied job
}

// newJob is the form for a new job, which may be a copy of another.
func newJob(v *visit) (*view, error) {
	d := draft{Queue: v.URL.Query().Get("queue"), Args: "{}", Priority: 2}
	if text := v.URL.Query().Get("copy"); text != "" {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, badInput("%q is not an id: ids are numbers.", cut(text, 50))
		}
		j, err := v.db.client.Job(v.Context(), id)
		if err != nil {
			return nil, err
		}
		d = draft{Copied: id, Queue: j.Queue, Kind: j.Kind, Key: j.Key, Priority: j.Priority, MaxAttempts: j.MaxAttempts, Args: v.ui.redacted(j.Args), Meta: v.ui.redacted(j.Meta)}
		switch {
		case j.Encrypted != "":
			d.Args, d.Lacks = "", "Its arguments are encrypted, so they are not copied. Type them in, or retry the job instead."
		case !bytes.Equal(v.ui.redact(j.Args), j.Args) || !bytes.Equal(v.ui.redact(j.Meta), j.Meta):
			d.Lacks = "Some of its values are not shown, and so not copied: replace each [redacted], or retry the job instead."
		}
	}
	return &view{template: "new", title: "New job", data: d}, nil
}

// rawJob is a job of any kind.
type rawJob struct {
	kind string
	args json.RawMessage
}

func (j rawJob) Kind() string                 { return j.kind }
func (j rawJob) MarshalJSON() ([]byte, error) { return j.args, nil }

// enqueueJob enqueues the job in the form.
func enqueueJob(v *visit) (string, error) {
	text := func(name string) string { return strings.TrimSpace(v.PostForm.Get(name)) }
	args := cmp.Or(text("args"), "{}")
	if !json.Valid([]byte(args)) {
		return "", badInput("The arguments are not valid JSON.")
	}
	o := weir.Options{Queue: text("queue"), Key: text("key")}
	if meta := text("meta"); meta != "" {
		if !json.Valid([]byte(meta)) {
			return "", badInput("The meta is not valid JSON.")
		}
		o.Meta = json.RawMessage(meta)
	}
	if strings.Contains(args, `"[redacted]"`) || strings.Contains(text("meta"), `"[redacted]"`) {
		return "", badInput("Replace each [redacted] by a value: what is not shown can't be copied.")
	}
	var err error
	if o.Priority, err = v.number("priority", "The priority"); err != nil {
		return "", err
	}
	if o.MaxAttempts, err = v.number("max_attempts", "The number of attempts"); err != nil {
		return "", err
	}
	if delay := text("delay"); delay != "" {
		d, err := time.ParseDuration(delay)
		if err != nil || d < 0 {
			return "", badInput("The delay is a duration such as 90s, 15m or 2h; got %q.", cut(delay, 50))
		}
		o.RunAt = time.Now().Add(d)
	}
	made, err := v.db.client.Enqueue(v.Context(), rawJob{text("kind"), json.RawMessage(args)}, &o)
	return fmt.Sprintf("Job %d is enqueued.", made.ID), err
}
