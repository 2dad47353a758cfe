package weirui

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weir-pg/weir"
)

// historyFresh is how long a history is shown again: it changes once a minute.
const historyFresh = 15 * time.Second

func historyEndpoints() []endpoint {
	return []endpoint{page("history", showHistory)}
}

// history is what happened in a queue, or in all, for charts.
type history struct {
	Queue  string              `json:"queue,omitempty"` // "": all
	Hours  int                 `json:"hours"`
	Step   time.Duration       `json:"step"` // between two points
	Points []weir.HistoryPoint `json:"points"`
}

// historySteps are the steps of the ranges, in hours, that a history may have.
var historySteps = []struct {
	hours int
	step  time.Duration
}{{1, time.Minute}, {6, time.Minute}, {24, 5 * time.Minute}, {72, 10 * time.Minute}}

// Ranges are those that a history may have, in hours.
func (history) Ranges() (all []int) {
	for _, r := range historySteps {
		all = append(all, r.hours)
	}
	return all
}

// Newest are the points, the newest first.
func (h history) Newest() []weir.HistoryPoint {
	newest := slices.Clone(h.Points)
	slices.Reverse(newest)
	return newest
}

// history reads the history of a queue, for the range that the page's address asks for.
func (v *visit) history(queue string) (*history, error) {
	hours := v.URL.Query().Get("hours")
	if hours == "" {
		hours = "6"
	}
	for _, r := range historySteps {
		if strconv.Itoa(r.hours) != hours {
			continue
		}
		points, err := readAged(v.Context(), v.db, "history "+hours+" "+queue, historyFresh, func(ctx context.Context) ([]weir.HistoryPoint, error) {
			return v.db.client.History(ctx, weir.HistoryParams{Queue: queue, Since: time.Now().Add(-time.Duration(r.hours) * time.Hour), Step: r.step})
		})
		return &history{queue, r.hours, r.step, points}, err
	}
	return nil, badInput("A history has 1, 6, 24 or 72 hours; got %q.", cut(hours, 50))
}

// charts is the history for a page with charts; nil: they are not part of what is asked for.
func (v *visit) charts(queue string) (*history, error) {
	if v.wantsFragment() || v.wantsJSON() {
		return nil, nil
	}
	return v.history(queue)
}

func showHistory(v *visit) (*view, error) {
	queue := v.URL.Query().Get("queue")
	found, err := v.history(queue)
	if err != nil {
		return nil, err
	}
	title := "History"
	if queue != "" {
		title = fmt.Sprintf("History of queue %s", cut(queue, 200))
	}
	return &view{template: "history", title: title, data: found}, nil
}
