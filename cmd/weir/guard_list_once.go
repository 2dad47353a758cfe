package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/weir-pg/weir/cmd/internal/guard"
)

// guardedAtOnce is how many databases of a list are checked at the same time.
const guardedAtOnce = 8

// foundInList is what a guard has found in one database.
type foundInList struct {
	Name     string          `json:"name"`
	Cluster  string          `json:"cluster"`
	Findings *guard.Findings `json:"findings"` // nil: Error says why
	Error    string          `json:"error,omitempty"`

	twice bool
}

// onceList checks each database once, several at a time, and prints what was found in the order of the list.
func (c *guardCmd) onceList(ctx context.Context, s *streams, l *guardedList, urls []string) error {
	all := make([]foundInList, len(urls))
	turns := make(chan struct{}, guardedAtOnce)
	var each sync.WaitGroup
	for i, url := range urls {
		turns <- struct{}{}
		each.Go(func() {
			defer func() { <-turns }()
			all[i] = l.once(ctx, i+1, url)
		})
	}
	each.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	failed := 0
	for _, f := range all {
		if f.Findings == nil && !f.twice {
			failed++
		}
	}
	if err := printFoundInList(s, all, c.JSON); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d databases could not be checked", failed, len(urls))
	}
	return nil
}

// once checks one database. It stays taken, so that no other name for it is checked too.
func (l *guardedList) once(ctx context.Context, place int, url string) foundInList {
	name, err := namedOr(place, url)
	found := foundInList{Name: name}
	if err == nil {
		var server guard.Server
		var closePool func()
		if server, closePool, err = guarded(ctx, url, false); err == nil {
			defer closePool()
			d := &listedGuard{list: l, url: url, name: name}
			var g *guard.Guard
			var identity guard.Identity
			if g, identity, _, err = d.take(ctx, server); err == nil {
				found.Findings, err = g.Once(ctx)
			}
			found.Cluster = identity.Cluster
		}
	}
	if err != nil {
		found.Error, found.twice = ofList(err.Error()), errors.Is(err, errListedTwice)
	}
	return found
}

func printFoundInList(s *streams, all []foundInList, asJSON bool) error {
	if asJSON {
		return printJSON(s.out, orEmpty(all))
	}
	for i, f := range all {
		if i > 0 {
			fmt.Fprintln(s.out)
		}
		fmt.Fprintf(s.out, "=== %s\n", printable(f.Name))
		if f.Findings == nil {
			fmt.Fprintf(s.out, "not checked: %s\n", printable(f.Error))
			continue
		}
		if err := printFindings(s, f.Findings); err != nil {
			return err
		}
	}
	return nil
}
