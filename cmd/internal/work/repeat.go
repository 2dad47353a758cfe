package work

import (
	"context"
	"slices"

	"github.com/weir-pg/weir/internal/store"
)

// repeated finds out which of the ends whose attempts had ended are the ends that the database has: a client that repeats a call is answered as if it had got the first answer. Only
// the database knows, because another hub may have recorded another end.
func (d *Dispatcher) repeated(ctx context.Context, ends []remote, w *waiting) {
	ids := w.endedBefore(ends)
	if len(ids) == 0 {
		return
	}
	if found, err := d.Calls.Glances(ctx, ids, true); err == nil { // else it has ended, in whatever way
		w.repeats(ends, found)
	}
}

// endedBefore returns the jobs whose attempts had ended.
func (w *waiting) endedBefore(ends []remote) (ids []int64) {
	for i, r := range w.results {
		if r.Refusal == string(store.HasEnded) && w.outcomes[i] != "" {
			ids = append(ids, ends[i].id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// repeats answers as recorded those ends that the database has, by what it says of their jobs.
func (w *waiting) repeats(ends []remote, found []store.Glance) {
	jobs := make(map[int64]store.Glance, len(found))
	for _, g := range found {
		jobs[g.ID] = g
	}
	for i, r := range w.results {
		if outcome := w.outcomes[i]; r.Refusal == string(store.HasEnded) && outcome != "" && ends[i].is(outcome, jobs[ends[i].id]) {
			w.results[i] = Result{Token: r.Token, Recorded: true}
		}
	}
}

// is reports whether the end is the one with which its attempt has ended, with this outcome; g is the job as it is now.
func (r *remote) is(outcome store.Outcome, g store.Glance) bool {
	sent := r.end()
	switch {
	case sent.Outcome == outcome:
	case sent.Outcome == store.Completed || outcome == store.Completed:
		return false
	case outcome == store.Cancelled && g.Cancelled: // the job was cancelled: whatever was sent but a success became this
	case outcome == store.Failed && sent.Outcome == store.Retried: // its last attempt
	case sent.Outcome == store.Retried && sent.After != nil && *sent.After < 0: // a retry rule may have decided otherwise
	default:
		return false
	}
	switch outcome {
	case store.Completed, store.Failed, store.Cancelled: // there is no later attempt, unless somebody wanted one
		return g.State == string(outcome) && g.Worker == r.worker && equal(sent.Error, g.Error) && equal(sent.Output, g.Output)
	}
	return equal(sent.Error, g.Error)
}

func equal(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }
