package weirui

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weir-pg/weir"
)

// historyFresh is how long a history is shown again: it changes once a minute.
const historyFresh = 15 * time.Second

func historyEndpoints() []endpoint {
	return []endpoint{page("history", showHistory).takes("queue", "hours")}
}

// history is what happened in a queue, or in all, for charts.
type history struct {
	Queue  string         `json:"queue,omitempty"` // "": all
	Hours  int            `json:"hours"`
	Step   inSeconds      `json:"step"` // between two points
	Points []historyPoint `json:"points"`
}

// historyPoint is what happened in a step.
type historyPoint struct{ weir.HistoryPoint }

// MarshalJSON writes durations in seconds.
func (p historyPoint) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		weir.HistoryPoint
		Oldest  inSeconds `json:"oldest"`
		WaitP50 inSeconds `json:"wait_p50,omitempty"`
		WaitP95 inSeconds `json:"wait_p95,omitempty"`
		RunP50  inSeconds `json:"run_p50,omitempty"`
		RunP95  inSeconds `json:"run_p95,omitempty"`
	}{p.HistoryPoint, inSeconds(p.Oldest), inSeconds(p.WaitP50), inSeconds(p.WaitP95), inSeconds(p.RunP50), inSeconds(p.RunP95)})
}

// isZero reports whether nothing happened, and nothing waited.
func (p historyPoint) isZero() bool { return p.HistoryPoint == weir.HistoryPoint{At: p.At} }

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

// Minutes is how many minutes are between two points.
func (h history) Minutes() float64 { return time.Duration(h.Step).Minutes() }

// InBrief is how many points a brief history has at most.
func (history) InBrief() int { return 50 }

// Brief is the history with the newest points at which something happened.
func (h history) Brief() history {
	h.Points = slices.DeleteFunc(slices.Clone(h.Points), historyPoint.isZero)
	h.Points = h.Points[max(len(h.Points)-h.InBrief(), 0):]
	return h
}

// Newest are the points, the newest first.
func (h history) Newest() []historyPoint {
	newest := slices.Clone(h.Points)
	slices.Reverse(newest)
	return newest
}

// history reads the history of a queue, for the range that the page's address asks for.
func (v *visit) history(queue string) (*history, error) {
	hours := v.URL.Query().Get("hours")
	if hours == "" {
		hours = "1"
	}
	for _, r := range historySteps {
		if strconv.Itoa(r.hours) != hours {
			continue
		}
		points, err := readAged(v.Context(), v.db, "history "+hours+" "+queue, historyFresh, func(ctx context.Context) ([]historyPoint, error) {
			found, err := v.db.client.History(ctx, weir.HistoryParams{Queue: queue, Since: time.Now().Add(-time.Duration(r.hours) * time.Hour), Step: r.step})
			points := make([]historyPoint, len(found))
			for i, p := range found {
				points[i] = historyPoint{p}
			}
			return points, err
		})
		return &history{queue, r.hours, inSeconds(r.step), points}, err
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
