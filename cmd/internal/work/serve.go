package work

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/store"
)

const (
	maxBody     = 8 << 20
	defaultWait = 20 * time.Second
	longestWait = time.Minute
	recordFor   = 30 * time.Second
)

// Register implements web.Endpoints.
func (d *Dispatcher) Register(g *web.Gate) {
	e := &endpoints{Dispatcher: d, gate: g}
	g.Handle("POST /v1/work/take", e.serve("hand out jobs", e.take))
	g.Handle("POST /v1/work/record", e.serve("record ends", e.record))
	g.Handle("POST /v1/work/progress", e.serve("store progress", e.progress))
	g.Handle("DELETE /v1/work/{worker}", e.serve("end a worker", e.delete))
	g.Handle("GET /v1/work/ws", e.serveWebSocket)
}

// endpoints are what a Dispatcher serves.
type endpoints struct {
	*Dispatcher
	gate *web.Gate
}

// serve returns a handler that admits a request, asks whether the client may work at all, and answers with what do returns.
func (e *endpoints) serve(doing string, do func(web.Caller, http.ResponseWriter, *http.Request) (any, error)) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		caller, release, err := e.gate.Admit(r)
		if err != nil {
			e.gate.Refuse(rw, doing, err)
			return
		}
		defer release()
		_, err = e.gate.Authorize(r.Context(), caller, web.Work)
		var answer any
		if err == nil {
			answer, err = do(caller, rw, r)
		}
		if err != nil {
			e.gate.Refuse(rw, doing, asFailure(err))
			return
		}
		web.Reply(rw, http.StatusOK, answer)
	}
}

// asFailure converts an error of this package to one for clients.
func asFailure(err error) error {
	var bad *BadError
	var limit *LimitError
	switch {
	case errors.As(err, &bad):
		return web.Fail(http.StatusBadRequest, "bad_request", bad.Text, bad.Hint)
	case errors.As(err, &limit):
		return web.Fail(http.StatusTooManyRequests, "limit", limit.text, "try again later, or at another hub")
	case store.IsDenied(err):
		return web.Fail(http.StatusServiceUnavailable, "unavailable", "the hub may not work jobs: its user lacks the role weir_work in the database", "its operator has to grant it; then try again")
	case errors.Is(err, errNoWorker):
		return web.Fail(http.StatusServiceUnavailable, "unavailable", "the hub can't work jobs now", "try again; if this persists, see the server's log")
	}
	return err
}

// read reads a request's body into a value.
func (e *endpoints) read(rw http.ResponseWriter, r *http.Request, into any) error {
	body, done, err := e.gate.Read(r.Context(), rw, r, maxBody)
	if err != nil {
		return err
	}
	defer done()
	if err := json.Unmarshal(body, into); err != nil {
		return &BadError{"the body is not a valid request: " + web.Unreadable(err), "docs/work-http.md describes it"}
	}
	return nil
}

// opening is the JSON of an Opening.
type opening struct {
	Worker string           `json:"worker"`
	Name   string           `json:"name"`
	Queues numbers          `json:"queues"`
	Kinds  web.List[string] `json:"kinds"`
	Held   web.List[string] `json:"held"`
	Call   int64            `json:"call"`
	Wait   *float64         `json:"wait"`
}

// numbers says how many jobs of which queues; there are no more of them than a list may have.
type numbers map[string]int

// UnmarshalJSON implements json.Unmarshaler.
func (n *numbers) UnmarshalJSON(b []byte) error {
	from := json.NewDecoder(bytes.NewReader(b))
	if first, err := from.Token(); err != nil || first != json.Delim('{') {
		return errors.New(`"queues" must be an object such as {"mail": 8}`)
	}
	*n = numbers{}
	for from.More() {
		name, err := from.Token()
		if err != nil {
			return err
		}
		var count int
		if err := from.Decode(&count); err != nil {
			return fmt.Errorf("queue %.150q: the number of jobs must be a whole number", name)
		}
		if (*n)[name.(string)] = count; len(*n) > maxAtOnce {
			return fmt.Errorf("a worker may name %d queues", maxAtOnce)
		}
	}
	return nil
}

