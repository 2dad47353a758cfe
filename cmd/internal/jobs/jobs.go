// Package jobs serves jobs over HTTP to those who do not work them: it enqueues them, looks them up and cancels them.
// docs/work-http.md describes its protocol.
//
//	w, err := web.New(web.Config{Endpoints: []web.Endpoints{jobs.New(store)}, …})
//
// A token allows this by queue (web.Enqueue). A job of a queue that it does not allow is as unknown as one that does not exist.
//
// It keeps nothing between requests, and has no goroutines but those that enqueue for several of them: any hub of the database answers a request as any other does.
package jobs

import (
	"context"
	"net/http"
	"time"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/store"
)

// patience is how long a request may take, waits for a connection and for the database included.
const patience = 10 * time.Second

// Jobs implements web.Endpoints.
type Jobs struct {
	store          *store.Store
	gate           *web.Gate
	singles, keyed together
}

// New returns endpoints that use the store, whose role needs weir_work. Its sessions should have UTC as their time zone, in which they write
// times, and read those that name none.
func New(s *store.Store) *Jobs {
	return &Jobs{store: s, singles: together{store: s}, keyed: together{store: s, keyed: true}}
}

// Register implements web.Endpoints.
func (j *Jobs) Register(g *web.Gate) {
	j.gate = g
	g.Handle("POST /v1/jobs", j.serve("enqueue jobs", j.enqueue))
	g.Handle("GET /v1/jobs/{id}", j.serve("look up a job", j.look))
	g.Handle("POST /v1/jobs/{id}/cancel", j.serve("cancel a job", j.cancel))
}

// serve returns a handler that admits a request and answers it with what do returns.
func (j *Jobs) serve(doing string, do func(context.Context, web.Caller, http.ResponseWriter, *http.Request) (any, error)) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		caller, release, err := j.gate.Admit(r)
		if err != nil {
			j.gate.Refuse(rw, doing, err)
			return
		}
		defer release()
		answer, err := do(ctx, caller, rw, r)
		if store.IsDenied(err) {
			_ = j.gate.Explain(doing, err) // it logs it
			err = web.Fail(http.StatusServiceUnavailable, "unavailable", "the hub may not "+doing+": its user lacks the role weir_work in the database", "its operator has to grant it; then try again")
		}
		if err != nil {
			j.gate.Refuse(rw, doing, err)
			return
		}
		web.Reply(rw, http.StatusOK, answer)
	}
}
