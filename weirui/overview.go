package weirui

import (
	"context"
	"time"

	"github.com/weir-pg/weir"
)

// overview is the first page.
func overview(v *visit) (*view, error) {
	queues, err := v.queues()
	if err != nil {
		return nil, err
	}
	operations, err := v.operations(0, 5)
	if err != nil {
		return nil, err
	}
	failures, err := v.newFailures()
	if err != nil {
		return nil, err
	}
	past, err := v.charts("")
	if err != nil {
		return nil, err
	}
	return &view{template: "overview", title: "Overview", data: struct {
		Queues     []queue     `json:"queues"` // the first
		Total      int         `json:"total_queues"`
		Operations []operation `json:"operations"` // the newest
		Failures   failureList `json:"failures"`   // of the last hour, the most frequent
		History    *history    `json:"-"`
	}{first(queues), len(queues), operations, failures, past}}, nil
}

const (
	failuresFirst = 5                // groups on the overview
	failuresFresh = 10 * time.Second // how long they are shown again
)

// newFailures are the failures of the last hour.
func (v *visit) newFailures() (failureList, error) {
	f := failureFilter{Hours: 1}
	found, err := readAged(v.Context(), v.db, "new failures", failuresFresh, func(ctx context.Context) (*weir.FailureGroupsPage, error) {
		return v.db.client.FailureGroups(ctx, weir.FailureGroupsParams{Since: f.since(), Limit: failuresFirst})
	})
	if err != nil {
		return failureList{}, err
	}
	return failureList{Filter: f, Groups: listed(found.Groups), Rest: found.Rest}, nil
}
