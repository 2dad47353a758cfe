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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/cmd/internal/doctor"
)

// Exit codes of weir doctor, for CI.
const (
	exitWarning  = 10 // the worst finding is a warning
	exitCritical = 20 // the worst finding is critical
	exitUnseen   = 5  // no warning, but checks could not see what they judge
)

type doctorCmd struct {
	For   time.Duration `xor:"mode" placeholder:"15s" help:"How long to sample."`
	Once  bool          `xor:"mode" help:"Sample for 3 seconds only, to see what is wrong right now."`
	Watch bool          `xor:"mode,form,file" help:"Run until Ctrl-C, and show waits, who blocks whom, and findings as they come and go."`
	// A recording is judged once.
	Record            string `xor:"file" placeholder:"FILE" help:"Write what was seen to a new file as well, for --replay elsewhere."`
	Replay            string `xor:"mode" placeholder:"FILE" help:"Report on a recording instead of a database."`
	WithoutStatements bool   `help:"Leave the texts of statements and the keys of rows out of what is shown and recorded; the command and its tables stay."`
	ListenMetrics     string `placeholder:"ADDRESS" help:"Run until Ctrl-C, and serve Prometheus /metrics, and /readyz and /healthz for probes, for example on :9188 (loopback)."`
	List              string `placeholder:"FILE" help:"Examine each database of a list, a connection string in each line (- reads standard input), and each of their servers once."`
	// As of weir guard.
	Standby []string `sep:"none" placeholder:"URL" help:"Standby of that server, on which to name the queries that hold back its vacuum horizon. May be repeated."`
	JSON    bool     `name:"json" xor:"form" help:"Print JSON."`
}

const (
	usualFor = 15 * time.Second
	onceFor  = 3 * time.Second
)

func (doctorCmd) Help() string {
	return fmt.Sprintf(`Examines any PostgreSQL 14 or later from outside, with or without Weir, and names what slows it down: causes first, then their consequences, each with evidence, an immediate fix and a lasting one. It only reads. The role pg_monitor is enough, but to see how far sequences of integer columns have counted, which needs SELECT on them; the report says what could not be seen. Connect to the server directly, not through a pooler. docs/findings has a page for each finding.

Exit code: %d if there is nothing above information, %d if the worst finding is a warning, %d if one is critical; %d if there is none of these, but it could not see what it would take to be sure: for want of privileges, or of a standby that it was to look at. As for all commands, %d if it failed, %d if it was called wrongly, %d if the database can't be reached, %d if it was interrupted.

Examples:

    weir doctor
    weir doctor --for 1m --json
    weir doctor --record shop.recording --without-statements
    weir doctor --replay shop.recording
    weir doctor --replay shop.recording --without-statements --record to-send.recording
    weir doctor --watch
    weir doctor --listen-metrics :9188
    psql directory -Atc 'SELECT url FROM tenant' | weir doctor --list -`, exitOK, exitWarning, exitCritical, exitUnseen, exitFailure, exitUsage, exitUnreachable, exitInterrupted)
}

func (c *doctorCmd) Run(ctx context.Context, s *streams, db *database) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Replay != "" {
		return c.replay(ctx, s)
	}
	if c.For == 0 {
		c.For = usualFor // not as the flag's default, with which --once would always come together with it
	}
	if c.For < time.Second {
		return usagef("--for %s is too short to see anything: use 1s or longer", c.For)
	}
	if c.Once {
		c.For = onceFor
	}
	if c.List != "" {
		return c.examineList(ctx, s)
	}
	url, dev, err := db.find()
	if err != nil {
		return err
	}
	var file *recordingFile
	if c.Record != "" {
		if file, err = createRecording(c.Record); err != nil {
			return err
		}
		defer file.discard()
	}
	progress := newProgress(s.err)
	defer progress.done()
	d, err := openDoctor(ctx, url, dev, doctor.Config{
		Standbys:          c.Standby,
		Record:            c.Record != "",
		WithoutStatements: c.WithoutStatements,
		Logger:            newLogger(progress, slog.LevelWarn),
		Progress: func(looked time.Duration, samples int) {
			progress.show("sampling: %d of %d s, %s", int(looked.Seconds()), int(c.For.Seconds()), plural(samples, "sample"))
		},
	})
	if full := (*fullError)(nil); errors.As(err, &full) {
		progress.done()
		if file != nil {
			fmt.Fprintln(s.err, "weir: nothing was recorded, because the server lets nobody in")
		}
		return c.print(s, full.report)
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if dev {
		fmt.Fprintln(progress, "weir: using the database of weir dev in "+devURLPath)
	}
	if c.ListenMetrics != "" {
		return c.serve(ctx, s, d)
	}
	if c.Watch {
		return watchDoctor(ctx, s, d, func(doctor.Snapshot) {})
	}
	report, err := d.Run(ctx, c.For)
	if err != nil {
		return err
	}
	progress.done()
	if file != nil {
		if err := file.keep(d.Recording()); err != nil {
			return err
		}
		fmt.Fprintln(s.err, "weir: recorded in "+c.Record)
	}
	return c.print(s, report)
}

