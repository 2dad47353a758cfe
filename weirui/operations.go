package weirui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-pg/weir"
)

const operationsOnPage = 50

func operationEndpoints() []endpoint {
	return []endpoint{
		page("operations", listOperations).takes("before"),
		page("operations/{id}", showOperation),
		action(Operator, "operations/{id}/stop", stopOperation).asks(askID("Stop operation %s? What it has done stays done.", "id")),
	}
}

// operation is a bulk operation, as it is shown.
type operation struct {
	weir.OperationInfo
	NoWorkers bool `json:"no_workers,omitempty"` // it is running, and nobody does it
}

// Verb is what has been done to jobs.
func (o operation) Verb() string {
	return map[weir.OperationKind]string{weir.OperationRetry: "retried", weir.OperationDelete: "deleted", weir.OperationMove: "moved", weir.OperationCancel: "cancelled"}[o.What]
}

// Runs reports whether it has not ended.
func (o operation) Runs() bool { return o.State == weir.OperationRunning }

// Jobs is how many jobs it has changed so far.
func (o operation) Jobs() string {
	if o.Changed == nil {
		return "not counted"
	}
	return number(*o.Changed)
}

// Rate is how many jobs it has changed in a second; 0: that can't be said yet.
func (o operation) Rate() float64 {
	took := o.ChangedAt.Sub(o.BeganAt).Seconds()
	if o.Changed == nil || took < 1 {
		return 0
	}
	return float64(*o.Changed) / took
}

// condition is a part of an operation's filter.
type condition struct{ Name, Value string }

// Conditions are the parts of its filter, by name.
func (o operation) Conditions() (all []condition) {
	var parts map[string]json.RawMessage
	if json.Unmarshal(o.Filter, &parts) != nil {
		return []condition{{"filter", string(o.Filter)}}
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		value := string(parts[name])
		var text string
		if json.Unmarshal(parts[name], &text) == nil {
			value = text
		} else if b := (bytes.Buffer{}); json.Compact(&b, parts[name]) == nil {
			value = b.String()
		}
		all = append(all, condition{name, value})
	}
	return all
}

// Does is what it does to jobs.
func (o operation) Does() string {
	return strings.ToUpper(string(o.What[:1])) + string(o.What[1:]) + " jobs"
}

// Says is what its filter selects, in words.
func (o operation) Says() string {
	all, end := o.Conditions(), "failed"
	for _, c := range all {
		if c.Name == "states" && c.Value != `["failed"]` {
			end = "ended"
		}
	}
	return words(all, end)
}

// Found reports whether it has changed a job, or has not counted.
func (o operation) Found() bool { return o.Changed == nil || *o.Changed > 0 }

// shownOperation is an operation without secret values.
func (u *UI) shownOperation(o weir.OperationInfo) operation {
	o.Filter = u.redact(o.Filter)
	return operation{OperationInfo: o}
}

// operations lists operations, newest first.
func (v *visit) operations(before int64, limit int) ([]operation, error) {
	found, err := read(v.Context(), v.db, fmt.Sprintf("operations before %d, %d of them", before, limit), func(ctx context.Context) ([]weir.OperationInfo, error) {
		return v.db.client.Operations(ctx, weir.OperationsParams{Before: before, Limit: limit})
	})
	if err != nil {
		return nil, err
	}
	all := make([]operation, len(found))
	for i, o := range found {
		all[i] = v.ui.shownOperation(o)
	}
	return all, nil
}

func listOperations(v *visit) (*view, error) {
	before, err := v.afterID("before")
	if err != nil {
		return nil, err
	}
	all, err := v.operations(before, operationsOnPage)
	if err != nil {
		return nil, err
	}
	list := struct {
		Operations []operation `json:"operations"`
		Next       int64       `json:"next,omitempty"` // ?before= of the next page
	}{Operations: all}
	if len(all) == operationsOnPage {
		list.Next = all[len(all)-1].ID
	}
	return &view{template: "operations", title: "Operations", data: list}, nil
}

func showOperation(v *visit) (*view, error) {
	id, err := v.id()
	if err != nil {
		return nil, err
	}
	found, err := read(v.Context(), v.db, fmt.Sprintf("operation %d", id), func(ctx context.Context) (*weir.OperationInfo, error) {
		return v.db.client.Operation(ctx, id)
	})
	if err != nil {
		return nil, err
	}
	o := v.ui.shownOperation(*found)
	if o.Runs() {
		workers, err := v.workers()
		if err != nil {
			return nil, err
		}
		o.NoWorkers = !anyAlive(workers)
	}
	return &view{template: "operation", title: fmt.Sprintf("Operation %d", id), data: o}, nil
}

func stopOperation(v *visit) (string, error) {
	id, err := v.id()
	if err != nil {
		return "", err
	}
	state, err := v.db.client.StopOperation(v.Context(), id, v.by())
	if err == nil && state != weir.OperationStopped {
		return fmt.Sprintf("Operation %d has already ended: %s.", id, state), nil
	}
	return fmt.Sprintf("Operation %d is stopped. What it has done stays done.", id), err
}

// begin begins an operation, and sends the browser to its page.
func (v *visit) begin(o weir.Operation) (string, error) {
	o.By = v.by()
	id, err := v.db.client.BeginOperation(v.Context(), o)
	if err != nil {
		return "", err
	}
	v.to = fmt.Sprintf("operations/%d", id)
	if o.What == weir.OperationCancel {
		return fmt.Sprintf("Operation %d has cancelled these jobs: none starts any more, and running ones are asked to end.", id), nil
	}
	return fmt.Sprintf("Operation %d has begun.", id), nil
}

// by is who the user is, for the log of operations.
func (v *visit) by() string { return cut(cmp.Or(v.user.Name, "anonymous"), 150) }
