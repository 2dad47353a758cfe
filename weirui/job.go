package weirui

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
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
		f, err := v.flow(found.Flow)
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
	if err == nil && !isFinal(*before) {
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

func deleteJob(v *visit) (string, error) {
	id, err := v.id()
	if err != nil {
		return "", err
	}
	deleted, err := v.db.client.DeleteJob(v.Context(), id)
	if err != nil || deleted {
		v.to = "jobs?state=failed"
		return fmt.Sprintf("Job %d is deleted.", id), err
	}
	return fmt.Sprintf("Job %d stays: only failed jobs are deleted.", id), nil
}

// ended is what a job has done that has ended, after "has".
func ended(state weir.State) string {
	if state == weir.StateCancelled {
		return "been cancelled"
	}
	return string(state)
}

// isFinal reports whether a job has ended, or was cancelled and only waits to be passed over.
func isFinal(j weir.JobInfo) bool {
	return j.State == weir.StateCompleted || j.State == weir.StateFailed || j.State == weir.StateCancelled
}

// ran is for how long the last attempt of a finished job ran.
func ran(j weir.JobInfo) string {
	if j.FinishedAt == nil || j.ClaimedAt == nil || j.FinishedAt.Before(*j.ClaimedAt) {
		return ""
	}
	return span(j.FinishedAt.Sub(*j.ClaimedAt))
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
	Delay       string `json:"delay,omitempty"`
	Wrong       string `json:"wrong,omitempty"` // why it was not enqueued
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
		j.Meta = ownMeta(j.Meta)
		d = draft{Copied: id, Queue: j.Queue, Kind: j.Kind, Key: j.Key, Priority: j.Priority, MaxAttempts: j.MaxAttempts, Args: v.ui.redacted(j.Args), Meta: v.ui.redacted(j.Meta)}
		switch {
		case j.Encrypted != "":
			d.Args, d.Lacks = "", "Its arguments are encrypted, so they are not copied. Type them in, or retry the job instead."
		case strings.Contains(d.Args+d.Meta, `"`+hidden+`"`):
			d.Lacks = "Some of its values are not shown, and so not copied: replace each [redacted], or retry the job instead."
		}
	}
	return &view{template: "new", title: "New job", data: d}, nil
}

// ownMeta is a job's meta without what Weir has added for this job alone, which can't be enqueued.
func ownMeta(meta json.RawMessage) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(meta, &fields) != nil {
		return meta
	}
	before := len(fields)
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool { return strings.HasPrefix(name, "weir.") })
	if len(fields) == before {
		return meta
	} else if len(fields) == 0 {
		return nil
	}
	own, err := json.Marshal(fields)
	if err != nil {
		return nil
	}
	return own
}

// rawJob is a job of any kind.
type rawJob struct {
	kind string
	args json.RawMessage
}

func (j rawJob) Kind() string                 { return j.kind }
func (j rawJob) MarshalJSON() ([]byte, error) { return j.args, nil }

// enqueueJob enqueues the job in the form. If that is refused, the form comes back with what was typed, and why.
func enqueueJob(v *visit) (string, error) {
	text := func(name string) string { return strings.TrimSpace(v.PostForm.Get(name)) }
	id, err := v.enqueue(text)
	if err == nil {
		v.to = fmt.Sprintf("jobs/%d", id)
		return fmt.Sprintf("Job %d is enqueued.", id), nil
	}
	p := v.problemOf(err)
	if p.Status != http.StatusBadRequest {
		return "", err
	}
	d := draft{Queue: text("queue"), Kind: text("kind"), Key: text("key"), Args: v.PostForm.Get("args"), Meta: v.PostForm.Get("meta"), Delay: text("delay"), Wrong: strings.TrimSpace(p.Text + " " + p.Hint)}
	d.Copied, _ = strconv.ParseInt(text("copied"), 10, 64)
	d.Priority, _ = strconv.Atoi(text("priority"))
	d.MaxAttempts, _ = strconv.Atoi(text("max_attempts"))
	return "", &again{p, &view{template: "new", title: "New job", data: d, status: p.Status}}
}

func (v *visit) enqueue(text func(name string) string) (id int64, err error) {
	args := cmp.Or(text("args"), "{}")
	o := weir.Options{Queue: text("queue"), Key: text("key")}
	if meta := text("meta"); meta != "" {
		o.Meta = json.RawMessage(meta)
	}
	for what, value := range map[string]string{"arguments are": args, "meta is": cmp.Or(text("meta"), "{}")} {
		var any json.RawMessage
		if err := json.Unmarshal([]byte(value), &any); err != nil {
			return 0, badInput("The %s not valid JSON: %s.", what, strings.TrimPrefix(err.Error(), "json: "))
		} else if strings.Contains(value, `"`+hidden+`"`) {
			return 0, badInput("Replace each [redacted] by a value: what is not shown can't be copied.")
		}
	}
	if o.Priority, err = v.number("priority", "The priority"); err != nil {
		return 0, err
	}
	if o.MaxAttempts, err = v.number("max_attempts", "The number of attempts"); err != nil {
		return 0, err
	}
	if delay := text("delay"); delay != "" {
		d, err := time.ParseDuration(delay)
		if err != nil || d < 0 {
			return 0, badInput("The delay is a duration, such as 90s, 15m or 2h; got %q.", cut(delay, 50))
		}
		o.RunAt = time.Now().Add(d)
	}
	made, err := v.db.client.Enqueue(v.Context(), rawJob{text("kind"), json.RawMessage(args)}, &o)
	return made.ID, err
}
