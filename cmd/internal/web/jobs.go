package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/weir-pg/weir/internal/hub"
)

// serveJobs waits until one of the queues has work, for at most JobsWait.
func (w *Web) serveJobs(rw http.ResponseWriter, r *http.Request) {
	queues, token, err := w.waitJobs(r)
	if err != nil {
		w.explain("wait for jobs", err).write(rw)
		return
	}
	reply(rw, http.StatusOK, struct {
		Queues []string `json:"queues"`
		Token  string   `json:"token"` // for ?since= of the next wait
	}{queues, token})
}

func (w *Web) waitJobs(r *http.Request) (found []string, next string, err error) {
	queues := r.URL.Query()["queue"]
	if len(queues) == 0 {
		return nil, "", badRequest("the request names no queue", "name queues: /v1/jobs/wait?queue=mail&queue=files")
	}
	if len(queues) > w.Limits.Queues {
		return nil, "", badRequest(fmt.Sprintf("%d queues: one request may wait for up to %d", len(queues), w.Limits.Queues), "send several requests")
	}
	filters := make([]hub.Filter, len(queues))
	for i, q := range queues {
		filters[i] = hub.Channel(strings.Clone(q))
	}
	remote := strings.Clone(w.ClientAddress(r))
	if f := w.admit(remote); f != nil {
		return nil, "", f
	}
	defer w.release(remote)
	if _, err := w.authorize(r.Context(), Ask{Token: token(r), Action: WaitJobs, Filters: filters, Remote: remote}); err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(r.Context(), w.JobsWait)
	defer cancel()
	defer context.AfterFunc(w.ctx, cancel)() // a server that is stopping answers, so that the worker asks another server
	found, next, err = w.Jobs.Wait(ctx, queues, r.URL.Query().Get("since"))
	if found == nil {
		found = []string{}
	}
	if err != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.DeadlineExceeded)) {
		err = nil
	}
	return found, next, err
}
