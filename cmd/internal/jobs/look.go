package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/weir-pg/weir/cmd/internal/web"
)

// look returns a job as weir.job_info does. What is encrypted stays so.
func (j *Jobs) look(ctx context.Context, c web.Caller, _ http.ResponseWriter, r *http.Request) (any, error) {
	_, text, err := j.find(ctx, c, r.PathValue("id"))
	return json.RawMessage(text), err
}

// canceled is the answer to a request to cancel a job, in the fields of a job.
type canceled struct {
	ID        int64  `json:"id"`
	State     string `json:"state"`
	Requested bool   `json:"cancel_requested"` // the job's worker will be told to stop it
}

func (j *Jobs) cancel(ctx context.Context, c web.Caller, _ http.ResponseWriter, r *http.Request) (any, error) {
	id, _, err := j.find(ctx, c, r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	state, err := j.store.Cancel(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case state == "":
		return nil, unknown(r.PathValue("id"))
	case state == "requested":
		return canceled{id, "running", true}, nil
	}
	return canceled{id, state, state == "cancelled"}, nil
}

// find returns a job of a queue that the caller may use.
func (j *Jobs) find(ctx context.Context, c web.Caller, name string) (id int64, text string, err error) {
	grant, err := j.gate.Authorize(ctx, c, web.Enqueue) // strangers learn nothing, and cost the database nothing
	if err != nil {
		return 0, "", err
	}
	if id, err = strconv.ParseInt(name, 10, 64); err != nil || id < 1 {
		return 0, "", unknown(name)
	}
	if text, err = j.store.LookUpJSON(ctx, id); err != nil {
		return 0, "", err
	}
	if text == "" {
		return 0, "", unknown(name)
	}
	var job struct {
		Queue string `json:"queue"`
	}
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return 0, "", fmt.Errorf("read job %d: %w", id, err)
	}
	if _, ok := grant.Covers(web.Literal([]string{job.Queue})); ok {
		return id, text, nil
	}
	if _, err := j.gate.Authorize(ctx, c, web.Enqueue, job.Queue); err != nil {
		if f := new(web.Failure); errors.As(err, &f) && f.Status == http.StatusForbidden {
			return 0, "", unknown(name)
		}
		return 0, "", err
	}
	return id, text, nil
}

// unknown is the answer for jobs that do not exist, and for those that the token may not see.
func unknown(name string) error {
	return web.Fail(http.StatusNotFound, "not_found", fmt.Sprintf("job %.50s is unknown", name),
		"it may have been deleted when its retention was over; or your token allows no enqueue for its queue")
}
