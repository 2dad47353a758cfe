package weirui

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/store"
)

func queueEndpoints() []endpoint {
	return []endpoint{
		page("queues", listQueues).takes("name", "after"),
		page("queues/{name}", showQueue).takes("hours"),
		action(Operator, "queues/{name}/pause", pauseQueue),
		action(Operator, "queues/{name}/resume", resumeQueue),
		action(Admin, "queues/{name}/limit", limitQueue).takes("running", "starts", "per"),
	}
}

// queue is a queue with its limits.
type queue struct {
	weir.QueueInfo
	Limit *queueLimit `json:"limit,omitempty"`   // of the queue as a whole; nil: none
	Keys  *queueLimit `json:"per_key,omitempty"` // of each of its keys
}

// queues lists all queues.
func (v *visit) queues() ([]queue, error) {
	return read(v.Context(), v.db, "queues", func(ctx context.Context) ([]queue, error) {
		found, err := v.db.client.Queues(ctx)
		if err != nil {
			return nil, err
		}
		limits, err := v.db.client.Limits(ctx)
		if err != nil {
			return nil, err
		}
		type limited struct {
			name   string
			perKey bool
		}
		by := make(map[limited]*queueLimit, len(limits))
		for _, l := range limits {
			by[limited{l.Queue, l.PerKey}] = &queueLimit{l}
		}
		all := make([]queue, len(found))
		for i, q := range found {
			all[i] = queue{q, by[limited{q.Name, false}], by[limited{q.Name, true}]}
		}
		return all, nil
	})
}

// limitOf finds the limit of a queue, or of its keys.
func limitOf(limits []weir.QueueLimit, name string, perKey bool) *queueLimit {
	for i, l := range limits {
		if l.Queue == name && l.PerKey == perKey {
			return &queueLimit{limits[i]}
		}
	}
	return nil
}

// Depth is how many jobs wait, without more precision than is read.
func (q queue) Depth() string {
	if q.Approximate && q.Available >= 10_000 {
		return "10,000+"
	}
	return number(q.Available)
}

// Waited is how long the oldest job has waited; 0: none waits.
func (q queue) Waited() time.Duration {
	if q.ReadySince == nil {
		return 0
	}
	return max(time.Since(*q.ReadySince), 0)
}

func showQueue(v *visit) (*view, error) {
	name := v.name()
	queues, err := v.queues()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(queues, func(q queue) bool { return q.Name == name })
	if at < 0 {
		return nil, noQueue(name)
	}
	settings, err := read(v.Context(), v.db, "settings", v.db.client.Settings)
	if err != nil {
		return nil, err
	}
	past, err := v.charts(name)
	if err != nil {
		return nil, err
	}
	settings = slices.DeleteFunc(slices.Clone(settings), func(s weir.Setting) bool { return s.Queue != name })
	return &view{template: "queue", title: "Queue " + name, data: struct {
		Queue    queue          `json:"queue"`
		Settings []weir.Setting `json:"settings"`
		History  *history       `json:"-"`
	}{queues[at], listed(settings), past}}, nil
}

func noQueue(name string) error {
	return &problem{404, fmt.Sprintf("There is no queue %q.", cut(name, 200)), "A queue comes into being with its first job or its first worker."}
}

func pauseQueue(v *visit) (string, error) {
	return v.onNamed("Queue %s is paused. Running jobs continue.", v.db.client.PauseQueue, noQueue)
}

func resumeQueue(v *visit) (string, error) {
	return v.onNamed("Queue %s is resumed.", v.db.client.ResumeQueue, noQueue)
}

// limitQueue sets how many jobs of a queue may run at a time, and how many may start in a time. The limits of its keys stay as they are, and the burst, if
// the rate does.
func limitQueue(v *visit) (string, error) {
	name := v.name()
	running, err := v.number("running", "The number of jobs that may run at a time")
	if err != nil {
		return "", err
	}
	limit := weir.Limit{Running: running}
	if text := strings.TrimSpace(v.PostForm.Get("starts")); text != "" {
		if limit.Rate.Starts, err = strconv.ParseFloat(text, 64); err != nil || !(limit.Rate.Starts > 0) {
			return "", badInput("The number of jobs that may start is a number above 0, or empty for any; got %q.", cut(text, 50))
		}
		if limit.Rate.Per, err = time.ParseDuration(cmp.Or(strings.TrimSpace(v.PostForm.Get("per")), "1s")); err != nil {
			return "", badInput("The time in which so many jobs may start is a duration, such as 1s, 1m or 1h; got %q.", cut(v.PostForm.Get("per"), 50))
		}
	}
	if limit == (weir.Limit{}) {
		_, err := store.New(v.db.Pool, 0).ClearLimit(v.Context(), name, new(false)) // that of the queue alone, in one step
		return "Queue " + name + " has no queue-wide limits.", err
	}
	limits, err := v.db.client.Limits(v.Context())
	if err != nil {
		return "", err
	}
	if was := limitOf(limits, name, false); was != nil && was.Rate.Starts == limit.Rate.Starts && cmp.Or(was.Rate.Per, time.Second) == limit.Rate.Per {
		limit.Rate.Burst = was.Rate.Burst
	}
	return "Queue " + name + " has new limits.", v.db.client.SetLimit(v.Context(), name, limit)
}

// number reads a number from the form; 0: the field is empty.
func (v *visit) number(field, what string) (int, error) {
	text := strings.TrimSpace(v.PostForm.Get(field))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, badInput("%s is a number from 1 on, or empty for any; got %q.", what, cut(text, 50))
	}
	return n, nil
}
