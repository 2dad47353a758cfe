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

// watchDoctor shows waits and findings until ctx ends: redrawn on a terminal; otherwise one line per second, and one for each finding that
// appears or ends.
func watchDoctor(ctx context.Context, s *streams, d *doctor.Doctor) error {
	var show func(doctor.Snapshot)
	if file, ok := isTerminal(s.out); ok {
		screen := &doctorScreen{file: file, server: d.Server()}
		screen.enter()
		defer screen.leave()
		show = screen.show
	} else {
		show = (&doctorLog{w: s.out}).show
	}
	if err := d.Watch(ctx, show); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // interrupting is how a watch ends
}

// doctorLog writes lines, for output to a file.
type doctorLog struct {
	w     io.Writer
	known map[doctor.Code]doctor.Severity
}

func (l *doctorLog) show(s doctor.Snapshot) {
	at := s.At.Format("15:04:05")
	var parts []string
	for _, class := range doctor.Classes() {
		if rate := s.Waits.Rate(class); rate >= 0.05 {
			parts = append(parts, fmt.Sprintf("%s %.1f", class, rate))
		}
	}
	fmt.Fprintf(l.w, "%s clients %d idle %d waits %s\n", at, s.Clients, s.Idle, orDash(strings.Join(parts, " ")))
	if s.Report == nil {
		return
	}
	found := map[doctor.Code]doctor.Severity{}
	for _, f := range s.Report.Findings {
		found[f.Code] = f.Severity
		if l.known[f.Code] != f.Severity {
			fmt.Fprintf(l.w, "%s %s %s: %s\n", at, f.Severity, f.Code, printable(f.Summary))
		}
	}
	for code := range l.known {
		if _, still := found[code]; !still {
			fmt.Fprintf(l.w, "%s over %s\n", at, code)
		}
	}
	l.known = found
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
}

const (
	chartHeight = 10
	chartWidth  = 120 // maximum
)

// Colours of the classes in the terminal's 256-colour palette, in the order of doctor.Classes.
var classColours = []int{196, 208, 130, 201, 213, 226, 33, 99, 141, 135, 73, 39, 250, 244, 40}

// Draws on the alternate screen, so that the terminal's content comes back afterwards.
func (d *doctorScreen) enter() { fmt.Fprint(d.file, "\x1b[?1049h\x1b[?25l") }
func (d *doctorScreen) leave() { fmt.Fprint(d.file, "\x1b[?25h\x1b[?1049l") }

func (d *doctorScreen) show(s doctor.Snapshot) {
	d.history = append(d.history, s)
	if len(d.history) > chartWidth {
		d.history = slices.Delete(d.history, 0, len(d.history)-chartWidth)
	}
	width, height, err := term.GetSize(int(d.file.Fd()))
	if err != nil || width < 20 || height < 5 {
		width, height = 80, 24
	}
	lines := d.lines(width)
	lines = lines[:min(len(lines), height-1)]
	var b strings.Builder
	b.WriteString("\x1b[H") // overwrite rather than clear, to avoid flicker
	for _, line := range lines {
		b.WriteString(line + "\x1b[K\r\n")
	}
	b.WriteString("\x1b[J")
	fmt.Fprint(d.file, b.String())
}

func (d *doctorScreen) lines(width int) []string {
	s := d.history[len(d.history)-1]
	lines := []string{
		fit(fmt.Sprintf("weir doctor  PostgreSQL %s  %s  %s  %d clients, %d idle  Ctrl-C ends", d.server.Version, d.server.Database,
			s.At.Format(time.TimeOnly), s.Clients, s.Idle), width),
		"",
	}
	lines = append(lines, d.chart(width)...)
	lines = append(lines, d.legend(s, width)...)
	lines = append(lines, "")
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
			lines = append(lines,
				fit(fmt.Sprintf("%s%s %s", indent, strings.ToUpper(string(f.Severity)), f.Code), width),
				fit("    "+printable(f.Summary), width), fit("    now: "+printable(f.Now), width))
		}
	}
	return lines
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

// fit truncates a line without colours to the width.
func fit(line string, width int) string {
	runes := []rune(line)
	return string(runes[:min(len(runes), width)])
}
