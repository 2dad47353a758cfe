package work

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// MaxRecord is how many ends one call takes.
const MaxRecord = 1000

// End is how an attempt ended, as its worker says.
type End struct {
	Token   string          `json:"token"`
	Outcome string          `json:"outcome"`
	Error   *string         `json:"error"`
	Output  json.RawMessage `json:"output"`
	Delay   *float64        `json:"delay"`
	Final   bool            `json:"final"`

	invalid string // what is wrong with it; "": nothing
}

// UnmarshalJSON keeps what is wrong, so that it refuses this end alone.
func (e *End) UnmarshalJSON(b []byte) error {
	type plain End
	if err := decodeStrictly(b, (*plain)(e)); err != nil {
		e.invalid = "it is no end: " + web.Unreadable(err)
	}
	return nil
}

// decodeStrictly decodes an object that may have no fields but those of the value.
func decodeStrictly(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// maxDelay is ten years.
const maxDelay = 315_576_000

// result converts the end; invalid is what is wrong with it.
func (e *End) result() (r worker.Result, invalid string) {
	if e.invalid != "" {
		return r, e.invalid
	}
	switch e.Outcome {
	case "", "completed":
		r.Outcome = store.Completed
	case "failed":
		if r.Outcome = store.Retried; e.Final {
			r.Outcome = store.Failed
		}
	case "cancelled":
		r.Outcome = store.Cancelled
	case "snoozed":
		r.Outcome = store.Snoozed
	case "released":
		r.Outcome = store.Released
	default:
		return r, fmt.Sprintf("outcome must be completed, failed, cancelled, snoozed or released, got %.100q", e.Outcome)
	}
	if e.Delay != nil && !(*e.Delay >= 0 && *e.Delay <= maxDelay) {
		return r, fmt.Sprintf("delay must be a number of seconds from 0 to %d (ten years), got %g", maxDelay, *e.Delay)
	}
	switch r.Outcome {
	case store.Retried, store.Snoozed, store.Released:
		after := store.ByQueue
		if e.Delay != nil {
			after = time.Duration(*e.Delay * float64(time.Second))
		}
		if r.After = &after; after == 0 {
			r.After = nil // at once, without a way through what is scheduled
		}
	}
	if e.Error != nil {
		r.Err = errors.New(*e.Error)
	}
	if text, ok := textOf(e.Output); ok {
		r.Output = &text
	}
	return r, ""
}

// textOf returns an output as a text: a string as it is, another value as JSON.
func textOf(v json.RawMessage) (text string, ok bool) {
	if len(v) == 0 || string(v) == "null" {
		return "", false
	}
	if v[0] == '"' && json.Unmarshal(v, &text) == nil {
		return text, true
	}
	return string(v), true
}

// Result says whether an end was recorded, or why not.
type Result struct {
	Token    string `json:"token"`
	Recorded bool   `json:"recorded"`
	Refusal  string `json:"refusal,omitempty"`
	Detail   string `json:"detail,omitempty"`
}

// unavailable means that it is not known whether an end was recorded: record it again.
const unavailable = "unavailable"

// Record records ends, and returns what became of each once it is known, or ctx ends; soon: who reports them goes on only then.
func (d *Dispatcher) Record(ctx context.Context, ends []End, soon bool) []Result {
	w, all, elsewhere := d.recordHere(ends, soon)
	for _, worker := range slices.Sorted(maps.Keys(elsewhere)) {
		d.recordRemote(ctx, worker, elsewhere[worker], w)
	}
	results, known := w.wait(ctx)
	if known {
		d.repeated(ctx, all, w)
	}
	return results
}

// recordHere ends those attempts that this hub holds, and returns who waits for what becomes of them, all ends, and those of attempts of other hubs by their workers.
func (d *Dispatcher) recordHere(ends []End, soon bool) (w *waiting, all []remote, elsewhere map[int32][]remote) {
	w = newWaiting(len(ends))
	all = make([]remote, len(ends))
	elsewhere = map[int32][]remote{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range ends {
		e := &ends[i]
		w.results[i].Token = e.Token
		k, err := d.tokens.parse(e.Token)
		r, invalid := e.result()
		r.Soon = soon
		if err != nil {
			invalid = err.Error()
		}
		if invalid != "" {
			w.settle(i, "invalid", invalid)
			continue
		}
		all[i] = remote{i, k, r}
		a := d.attempts[k]
		if a == nil {
			elsewhere[k.worker] = append(elsewhere[k.worker], all[i])
			continue
		}
		first := a.finish(r)
		a.told = append(a.told, func(s settlement) {
			switch {
			case s.outcome == store.Lost:
				w.settle(i, "lost", "")
			case !first || s.found: // it has an end, which may be this one
				w.ended(i, s.outcome, "")
			case s.why != nil: // it was recorded in another way, for this reason
				w.settle(i, "", s.why.Error())
			default:
				w.settle(i, "", "")
			}
		})
		if first {
			a.queue.drop(a)
			d.ended(a)
			d.freed(a)
		}
	}
	return w, all, elsewhere
}

// waiting collects the results of a call.
type waiting struct {
	results  []Result
	outcomes []store.Outcome // in the database, of attempts that had ended; "": of others
	left     atomic.Int32
	done     chan struct{}
}

func newWaiting(n int) *waiting {
	w := &waiting{results: make([]Result, n), outcomes: make([]store.Outcome, n), done: make(chan struct{})}
	if w.left.Store(int32(n)); n == 0 {
		close(w.done)
	}
	return w
}

// settle sets one result.
func (w *waiting) settle(i int, refusal, detail string) {
	w.results[i].Recorded, w.results[i].Refusal, w.results[i].Detail = refusal == "", refusal, detail
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
}

// ended sets the result of an end whose attempt has one already.
func (w *waiting) ended(i int, outcome store.Outcome, detail string) {
	w.outcomes[i] = outcome
	w.settle(i, string(store.HasEnded), detail)
}

// wait returns the results, and whether all are known.
func (w *waiting) wait(ctx context.Context) ([]Result, bool) {
	select {
	case <-w.done:
		return w.results, true
	case <-ctx.Done():
	}
	// Results may still be written: say of all that they are not known. It is safe to record an end twice.
	all := make([]Result, len(w.results))
	for i := range all {
		all[i] = Result{Token: w.results[i].Token, Refusal: unavailable, Detail: "the database does not answer in time: record it again"}
	}
	return all, false
}

// remote is an end of an attempt that this hub does not hold.
type remote struct {
	i int
	key
	result worker.Result
}

const (
	busyTries = 20
	busyPause = 100 * time.Millisecond
)

// recordRemote records ends of attempts that another hub has given out, or this one before it was restarted, and tells that hub.
func (d *Dispatcher) recordRemote(ctx context.Context, id int32, some []remote, w *waiting) {
	for n := 0; len(some) > 0; n++ {
		refused, err := d.Calls.Record(ctx, id, endsOf(some))
		if err != nil {
			d.unrecorded(some, err, w)
			return
		}
		if some = d.recorded(id, some, refused, w); len(some) == 0 {
			return
		}
		if n == busyTries || !sleep.For(ctx, busyPause) {
			for _, r := range some {
				w.settle(r.i, string(store.Busy), "a transaction that completes the attempt is open: record it again later")
			}
			return
		}
	}
}

// endsOf sorts ends, and returns them in the form in which they are recorded.
func endsOf(some []remote) []store.End {
	slices.SortFunc(some, func(a, b remote) int { return a.compare(b.key) })
	ends := make([]store.End, len(some))
	for i, r := range some {
		ends[i] = r.end()
	}
	return ends
}

// unrecorded settles ends after a call that has failed.
func (d *Dispatcher) unrecorded(some []remote, err error, w *waiting) {
	refusal, detail := unavailable, "the database does not answer now: record it again"
	if isGone(err) {
		refusal, detail = "lost", ""
	} else {
		d.Log.Warn("weir: jobs over HTTP: can't record ends", "error", err)
	}
	for _, r := range some {
		w.settle(r.i, refusal, detail)
	}
}

// recorded settles ends that were recorded, and tells the hub that has given out the attempts. It returns those that are to be recorded again.
func (d *Dispatcher) recorded(id int32, some []remote, refused []store.Refusal, w *waiting) (busy []remote) {
	why := map[int]store.Refusal{}
	for _, r := range refused {
		why[r.Place-1] = r
	}
	var ended []key
	for i, r := range some {
		switch f := why[i]; f.Why {
		case store.Busy:
			busy = append(busy, r)
		case store.HasEnded:
			ended = append(ended, r.key)
			w.ended(r.i, f.Outcome, f.Detail)
		default:
			ended = append(ended, r.key)
			w.settle(r.i, string(f.Why), f.Detail)
		}
	}
	d.peers.tell(id, ended, opEnded)
	return busy
}

// end returns the end in the form in which it is recorded.
func (r *remote) end() store.End {
	e := store.End{Batch: store.Batch{Lane: r.lane, Seq: r.seq}, ID: r.id, Outcome: r.result.Outcome, After: r.result.After}
	if r.result.Err != nil {
		text := worker.StoredError(r.result.Err.Error())
		e.Error = &text
	}
	if r.result.Output != nil {
		if text, err := worker.StoredOutput(nil, *r.result.Output); err == nil {
			e.Output = &text
		}
	}
	return e
}

// endedElsewhere ends an attempt here whose end another hub has recorded: the database will say so.
func endedElsewhere() worker.Result {
	return worker.Result{Outcome: store.Released}
}
