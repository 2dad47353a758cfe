package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/store"
)

const (
	maxBody = 4 << 20 // bytes: the largest job that the database takes, or a thousand of 4 KiB
	maxJobs = 1000    // in a request
)

// enqueued is the answer: what has become of each job, in the order of the request.
type enqueued struct {
	Jobs []store.Answer `json:"jobs"`
}

func (j *Jobs) enqueue(ctx context.Context, c web.Caller, rw http.ResponseWriter, r *http.Request) (any, error) {
	grant, err := j.gate.Authorize(ctx, c, web.Enqueue) // before anything is read from a stranger
	if err != nil {
		return nil, err
	}
	key, err := requestKey(r.Header, c, grant)
	if err != nil {
		return nil, err
	}
	body, done, err := j.gate.Read(ctx, rw, r, maxBody)
	if err != nil {
		return nil, err
	}
	defer done()
	given, queues, err := parse(body)
	if err != nil {
		return nil, err
	}
	if _, ok := grant.Covers(web.Literal(queues)); !ok {
		if _, err := j.gate.Authorize(ctx, c, web.Enqueue, queues...); err != nil {
			return nil, err
		}
	}
	if given.plain != "" {
		at := &j.singles
		if key != "" {
			at = &j.keyed
		}
		answer, err := at.enqueue(ctx, key, given.plain)
		if err == nil && answer.ID > 0 {
			return enqueued{[]store.Answer{answer}}, nil
		} else if err != nil && !store.IsBadInput(err) {
			return nil, explain(ctx, err, key != "")
		} // else the following says what is wrong, or waits for the key
	}
	answers, repeated, err := j.store.EnqueueRequest(ctx, key, given.all)
	if err != nil {
		return nil, explain(ctx, err, key != "")
	}
	if repeated {
		rw.Header().Set("Idempotent-Replayed", "true")
	}
	return enqueued{answers}, nil
}

// request is what a body asks for.
type request struct {
	all   string // its jobs, as weir.enqueue_many takes them
	plain string // its only job, if weir.enqueue does the same; else ""
}

// plainFields are those of a job that needs nothing else than weir.enqueue.
var plainFields = []string{"queue", "kind", "args", "priority", "run_at", "max_attempts", "meta", "key", "flow"}

// parse returns the jobs of a body, and the queues that they name. What is sent to the database is made from what was
// read here, so that it names no others, however a body is written.
func parse(body []byte) (given request, queues []string, err error) {
	jobs, err := split(body)
	if err != nil {
		return given, nil, err
	}
	for i, fields := range jobs {
		var queue string
		if name := fields["queue"]; name == nil {
			return given, nil, refuse("job %d of %d names no queue", i+1, len(jobs))
		} else if err := json.Unmarshal(name, &queue); err != nil || queue == "" {
			return given, nil, refuse("job %d of %d: queue must be the name of a queue, got %.100s", i+1, len(jobs), name)
		}
		if fields["run_at"], err = runAt(fields["run_at"]); err != nil {
			return given, nil, refuse("job %d of %d: %s", i+1, len(jobs), err)
		}
		if fields["run_at"] == nil {
			delete(fields, "run_at")
		}
		if fields["queue"], err = json.Marshal(queue); err != nil {
			return given, nil, err
		}
		queues = append(queues, queue)
	}
	slices.Sort(queues)
	encoded, err := json.Marshal(jobs)
	given.all = string(encoded)
	if len(jobs) == 1 && !slices.ContainsFunc(slices.Collect(maps.Keys(jobs[0])), func(field string) bool { return !slices.Contains(plainFields, field) }) {
		given.plain = given.all[1 : len(given.all)-1] // without the brackets of the list
	}
	return given, slices.Compact(queues), err
}

// runAt returns the time of a job as the database reads it, whatever its settings; nil: it has none. The database takes much else for a time, such as "tomorrow".
func runAt(given json.RawMessage) (json.RawMessage, error) {
	if given == nil || string(given) == "null" {
		return nil, nil
	}
	var text string
	if json.Unmarshal(given, &text) == nil {
		for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05"} {
			if at, err := time.Parse(layout, text); err == nil {
				return json.Marshal(at.UTC())
			}
		}
	}
	return nil, fmt.Errorf("run_at must be a time as RFC 3339 has it, such as 2026-11-27T08:00:00Z, got %.100s", given)
}

// split decodes one job, or a list of them. A list that is too long is refused before it is built.
func split(body []byte) (jobs []map[string]json.RawMessage, err error) {
	from := json.NewDecoder(bytes.NewReader(body))
	one := func() error {
		var fields map[string]json.RawMessage
		if err := from.Decode(&fields); err != nil {
			return refuse("the body is not a job, nor a list of jobs: %s", web.Unreadable(err))
		}
		jobs = append(jobs, fields)
		return nil
	}
	if body = bytes.TrimLeft(body, " \t\r\n"); len(body) == 0 {
		return nil, refuse("the body is empty")
	}
	if body[0] != '[' {
		err = one()
	} else {
		_, err = from.Token()
		for err == nil && from.More() {
			if len(jobs) == maxJobs {
				return nil, web.Fail(http.StatusRequestEntityTooLarge, "limit", fmt.Sprintf("too many jobs: a request may have up to %d", maxJobs), "send several requests")
			}
			err = one()
		}
		if err == nil {
			if _, err = from.Token(); err != nil {
				err = refuse("the body is not valid JSON: the list does not end")
			}
		}
	}
	switch {
	case err != nil:
		return nil, err
	case from.More():
		return nil, refuse("the body has more than one JSON value")
	case len(jobs) == 0:
		return nil, refuse("the list has no jobs")
	}
	return jobs, nil
}

func refuse(format string, args ...any) error {
	return web.Fail(http.StatusBadRequest, "bad_request", fmt.Sprintf(format, args...), `send {"queue": …, "kind": …, "args": {…}}, or a list of such objects`)
}

// explain turns an error of the database into what the client can do about it.
func explain(ctx context.Context, err error, hasKey bool) error {
	again := "send it again with the same Idempotency-Key"
	if !hasKey {
		again = "with an Idempotency-Key you could send it again without enqueueing anything twice"
	}
	switch text := strings.TrimPrefix(store.Reason(err), "weir: "); {
	case store.IsRequestKeyUsed(err):
		return web.Fail(http.StatusUnprocessableEntity, "key_reused", text, store.Hint(err))
	case store.IsFlowEnded(err):
		return web.Fail(http.StatusConflict, "conflict", text, store.Hint(err))
	case store.IsBadInput(err):
		return web.Fail(http.StatusBadRequest, "bad_request", text, store.Hint(err))
	case errors.Is(err, context.DeadlineExceeded), ctx.Err() != nil, store.IsUnanswered(err):
		return web.Fail(http.StatusServiceUnavailable, "unavailable", "the database did not answer: the jobs may be enqueued nevertheless", again)
	}
	return err
}
