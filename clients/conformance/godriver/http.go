package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// remote is a hub that serves jobs, as docs/work-http.md describes it. The library has no client for that: this one is here so that the suite
// tests the hub, and shows what a client does.
type remote struct{ hub string }

// remoteError is a refusal of a hub, or that it can't be reached.
type remoteError struct {
	Status int    `json:"-"` // 0: there was no answer
	Code   string `json:"code"`
	Text   string `json:"error"`
	Hint   string `json:"hint"`
}

func (e *remoteError) Error() string { return fmt.Sprintf("%s (%s)", e.Text, e.Hint) }

func (e *remoteError) code() string {
	switch e.Status {
	case 400, 413, 422:
		return "invalid"
	case 401, 403:
		return "denied"
	case 404:
		return "not_found"
	case 0, 408, 429, 503:
		return "unavailable"
	}
	return "other"
}

// call makes a request, and decodes the answer.
func (r *remote) call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return &remoteError{Status: 400, Text: err.Error()}
	}
	request, err := http.NewRequestWithContext(ctx, method, r.hub+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return &remoteError{Text: err.Error(), Hint: "is the hub running?"}
	}
	defer response.Body.Close()
	if body, err = io.ReadAll(response.Body); err != nil {
		return &remoteError{Text: err.Error()}
	}
	if response.StatusCode != http.StatusOK {
		refusal := &remoteError{Status: response.StatusCode, Text: string(body)}
		_ = json.Unmarshal(body, refusal)
		return refusal
	}
	return json.Unmarshal(body, out)
}

// enqueue enqueues jobs. The JSON of a job is that of the suite, except for a time, which is a text in SQL.
func (r *remote) enqueue(ctx context.Context, jobs []newJob) ([]object, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	all := make([]object, len(jobs))
	for i, j := range jobs {
		o := object{"queue": j.Queue, "kind": j.Kind}
		for name, v := range map[string]any{"priority": orNull(j.Priority), "max_attempts": orNull(j.MaxAttempts), "key": orNull(j.Key), "flow": orNull(j.Flow)} {
			if v != nil {
				o[name] = v
			}
		}
		if j.Args != nil {
			o["args"] = j.Args
		}
		if j.Meta != nil {
			o["meta"] = j.Meta
		}
		if !j.RunAt.IsZero() {
			o["run_at"] = j.RunAt
		}
		if u := j.Unique; u != nil {
			unique := object{}
			if u.Key != "" {
				unique["key"] = u.Key
			}
			if u.Fields != nil {
				unique["fields"] = u.Fields
			}
			if u.Until != "" {
				unique["until"] = u.Until
			}
			if u.Within > 0 {
				unique["within"] = fmt.Sprintf("%g seconds", u.Within)
			}
			if u.Replace {
				unique["replace"] = true
			}
			if u.Wait {
				unique["wait"] = true
			}
			o["unique"] = unique
		}
		all[i] = o
	}
	var answer struct {
		Jobs []object `json:"jobs"`
	}
	err := r.call(ctx, "POST", "/v1/jobs", all, &answer)
	return answer.Jobs, err
}

// look looks a job up, or cancels it.
func (r *remote) look(ctx context.Context, c command) (answer object, err error) {
	path := fmt.Sprintf("/v1/jobs/%d", c.ID)
	if c.Do == "cancel" {
		err = r.call(ctx, "POST", path+"/cancel", object{}, &answer)
		return answer, err
	}
	err = r.call(ctx, "GET", path, nil, &answer)
	return object{"job": answer}, err
}
