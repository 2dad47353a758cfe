package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/guard"
)

// printFindings prints findings as text: the holders of the horizon, tables with dead rows, actions taken, and what to do by hand.
func printFindings(s *streams, f *guard.Findings) error {
	fmt.Fprintf(s.out, "%s of %s: PostgreSQL %s\n", printable(f.Database), f.Primary, f.Postgres)
	for _, name := range f.Absent {
		fmt.Fprintf(s.err, "weir: standby %s does not answer\n", name)
	}
	for _, pattern := range f.Missing {
		fmt.Fprintf(s.err, "weir: no table of %s matches %s in protect.tables: write schema.table, with * and ? as wildcards\n",
			printable(f.Database), printable(strconv.Quote(pattern)))
	}
	fmt.Fprintln(s.out, guardHead(f))
	if len(f.Holders) > 0 {
		fmt.Fprintln(s.out)
		rows := make([][]string, len(f.Holders))
		for i, h := range f.Holders {
			rows[i] = []string{h.Server, string(h.Kind), h.Name, who(h), h.State, lasted(h.Held), count(max(0, h.AgeXids)), string(h.Step)}
		}
		if err := table(s.out, []string{"SERVER", "KIND", "NAME", "WHO", "STATE", "HELD", "XIDS", "DUE"}, rows); err != nil {
			return err
		}
		fmt.Fprintln(s.out)
		for _, h := range f.Holders {
			fmt.Fprintf(s.out, "%s: %s\n", printable(h.Name), printable(h.Why))
		}
	}
	if err := printHarm(s, f); err != nil {
		return err
	}
	if len(f.Actions) > 0 {
		fmt.Fprintln(s.out)
	}
	for _, a := range f.Actions {
		if a.Action != guard.Report {
			fmt.Fprintf(s.out, "%s %s on %s: %s: %s\n", a.Action, printable(a.Name), a.Server, a.Outcome, printable(a.Why))
		}
	}
	byHand := false
	for _, h := range f.Holders {
		if h.Command == "" || h.Step == "" {
			continue
		}
		if !byHand {
			fmt.Fprintln(s.out, "\nto do by hand:")
		}
		byHand = true
		fmt.Fprintf(s.out, "  %s on %s: %s\n", printable(h.Name), h.Server, printable(h.Command))
	}
	if !f.Acting {
		fmt.Fprintln(s.err, "weir: dry run: pass --act to end sessions")
	}
	return nil
}

// guardHead says in a line what the rows below it do: hold back the horizon, keep others waiting for locks, or both.
func guardHead(f *guard.Findings) string {
	head, holds := "nothing holds back the horizon", false
	for _, h := range f.Holders {
		holds = holds || h.Kind != guard.Blocker
	}
	if holds {
		head = fmt.Sprintf("horizon: %s old, held for at least %s", plural(f.AgeXids, "transaction"), lasted(f.Held))
	}
	if f.Blocked > 0 {
		head += fmt.Sprintf("; %s for locks", waiting(f.Blocked))
	}
	return head
}

func waiting(sessions int) string {
	if sessions == 1 {
		return "1 session waits"
	}
	return plural(sessions, "session") + " wait"
}

// printHarm prints the tables with the most dead rows, and the probes.
func printHarm(s *streams, f *guard.Findings) error {
	const limit = 10
	if len(f.Tables) > 0 {
		rows := make([][]string, min(limit, len(f.Tables)))
		for i := range rows {
			t := f.Tables[i]
			rows[i] = []string{t.Name, count(t.Dead), strconv.FormatFloat(t.PerSecond, 'f', 0, 64), usual(t), yes(t.Suffers)}
		}
		fmt.Fprintln(s.out)
		if err := table(s.out, []string{"TABLE", "DEAD ROWS", "GROWTH/S", "AUTOVACUUM AT", "SUFFERS"}, rows); err != nil {
			return err
		}
	}
	if len(f.Probes) == 0 {
		return nil
	}
	rows := make([][]string, len(f.Probes))
	for i, p := range f.Probes {
		rows[i] = []string{p.Name, strconv.FormatFloat(1000*p.Seconds, 'f', 1, 64) + "ms", cell(p.Error), yes(p.Suffers)}
	}
	fmt.Fprintln(s.out)
	return table(s.out, []string{"PROBE", "TOOK", "ERROR", "SUFFERS"}, rows)
}

func who(h guard.Holder) string {
	var parts []string
	for _, part := range []string{h.Role, h.Application, h.Client} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return cell(strings.Join(parts, " "))
}

func usual(t guard.Table) string {
	if t.Usual == 0 {
		return "off"
	}
	return count(t.Usual)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func lasted(s float64) string { return short(time.Duration(s * float64(time.Second))) }
