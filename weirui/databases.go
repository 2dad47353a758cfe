package weirui

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-pg/weir"
)

const (
	sumsAtOnce      = 32                     // databases that are read at a time for the page of all
	sumSlow         = time.Second            // what takes longer does not count among them any more
	sumsPerSecond   = 20                     // databases that are read in a second, at most
	sumsWithin      = 300 * time.Millisecond // for which the page waits: who has not answered is shown as it was
	sumMinutes      = 5                      // over which failures are averaged
	databasesOnPage = 200
	linkedAtMost    = 12 // databases that all pages have links to
)

// databaseSum is what a database is like, in one row.
type databaseSum struct {
	Name        string    `json:"name"`
	At          time.Time `json:"at,omitzero"` // when it was read; zero: it has not answered yet
	Queues      int       `json:"queues"`
	Waiting     int64     `json:"waiting"`
	Approximate bool      `json:"approximate,omitempty"` // Waiting is an estimate
	Oldest      inSeconds `json:"oldest"`                // for which the oldest job that could run has waited
	Running     int64     `json:"running"`
	Scheduled   int64     `json:"scheduled"`
	Failed      float64   `json:"failed_per_minute"` // for good, in the last minutes that are counted
	Problem     string    `json:"problem,omitempty"` // why it can't be read; "": it can
	Late        bool      `json:"late,omitempty"`    // it has not answered in time, and is shown as it was

	err error // of Problem
}

// Depth is how many jobs wait, without more precision than is read.
func (s databaseSum) Depth() string {
	if s.Approximate && s.Waiting >= 10_000 {
		return number(s.Waiting) + " or so"
	}
	return number(s.Waiting)
}

// Waited is for how long the oldest job has waited.
func (s databaseSum) Waited() time.Duration { return time.Duration(s.Oldest) }

// trouble orders databases: those that can't be read first, then those that don't answer in time, then those whose jobs have waited longest.
func trouble(a, b databaseSum) int {
	ill := func(s databaseSum) int {
		switch {
		case s.Problem != "":
			return 0
		case s.Late:
			return 1
		}
		return 2
	}
	return cmp.Or(ill(a)-ill(b), cmp.Compare(b.Oldest, a.Oldest), cmp.Compare(b.Failed, a.Failed), strings.Compare(a.Name, b.Name))
}

// databaseList is the page of all databases.
type databaseList struct {
	Databases   []databaseSum `json:"databases"`
	Total       int           `json:"total"`
	Found       int           `json:"found"` // how many have the text in their name
	Waiting     int64         `json:"waiting"`
	Unreachable int           `json:"unreachable"`
	Name        string        `json:"-"` // the text
}

// HasForm reports whether it takes a form to find a database.
func (l databaseList) HasForm() bool { return l.Total > databasesOnPage || l.Name != "" }

// showDatabases shows all databases, each in a row, as far as they answer in time.
func showDatabases(v *visit) (*view, error) {
	all := v.ui.list()
	list := databaseList{Total: len(all), Name: strings.TrimSpace(v.URL.Query().Get("name"))}
	if list.Name != "" {
		text := strings.ToLower(list.Name)
		all = slices.DeleteFunc(slices.Clone(all), func(d *database) bool { return !strings.Contains(strings.ToLower(d.Name), text) })
	}
	list.Found = len(all)
	sums := v.ui.sumUp(v.Context(), all)
	for i := range sums {
		s := &sums[i]
		if s.err != nil {
			s.Problem = v.problemOf(s.err).Text
		}
		list.Waiting += s.Waiting
		if s.Problem != "" {
			list.Unreachable++
		}
	}
	slices.SortFunc(sums, trouble)
	list.Databases = listed(sums[:min(len(sums), databasesOnPage)])
	return &view{template: "databases", title: "All databases", data: list}, nil
}

// sumUp reads all of these databases, and returns what they have answered in time, and what is known of the others.
func (u *UI) sumUp(ctx context.Context, all []*database) []databaseSum {
	ctx, cancel := context.WithTimeout(ctx, sumsWithin)
	defer cancel()
	age := max(fresh, time.Duration(len(u.list()))*time.Second/sumsPerSecond)
	sums := make([]databaseSum, len(all))
	var reads sync.WaitGroup
	for i, d := range all {
		reads.Go(func() {
			sum, err := readAged(ctx, d, "sum", age, func(ctx context.Context) (databaseSum, error) { return u.sum(ctx, d), nil })
			if err != nil { // too late: it is read all the same
				sum = databaseSum{Name: d.Name, Late: true}
				if last := d.sum.Load(); last != nil {
					sum = *last
					sum.Late = true
				}
			}
			sums[i] = sum
		})
	}
	reads.Wait()
	return sums
}

// sum reads a database. What can't be read is part of the answer.
func (u *UI) sum(ctx context.Context, d *database) databaseSum {
	s := databaseSum{Name: d.Name}
	err := u.sums.enter(ctx)
	if err == nil {
		leave := sync.OnceFunc(u.sums.leave)
		defer leave()
		defer time.AfterFunc(sumSlow, leave).Stop() // those that crawl keep no other from being read
		err = s.read(ctx, d.client)
	}
	s.At = time.Now()
	s.err = err
	d.sum.Store(&s)
	return s
}

func (s *databaseSum) read(ctx context.Context, c *weir.Client) error {
	queues, err := c.Queues(ctx)
	if err != nil {
		return err
	}
	s.Queues = len(queues)
	for _, q := range queues {
		s.Waiting += q.Available
		s.Running += q.Running
		s.Scheduled += q.Scheduled
		s.Approximate = s.Approximate || q.Approximate
		s.Oldest = max(s.Oldest, inSeconds(queue{QueueInfo: q}.Waited()))
	}
	points, err := c.History(ctx, weir.HistoryParams{Since: time.Now().Add(-(sumMinutes + 2) * time.Minute), Step: time.Minute})
	if err != nil {
		return err
	}
	points = points[max(len(points)-sumMinutes, 0):]
	for _, p := range points {
		s.Failed += float64(p.Failed) / float64(len(points))
	}
	return nil
}
