package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/weir-pg/weir/cmd/internal/doctor"
)

// watchDoctor shows waits, who blocks whom, and findings until ctx ends: redrawn on a terminal; otherwise one line per second, one for each thing that comes or
// goes, and the tree of who blocks whom whenever it is another one.
func watchDoctor(ctx context.Context, s *streams, d *doctor.Doctor, also func(doctor.Snapshot)) error {
	var show func(doctor.Snapshot)
	if file, ok := isTerminal(s.out); ok {
		screen := &doctorScreen{file: file, server: d.Server()}
		screen.enter()
		defer screen.leave()
		show = screen.show
	} else {
		show = (&doctorLog{w: s.out}).show
	}
	err := d.Watch(ctx, func(now doctor.Snapshot) {
		also(now)
		show(now)
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // interrupting is how a watch ends
}

// doctorLog writes lines, for output to a file.
type doctorLog struct {
	w     io.Writer
	tree  string // as last written: who is behind whom
	until time.Time
}

// treeEvery is the shortest time between two trees: at a busy row each moment has another one.
const treeEvery = 5 * time.Second

func (l *doctorLog) show(s doctor.Snapshot) {
	at := s.At.Format(time.TimeOnly)
	var parts []string
	for _, class := range doctor.Classes() {
		if rate := s.Waits.Rate(class); rate >= 0.05 {
			parts = append(parts, fmt.Sprintf("%s %.1f", class, rate))
		}
	}
	fmt.Fprintf(l.w, "%s clients %d idle %d waits %s\n", at, s.Clients, s.Idle, orDash(strings.Join(parts, " ")))
	for _, c := range s.Changes {
		fmt.Fprintf(l.w, "%s %s\n", c.At.Format(time.TimeOnly), printable(c.Text))
	}
	if tree := shapeOf(s.Blocking); tree != l.tree && !s.At.Before(l.until) {
		l.tree, l.until = tree, s.At.Add(treeEvery)
		if len(s.Blocking.Heads) == 0 {
			fmt.Fprintf(l.w, "%s nobody is blocked\n", at)
		}
		for _, line := range s.Blocking.Lines() {
			fmt.Fprintf(l.w, "%s   %s\n", at, printable(line))
		}
	}
}

// shapeOf tells trees apart by who is behind whom.
func shapeOf(b doctor.Blocking) string {
	var text strings.Builder
	var add func(list []*doctor.Blocked)
	add = func(list []*doctor.Blocked) {
		for _, n := range list {
			fmt.Fprint(&text, n.PID, n.Prepared, "(")
			add(n.Behind)
			text.WriteString(")")
		}
	}
	add(b.Heads)
	return text.String()
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// doctorScreen draws recent waits as stacked columns, one per second.
type doctorScreen struct {
	file    *os.File
	server  doctor.Server
	history []doctor.Snapshot
	changes []doctor.Change // what came and went, oldest first
}

const (
	mostChanges = 1000 // kept
	chartHeight = 10
	treeHeight  = 12  // lines of who blocks whom, where there is no room for more
	fewChanges  = 6   // shown, where there is room
	chartWidth  = 120 // maximum
)

// Colours of the classes in the terminal's 256-colour palette, in the order of doctor.Classes.
var classColours = []int{196, 208, 130, 201, 213, 226, 33, 99, 141, 135, 73, 39, 250, 244, 40}

// Draws on the alternate screen, so that the terminal's content comes back afterwards.
func (d *doctorScreen) enter() { fmt.Fprint(d.file, "\x1b[?1049h\x1b[?25l") }

// leave brings the terminal's content back, and what came and went below it.
func (d *doctorScreen) leave() {
	fmt.Fprint(d.file, "\x1b[?25h\x1b[?1049l")
	for _, c := range d.changes {
		fmt.Fprintf(d.file, "%s %s\n", c.At.Format(time.TimeOnly), printable(c.Text))
	}
}

func (d *doctorScreen) show(s doctor.Snapshot) {
	d.history = append(d.history, s)
	if len(d.history) > chartWidth {
		d.history = slices.Delete(d.history, 0, len(d.history)-chartWidth)
	}
	d.changes = append(d.changes, s.Changes...)
	d.changes = d.changes[max(0, len(d.changes)-mostChanges):]
	width, height, err := term.GetSize(int(d.file.Fd()))
	if err != nil || width < 20 || height < 5 {
		width, height = 80, 24
	}
	lines := d.lines(width, height)
	lines = lines[:min(len(lines), height-1)]
	var b strings.Builder
	b.WriteString("\x1b[H") // overwrite rather than clear, to avoid flicker
	for _, line := range lines {
		b.WriteString(line + "\x1b[K\r\n")
	}
	b.WriteString("\x1b[J")
	fmt.Fprint(d.file, b.String())
}

func (d *doctorScreen) lines(width, height int) []string {
	s := d.history[len(d.history)-1]
	lines := []string{
		fit(fmt.Sprintf("weir doctor  PostgreSQL %s  %s  %s  %d clients, %d idle  Ctrl-C ends", d.server.Version, d.server.Database,
			s.At.Format(time.TimeOnly), s.Clients, s.Idle), width),
		"",
	}
	lines = append(lines, d.chart(width)...)
	lines = append(lines, d.legend(s, width)...)
	lines = append(lines, "")
	lines = append(lines, d.tree(s.Blocking, width)...)
	switch {
	case s.Report == nil:
		lines = append(lines, "the first findings appear in a few seconds")
	case len(s.Report.Findings) == 0:
		lines = append(lines, fit("no problems found", width))
	default:
		for _, f := range s.Report.Findings {
			indent := ""
			if f.DownstreamOf != "" {
				indent = "  └ "
			}
			lines = append(lines, fit(fmt.Sprintf("%s%s %s", indent, strings.ToUpper(string(f.Severity)), f.Code), width))
			lines = append(lines, folded("    "+printable(f.Summary), width)...)
			lines = append(lines, folded("    now: "+printable(f.Now), width)...)
		}
	}
	room := min(fewChanges, height-len(lines)-3, len(d.changes)) // an empty line, a heading, and the cursor's
	if room > 0 {
		lines = append(lines, "", "what came and went:")
		for _, c := range d.changes[len(d.changes)-room:] {
			lines = append(lines, fit(c.At.Format(time.TimeOnly)+" "+printable(c.Text), width))
		}
	}
	return lines
}

// tree returns who blocks whom, and an empty line; nothing if nobody is blocked.
func (d *doctorScreen) tree(b doctor.Blocking, width int) []string {
	lines := b.Lines()
	if len(lines) == 0 {
		return nil
	}
	if more := len(lines) - treeHeight; more > 0 {
		lines = append(lines[:treeHeight], fmt.Sprintf("and %d lines more", more))
	}
	for i, line := range lines {
		lines[i] = fit(printable(line), width)
	}
	return append(append([]string{"who waits for whom, " + plural(b.Waiting, "session") + " in all:"}, lines...), "")
}

// chart draws the columns, scaled to the highest.
func (d *doctorScreen) chart(width int) []string {
	const axis = 6
	columns := d.history[max(0, len(d.history)-(width-axis)):]
	top := 1.0
	for _, s := range columns {
		sum := 0.0
		for _, class := range doctor.Classes() {
			sum += s.Waits.Rate(class)
		}
		top = max(top, sum)
	}
	rows := make([]string, chartHeight)
	for row := range rows {
		label := ""
		if row == 0 {
			label = fmt.Sprintf("%.0f", math.Ceil(top))
		} else if row == chartHeight-1 {
			label = "0"
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%4s ┤", label)
		level := (float64(chartHeight-row) - 0.5) / chartHeight * top // the middle of this row
		for _, s := range columns {
			b.WriteString(cellAt(s.Waits, level))
		}
		rows[row] = b.String()
	}
	return rows
}

// cellAt returns the class that a column shows at a level.
func cellAt(w doctor.Waits, level float64) string {
	sum := 0.0
	for i, class := range doctor.Classes() {
		if sum += w.Rate(class); sum >= level {
			return fmt.Sprintf("\x1b[38;5;%dm█\x1b[0m", classColours[i])
		}
	}
	return " "
}

func (d *doctorScreen) legend(s doctor.Snapshot, width int) []string {
	const each = 22
	lines, used := []string{""}, 0
	for i, class := range doctor.Classes() {
		rate := s.Waits.Rate(class)
		if rate < 0.05 {
			continue
		}
		if used > 0 && used+each > width {
			lines, used = append(lines, ""), 0
		}
		lines[len(lines)-1] += fmt.Sprintf("\x1b[38;5;%dm█\x1b[0m %-13s%5.1f  ", classColours[i], class, rate)
		used += each
	}
	if used == 0 {
		lines[0] = "no session is waiting"
	}
	return lines
}

// folded returns a line without colours in as many as the width takes, each with the indent of the first. Words are kept whole where they fit, so that statements can be copied.
func folded(line string, width int) (lines []string) {
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
	for rest := []rune(line); len(rest) > 0; {
		if len(rest) <= width {
			return append(lines, string(rest))
		}
		at := width
		for at > len(indent) && rest[at] != ' ' {
			at--
		}
		if at == len(indent) {
			at = width
		}
		lines = append(lines, strings.TrimRight(string(rest[:at]), " "))
		rest = []rune(strings.TrimLeft(string(rest[at:]), " "))
		if len(rest) > 0 {
			rest = append([]rune(indent), rest...)
		}
	}
	return lines
}

// fit truncates a line without colours to the width.
func fit(line string, width int) string {
	runes := []rune(line)
	return string(runes[:min(len(runes), width)])
}
