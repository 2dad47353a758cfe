package work

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/store"
)

// maxEntries is how many attempts one call may report on.
const maxEntries = 1000

func (e *endpoints) progress(_ web.Caller, rw http.ResponseWriter, r *http.Request) (any, error) {
	var body struct {
		Entries json.RawMessage `json:"entries"`
	}
	if err := e.read(rw, r, &body); err != nil {
		return nil, err
	}
	all, err := e.Report(r.Context(), body.Entries)
	return results{all}, err
}

// entry is what an attempt reports; the database checks all but the token.
type entry struct {
	Token      string          `json:"token"`
	Percent    json.RawMessage `json:"percent,omitempty"`
	Message    json.RawMessage `json:"message,omitempty"`
	Checkpoint json.RawMessage `json:"checkpoint,omitempty"`
	Log        json.RawMessage `json:"log,omitempty"`

	invalid string // what is wrong with it; "": nothing
}

// UnmarshalJSON keeps what is wrong, so that it refuses this entry alone.
func (e *entry) UnmarshalJSON(b []byte) error {
	type plain entry
	if err := decodeStrictly(b, (*plain)(e)); err != nil {
		e.invalid = "it is no entry: " + web.Unreadable(err)
	}
	return nil
}

// Report stores what attempts report, whichever hub has given them out, and returns what became of each.
func (d *Dispatcher) Report(ctx context.Context, entries json.RawMessage) ([]Result, error) {
	var all web.List[entry]
	if err := json.Unmarshal(entries, &all); err != nil {
		return nil, &BadError{"entries must be a list of objects: " + web.Unreadable(err), `for example {"entries": [{"token": "…", "percent": 42.5}]}`}
	}
	if len(all) < 1 || len(all) > maxEntries {
		return nil, &BadError{fmt.Sprintf("a request may have 1 to %d entries, got %d", maxEntries, len(all)), ""}
	}
	results := make([]Result, len(all))
	byWorker := map[int32][]entry{}
	places := map[int32]map[string][]int{}
	for i, e := range all {
		results[i].Token = e.Token
		k, err := d.tokens.parse(e.Token)
		switch {
		case e.invalid != "":
			results[i].Refusal, results[i].Detail = "invalid", e.invalid
			continue
		case err != nil:
			results[i].Refusal, results[i].Detail = "invalid", err.Error()
			continue
		}
		inner := fmt.Sprintf("%d.%d.%d", k.lane, k.seq, k.id) // as SQL names it
		e.Token = inner
		results[i].Recorded = true
		byWorker[k.worker] = append(byWorker[k.worker], e)
		if places[k.worker] == nil {
			places[k.worker] = map[string][]int{}
		}
		places[k.worker][inner] = append(places[k.worker][inner], i)
	}
	for worker, some := range byWorker {
		text, err := json.Marshal(some)
		if err != nil {
			return nil, err
		}
		refused, err := d.Calls.Progress(ctx, worker, string(text))
		switch {
		case isGone(err):
			for _, at := range places[worker] {
				for _, i := range at {
					results[i].Recorded, results[i].Refusal = false, "lost"
				}
			}
			continue
		case store.IsBadArgument(err):
			return nil, &BadError{err.Error(), ""}
		case err != nil:
			return nil, err
		}
		for _, r := range refused {
			for _, i := range places[worker][r.Token] {
				results[i].Recorded, results[i].Refusal, results[i].Detail = false, r.Why, r.Detail
			}
		}
	}
	return results, nil
}
