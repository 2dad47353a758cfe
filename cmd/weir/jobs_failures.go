package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weir-pg/weir"
)

type jobsFailuresCmd struct {
	Queue string        `short:"q" help:"Only jobs of this queue."`
	Kind  string        `short:"k" help:"Only jobs of this kind."`
	Key   string        `help:"Only jobs with this key."`
	Since time.Duration `placeholder:"DURATION" help:"Only jobs that failed within this time."`
	Limit int           `default:"20" placeholder:"N" range:"1 to 10000" help:"Maximum groups (${default})."`
	jsonFlag
}

func (jobsFailuresCmd) Help() string {
	return `Jobs that have failed for good and have not been retried are grouped by kind and by the shape of their errors: the text without numbers, ids, quoted texts and the like. JOB is one of the last.

Example:

    weir jobs failures --queue files --since 24h`
}

// How many failures the command groups, since more would take long; and of how many one call knows.
const (
	lookAt    = 100_000
	lookAtNow = 5_000
)

func (c *jobsFailuresCmd) Run(ctx context.Context, s *streams, db *database) error {
	if c.Limit < 1 || c.Limit > 10_000 {
		return usagef("--limit must be 1 to 10000, got %d", c.Limit)
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	params := weir.FailureGroupsParams{Queue: c.Queue, Kind: c.Kind, Key: c.Key, Limit: 10_000}
	if c.Since > 0 {
		params.Since = time.Now().Add(-c.Since)
	}
	groups, rest, err := failureGroups(ctx, client, params)
	if err != nil {
		return err
	}
	if n := len(groups); n > c.Limit {
		groups = groups[:c.Limit]
		defer fmt.Fprintf(s.err, "weir: the largest %d of %d groups: list more with --limit\n", c.Limit, n)
	}
	if !rest.IsZero() {
		defer fmt.Fprintf(s.err, "weir: only the newest failures were counted, up to %s\n", when(&rest))
	}
	if len(groups) == 0 {
		if err := unknownQueue(ctx, client, c.Queue); err != nil {
			return err
		}
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(groups))
	}
	if len(groups) == 0 {
		fmt.Fprintln(s.err, "weir: no failed jobs")
		return nil
	}
	rows := make([][]string, len(groups))
	for i, g := range groups {
		rows[i] = []string{count(g.Jobs), cell(g.Kind), ago(&g.FirstAt), ago(&g.LastAt), strconv.FormatInt(g.JobID, 10), cell(g.Shape)}
	}
	return table(s.out, []string{"JOBS", "KIND", "FIRST", "LAST", "JOB", "ERROR"}, rows)
}

// failureGroups adds up the groups of several pages, newest first. rest is the time before which failures were not looked at.
func failureGroups(ctx context.Context, client *weir.Client, params weir.FailureGroupsParams) (groups []weir.FailureGroup, rest time.Time, err error) {
	type key struct{ kind, shape string }
	places := map[key]int{}
	for range lookAt / lookAtNow {
		page, err := client.FailureGroups(ctx, params)
		if err != nil {
			return nil, rest, err
		}
		for _, g := range page.Groups {
			i, known := places[key{g.Kind, g.Shape}]
			if !known {
				places[key{g.Kind, g.Shape}] = len(groups)
				groups = append(groups, g)
				continue
			}
			groups[i].Jobs += g.Jobs
			groups[i].FirstAt = g.FirstAt
		}
		if rest = page.Rest; rest.IsZero() {
			break
		}
		params.Before = rest
	}
	slices.SortStableFunc(groups, func(a, b weir.FailureGroup) int { return cmp.Compare(b.Jobs, a.Jobs) })
	return groups, rest, nil
}