// taken is the answer of take.
type taken struct {
	Worker   string        `json:"worker"`
	Lease    float64       `json:"lease"`
	Waited   float64       `json:"waited"` // for how many seconds the call had waited when it was told the first of the jobs
	Jobs     []Job         `json:"jobs"`
	Cancel   []Interrupted `json:"cancel"`
	Quiet    bool          `json:"quiet,omitempty"`
	Warnings []string      `json:"warnings,omitempty"`
}

func (e *endpoints) take(caller web.Caller, rw http.ResponseWriter, r *http.Request) (any, error) {
	var o opening
	if err := e.read(rw, r, &o); err != nil {
		return nil, err
	}
	wait := defaultWait
	if o.Wait != nil {
		if !(*o.Wait >= 0 && *o.Wait <= longestWait.Seconds()) {
			return nil, &BadError{fmt.Sprintf("wait must be 0 to %g seconds, got %g", longestWait.Seconds(), *o.Wait), ""}
		}
		wait = time.Duration(*o.Wait * float64(time.Second))
	}
	if len(o.Held) > 0 {
		wait = min(wait, e.Lease/3) // a client counts the lease from when it sent the call before: half would leave it nothing
	}
	if _, err := e.gate.Authorize(r.Context(), caller, web.Work, slices.Sorted(maps.Keys(o.Queues))...); err != nil {
		return nil, err
	}
	c, err := e.Open(r.Context(), Opening{o.Worker, o.Name, o.Queues, o.Kinds, o.Held, o.Call}, false)
	if err != nil {
		return nil, err
	}
	if len(c.Interrupted()) > 0 {
		wait = 0
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	defer context.AfterFunc(e.gate.Context(), cancel)()
	news, err := c.Wait(ctx)
	if err != nil && !errors.Is(err, errRenewed) {
		return nil, &BadError{err.Error(), "begin without worker"}
	}
	gone := r.Context().Err() != nil
	if gone {
		c.Unsent(news.Jobs)
	}
	news.add(c.Close(gone))
	return c.answer(news)
}

// answer is the answer of take to a call that is closed.
func (c *Call) answer(news News) (answer taken, err error) {
	if news.Trouble != nil && len(news.Jobs) == 0 && len(news.Interrupted) == 0 && len(c.Interrupted()) == 0 {
		return answer, news.Trouble
	}
	answer = taken{Worker: c.ID(), Lease: c.Session.d.Lease.Seconds(), Jobs: news.Jobs, Cancel: c.Interrupted(), Quiet: news.Quiet}
	for _, i := range news.Interrupted { // those that have ended since
		if !slices.Contains(answer.Cancel, i) {
			answer.Cancel = append(answer.Cancel, i)
		}
	}
	answer.Warnings = c.warnings()
	if !c.told.IsZero() {
		answer.Waited = c.told.Sub(c.begun).Seconds()
	}
	if answer.Jobs == nil {
		answer.Jobs = []Job{}
	}
	if answer.Cancel == nil {
		answer.Cancel = []Interrupted{}
	}
	return answer, nil
}

// results is the answer of record and progress.
type results struct {
	Results []Result `json:"results"`
}

func (e *endpoints) record(_ web.Caller, rw http.ResponseWriter, r *http.Request) (any, error) {
	var body struct {
		Ends web.List[End] `json:"ends"`
	}
	if err := e.read(rw, r, &body); err != nil {
		return nil, err
	}
	if err := checkEnds(len(body.Ends)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), recordFor)
	defer cancel()
	return results{e.Record(ctx, body.Ends, true)}, nil
}

func checkEnds(n int) error {
	if n < 1 || n > MaxRecord {
		return &BadError{fmt.Sprintf("a request may have 1 to %d ends, got %d", MaxRecord, n), `for example {"ends": [{"token": "…"}]}`}
	}
	return nil
}

func (e *endpoints) delete(_ web.Caller, _ http.ResponseWriter, r *http.Request) (any, error) {
	ctx, cancel := context.WithTimeout(r.Context(), recordFor)
	defer cancel()
	return struct {
		Ended bool `json:"ended"`
	}{e.End(ctx, r.PathValue("worker"))}, nil
}
