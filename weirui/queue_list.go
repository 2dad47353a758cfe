package weirui

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	queuesOnPage = 100
	queuesFirst  = 20 // on the overview
)

// queueList is a page of queues.
type queueList struct {
	Queues []queue `json:"queues"`
	Next   string  `json:"next,omitempty"` // ?after= of the next page
	Total  int     `json:"total"`          // how many queues there are
	Found  int     `json:"found"`          // how many have the text in their name
	Name   string  `json:"-"`              // the text
	After  string  `json:"-"`
}

// listQueues lists queues by name, from the one after a name on.
func listQueues(v *visit) (*view, error) {
	all, err := v.queues()
	if err != nil {
		return nil, err
	}
	list := queueList{Total: len(all), Name: strings.TrimSpace(v.URL.Query().Get("name")), After: v.URL.Query().Get("after")}
	if list.Name != "" {
		text := strings.ToLower(list.Name)
		all = slices.DeleteFunc(slices.Clone(all), func(q queue) bool { return !strings.Contains(strings.ToLower(q.Name), text) })
	}
	list.Found = len(all)
	start := 0
	if list.After != "" {
		// The database sorts them, in an order that is not Go's. Queues stay, so this one is among them.
		start = 1 + slices.IndexFunc(all, func(q queue) bool { return q.Name == list.After })
	}
	end := min(start+queuesOnPage, len(all))
	if end < len(all) {
		list.Next = all[end-1].Name
	}
	list.Queues = listed(all[start:end])
	return &view{template: "queues", title: "Queues", data: list}, nil
}

// HasForm reports whether it takes a form to find a queue.
func (l queueList) HasForm() bool { return l.Total > queuesOnPage || l.Name != "" }

// first are the queues that an operator looks at first, in the order of the list: all if there are few, and otherwise those whose jobs have waited longest.
func first(all []queue) []queue {
	if len(all) <= queuesFirst {
		return all
	}
	never := time.Now().AddDate(1, 0, 0)
	since := func(q queue) time.Time {
		if q.ReadySince == nil {
			return never // none waits
		}
		return *q.ReadySince
	}
	chosen := slices.Clone(all)
	slices.SortStableFunc(chosen, func(a, b queue) int {
		return cmp.Or(since(a).Compare(since(b)), cmp.Compare(b.Running, a.Running), cmp.Compare(b.Scheduled, a.Scheduled))
	})
	return chosen[:queuesFirst]
}