func (c *doctorCmd) print(s *streams, report doctor.Report) error {
	show := printReport
	if c.JSON {
		show = func(w io.Writer, r doctor.Report) error { return printJSON(w, r) }
	}
	if err := show(s.out, report); err != nil {
		return err
	}
	return verdict(report)
}

// fullError is the error of a server that refuses the doctor because it is full, which is a diagnosis.
type fullError struct{ report doctor.Report }

func (e *fullError) Error() string { return e.report.Findings[0].Summary }

// openDoctor connects, and words connection errors as all commands do.
func openDoctor(ctx context.Context, url string, dev bool, c doctor.Config) (*doctor.Doctor, error) {
	c.URL = url
	d, err := doctor.Open(ctx, c)
	if report, full := doctor.Full(ctx, url, err); full {
		return nil, &fullError{report}
	}
	var refused *pgconn.ConnectError
	if errors.As(err, &refused) && ctx.Err() == nil {
		if config, parseErr := pgx.ParseConfig(url); parseErr == nil {
			return nil, unreachable(config, dev, refused)
		}
	}
	var unread *pgconn.ParseConfigError
	if errors.As(err, &unread) {
		return nil, notValid(unread)
	}
	return d, err
}

// verdict returns an error with the exit code of the worst finding.
func verdict(r doctor.Report) error {
	codes := map[doctor.Severity]int{doctor.Warning: exitWarning, doctor.Critical: exitCritical}
	worst := r.Worst()
	if codes[worst] == exitOK {
		if r.Incomplete {
			return &failure{exitUnseen, errors.New("not all could be examined, so this does not mean that all is well; see what is not checked")}
		}
		return nil
	}
	var named []string
	for _, f := range r.Findings {
		if f.Severity == worst && !slices.Contains(named, string(f.Code)) {
			named = append(named, string(f.Code))
		}
	}
	return &failure{codes[worst], fmt.Errorf("%s: %s", worst, strings.Join(named, ", "))}
}

// printReport prints the findings, what is healthy, and what could not be checked.
func printReport(w io.Writer, r doctor.Report) error {
	p := &page{w: w}
	if r.Replay {
		p.line("A replay of what was recorded at %s.", r.At.Format(time.RFC3339))
	}
	if r.Samples == 0 {
		p.line("Database %s, as %s: connections are refused", r.Server.Database, r.Server.User)
	} else {
		p.line("PostgreSQL %s, database %s, as %s (%s): %s in %.0f s; %s",
			r.Server.Version, r.Server.Database, r.Server.User, r.Server.Rights, plural(r.Samples, "sample"), r.Seconds, lossText(r))
	}
	switch {
	case len(r.Findings) == 0 && r.Incomplete:
		p.line("\nNo problems found, but not all could be examined.")
	case len(r.Findings) == 0:
		p.line("\nNo problems found.")
	}
	for _, f := range r.Findings {
		p.finding(f)
	}
	if len(r.Well) > 0 {
		p.line("\nWell:")
	}
	for _, well := range r.Well {
		p.line("  %s", well.Fact)
	}
	if len(r.Unseen) > 0 {
		p.line("\nNot checked:")
	}
	for _, text := range r.Unseen {
		p.line("  %s", text)
	}
	return p.err
}

// lossText describes how many sessions wait, and for what.
func lossText(r doctor.Report) string {
	w := r.Waits
	class, rate := w.Dominant()
	if w.Lost() < 0.05 && r.Incomplete && r.Server.Rights == "limited" {
		return "no session is seen waiting, but of other roles only waits for locks are seen"
	}
	if w.Lost() < 0.05 {
		return "no session is waiting"
	}
	verb := "sessions are"
	if fmt.Sprintf("%.1f", w.Lost()) == "1.0" {
		verb = "session is"
	}
	return fmt.Sprintf("%.1f %s waiting at any moment, most of that (%.1f) for %s", w.Lost(), verb, rate, class)
}

// page writes lines until a write fails.
type page struct {
	w   io.Writer
	err error
}

func (p *page) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, printableLines(fmt.Sprintf(format, args...)))
	}
}

func (p *page) finding(f doctor.Finding) {
	downstream := ""
	if f.DownstreamOf != "" {
		downstream = "  (a consequence of " + string(f.DownstreamOf) + ")"
	}
	p.line("\n%-8s  %s%s", strings.ToUpper(string(f.Severity)), f.Code, downstream)
	p.line("  %s", f.Summary)
	query := ""
	for _, e := range f.Evidence {
		p.line("  - %s", e.Fact)
		if e.Query != "" && e.Query != query {
			p.line("      %s", strings.Join(strings.Fields(e.Query), " "))
		}
		query = e.Query
	}
	p.line("  Now:      %s", f.Now)
	p.line("  For good: %s", f.ForGood)
	more := "docs/findings/" + string(f.Code) + ".md"
	if f.Lab != "" {
		more += ", " + f.Lab
	}
	p.line("  More:     %s", more)
	p.line("  Seen in %d of %s.", f.Seen, plural(f.Samples, "sample"))
}
