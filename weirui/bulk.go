package weirui

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weir-pg/weir"
)

// bulkEndpoints are the actions on all jobs that the filter of the list of jobs selects, on all of its pages. Each begins an operation.
func bulkEndpoints() []endpoint {
	return []endpoint{
		action(Operator, "jobs/all/retry", bulk(weir.OperationRetry)).asks(askBulk(weir.OperationRetry, "Retry all {state} jobs", "")).takes(filterFields...),
		action(Operator, "jobs/all/cancel", bulk(weir.OperationCancel)).asks(askBulk(weir.OperationCancel, "Cancel all available, scheduled and running jobs", "")).takes(filterFields...),
		action(Operator, "jobs/all/move", bulk(weir.OperationMove)).asks(askBulk(weir.OperationMove, "Move all available and scheduled jobs", "")).takes(append([]string{"to_queue", "to_priority"}, filterFields...)...),
		action(Admin, "jobs/all/delete", bulk(weir.OperationDelete)).asks(askBulk(weir.OperationDelete, "Delete all failed jobs", " They can't be retried afterwards.")).takes(filterFields...),
	}
}

// askBulk is a question about all jobs that a filter selects. {state} is the state of those that are retried.
func askBulk(what weir.OperationKind, text, warning string) ask {
	return func(v *visit) (string, error) {
		f, err := v.ui.filterOf(v.PostForm)
		if err == nil {
			_, err = f.operation(what)
		}
		state := cmp.Or(f.State, string(weir.StateFailed))
		f.State = ""
		q := strings.ReplaceAll(text, "{state}", state) + " that match: " + words(f.Fields(), "ended")
		if to := strings.TrimSpace(v.PostForm.Get("to_queue")); to != "" {
			q += "; to queue " + cut(to, 200)
		}
		if to := strings.TrimSpace(v.PostForm.Get("to_priority")); to != "" {
			q += "; to priority " + cut(to, 10)
		}
		return q + "?" + warning, err
	}
}

// bulkStates are the states whose jobs an operation changes.
var bulkStates = map[weir.OperationKind][]weir.State{
	weir.OperationRetry:  {weir.StateFailed, weir.StateCancelled, weir.StateCompleted},
	weir.OperationDelete: {weir.StateFailed},
	weir.OperationMove:   {weir.StateAvailable, weir.StateScheduled},
	weir.OperationCancel: {weir.StateAvailable, weir.StateScheduled, weir.StateRunning},
}

func bulk(what weir.OperationKind) func(*visit) (string, error) {
	return func(v *visit) (string, error) {
		f, err := v.ui.filterOf(v.PostForm)
		if err != nil {
			return "", err
		}
		o := weir.Operation{What: what}
		if o.Filter, err = f.operation(what); err != nil {
			return "", err
		}
		if what == weir.OperationMove {
			o.To.Queue = strings.TrimSpace(v.PostForm.Get("to_queue"))
			if o.To.Priority, err = v.number("to_priority", "The priority"); err != nil {
				return "", err
			}
			if o.To == (weir.MoveTo{}) {
				return "", badInput("Say where to move these jobs: a queue, a priority or both.")
			}
		}
		return v.begin(o)
	}
}

// operation is the filter as an operation takes it.
func (f filter) operation(what weir.OperationKind) (weir.JobFilter, error) {
	j := weir.JobFilter{Queue: f.Queue, Key: f.Key, EnqueuedAfter: f.From, EnqueuedBefore: f.Until, Shape: f.Shape, FinishedAfter: f.EndedFrom, FinishedBefore: f.EndedUntil}
	hasEnded := f.Shape != "" || !f.EndedFrom.IsZero() || !f.EndedUntil.IsZero()
	switch {
	case f.Text != "" || f.Flow > 0 || f.Worker > 0:
		return j, badInput("An operation can't select jobs by a text in their arguments, by their flow or by their worker: leave that out.")
	case !f.Narrow():
		return j, badInput("Select jobs by more than their state: by queue, kind, key, meta or time.")
	case f.State != "" && !slices.Contains(bulkStates[what], weir.State(f.State)):
		return j, badInput("Jobs that are %s can't be changed like that.", f.State)
	case f.State != "" && takesNoState(what): // all would be changed, whatever their state
		return j, badInput("This changes all %s jobs that match, and not those alone that are %s: leave the state out.", either(bulkStates[what]), f.State)
	case hasEnded && (what == weir.OperationMove || what == weir.OperationCancel):
		return j, badInput("Jobs that have ended can't be changed like that.")
	}
	if f.Kind != "" {
		j.Kinds = []string{f.Kind}
	}
	if f.Meta != "" {
		j.Meta = f.meta()
	}
	if what == weir.OperationRetry && f.State != "" {
		j.States = []weir.State{weir.State(f.State)}
	}
	return j, nil
}

// takesNoState reports whether an operation changes all jobs that it can, whatever their state.
func takesNoState(what weir.OperationKind) bool {
	return what == weir.OperationCancel || what == weir.OperationMove
}

func either(states []weir.State) string {
	text := string(states[0])
	for i, s := range states[1:] {
		if i == len(states)-2 {
			text += " and " + string(s)
		} else {
			text += ", " + string(s)
		}
	}
	return text
}

// forAll is the filter of an operation on the jobs of a list. One that takes no state is offered for the jobs of other states, too, and says so.
func (f filter) forAll(what weir.OperationKind) filter {
	if takesNoState(what) && slices.Contains(bulkStates[what], weir.State(f.State)) {
		f.State = ""
	}
	return f
}

// May reports whether an operation is offered for the jobs of the list.
func (l jobList) May(what string) bool {
	_, err := l.Filter.forAll(weir.OperationKind(what)).operation(weir.OperationKind(what))
	return err == nil
}

// Lacks says why no operation is offered; "": some are.
func (l jobList) Lacks() string {
	switch {
	case !l.Filter.Narrow():
		return "Narrow the list, by queue, kind, key, meta or time, to act on all of its jobs at once."
	case l.Filter.Text != "" || l.Filter.Flow > 0 || l.Filter.Worker > 0:
		return "There is no action on all jobs of a list that is narrowed by a text, a flow or a worker."
	}
	return ""
}
