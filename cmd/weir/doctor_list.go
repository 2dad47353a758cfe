package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/sleep"
)

// examineList reports on the databases of a list, or keeps examining them.
func (c *doctorCmd) examineList(ctx context.Context, s *streams) error {
	progress := newProgress(s.err)
	defer progress.done()
	config := doctor.Config{WithoutStatements: c.WithoutStatements, Logger: newLogger(progress, slog.LevelWarn)}
	if c.ListenMetrics != "" {
		return c.serveList(ctx, s, config)
	}
	urls, err := readList(s.in, c.List)
	if err != nil {
		return err
	}
	progress.show("examining %s", plural(len(urls), "database"))
	report, err := doctor.ExamineList(ctx, config, urls, c.For, func(done, servers int) {
		progress.show("examined: %d of %s", done, plural(servers, "server"))
	})
	if err != nil {
		return err
	}
	progress.done()
	if c.JSON {
		err = printJSON(s.out, report)
	} else {
		err = printListReport(s.out, report)
	}
	if err != nil {
		return err
	}
	return listVerdict(report)
}

// listPause is the time between two examinations of a list.
const listPause = 5 * time.Second

// serveList examines the databases of a list again and again until ctx ends, and serves metrics. The list is read again each time; while it can't be read, it stays.
func (c *doctorCmd) serveList(ctx context.Context, s *streams, config doctor.Config) error {
	log := newLogger(s.err, slog.LevelInfo)
	config.Logger = log
	urls, err := readList(s.in, c.List)
	if err != nil {
		return err
	}
	var metrics doctor.ListMetrics
	var changes doctor.ListChanges
	stop, err := c.serveMetrics(&metrics, metrics.Stuck, metrics.Ready, log)
	if err != nil {
		return err
	}
	defer stop()
	for {
		report, err := doctor.ExamineList(ctx, config, urls, usualFor, func(int, int) { metrics.Moved() })
		if ctx.Err() != nil {
			return nil // interrupting is how it ends
		}
		if err != nil {
			return err
		}
		metrics.Show(report)
		for _, change := range changes.Next(report) {
			log.Log(ctx, levelOf(change.Severity), change.Text, "cluster", change.Cluster, "database", change.Database, "address", change.Address)
		}
		if !sleep.For(ctx, listPause) {
			return nil
		}
		if again, err := readList(s.in, c.List); err != nil {
			log.Error("the list can't be read again, and stays as it was", "error", err)
		} else {
			urls = again
		}
	}
}

// listPart is a part of a report on a list, with its name.
type listPart struct {
	name   string
	report *doctor.Report
	err    string
}

// partsOf returns the parts in the order of the report: each server, followed by its databases.
func partsOf(r doctor.ListReport) (parts []listPart) {
	for _, s := range r.Servers {
		parts = append(parts, listPart{fmt.Sprintf("server at %s, cluster %s", s.Address, s.Cluster), s.Report, s.Error})
		for _, d := range s.Databases {
			parts = append(parts, listPart{namedOnList(d), d.Report, d.Error})
		}
	}
	for _, d := range r.Unreachable {
		parts = append(parts, listPart{namedOnList(d), d.Report, d.Error})
	}
	return parts
}

func namedOnList(d doctor.DatabaseReport) string {
	if d.Address == "" {
		return "a database whose connection string can't be read"
	}
	name := fmt.Sprintf("database %s at %s", d.Database, d.Address)
	if len(d.Also) > 0 {
		name += ", listed at " + strings.Join(d.Also, " and ") + " too"
	}
	return name
}

const (
	mostWell  = 20 // parts without findings that are named, and things that were not checked of them
	mostNamed = 3  // parts that are named beside one of those
)

// printListReport prints a section for each part with findings, or of which too little could be seen, and one line for all others.
func printListReport(w io.Writer, r doctor.ListReport) error {
	p := &page{w: w}
	databases := len(r.Unreachable)
	for _, s := range r.Servers {
		databases += len(s.Databases)
	}
	p.line("%s at %s", plural(databases, "database"), plural(len(r.Servers), "running server"))
	var well, unseen []string
	where := map[string][]string{} // parts without findings, by what could not be seen of them
	for _, part := range partsOf(r) {
		if part.report != nil && len(part.report.Findings) == 0 && !part.report.Incomplete {
			well = append(well, part.name)
			for _, text := range part.report.Unseen {
				if where[text] == nil {
					unseen = append(unseen, text)
				}
				where[text] = append(where[text], part.name)
			}
			continue
		}
		p.line("\n=== %s", part.name)
		if part.report == nil {
			p.line("\nCRITICAL  it can't be examined: %s", part.err)
			continue
		}
		for _, f := range part.report.Findings {
			p.finding(f)
		}
		switch {
		case part.report.Incomplete:
			p.line("\nNot all could be examined:")
		case len(part.report.Unseen) > 0:
			p.line("\nNot checked:")
		}
		for _, text := range part.report.Unseen {
			p.line("  %s", text)
		}
	}
	if len(well) > 0 {
		p.line("\nNo problems found: %s", someOf(well, mostWell))
	}
	if len(unseen) > 0 {
		p.line("\nNot checked of these:")
	}
	for _, text := range unseen[:min(len(unseen), mostWell)] {
		p.line("  %s (%s)", text, someOf(where[text], mostNamed))
	}
	if n := len(unseen) - mostWell; n > 0 {
		p.line("  and %d more", n)
	}
	return p.err
}

// someOf names so many at most.
func someOf(names []string, most int) string {
	more := ""
	if n := len(names) - most; n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	return strings.Join(names[:min(len(names), most)], "; ") + more
}

// listVerdict returns an error with the exit code of the worst part. A database that can't be examined is as bad as can be.
func listVerdict(r doctor.ListReport) error {
	worst, code := "", exitOK
	rank := []int{exitOK, exitUnseen, exitWarning, exitCritical}
	bad := 0
	for _, part := range partsOf(r) {
		err := error(&failure{exitCritical, errors.New("critical: it can't be examined")})
		if part.report != nil {
			err = verdict(*part.report)
		}
		var f *failure
		if !errors.As(err, &f) {
			continue
		}
		bad++
		if slices.Index(rank, f.code) > slices.Index(rank, code) {
			worst, code = part.name+": "+f.Error(), f.code
		}
	}
	if code == exitOK {
		return nil
	}
	if bad > 1 {
		worst += fmt.Sprintf("; and %d more", bad-1)
	}
	return &failure{code, errors.New(worst)}
}
