package main

import (
	"testing"
	"time"
)

// TestDurationsHaveDaysAndWeeks: all durations of the command may be in days and weeks, and are shown as they are written.
func TestDurationsHaveDaysAndWeeks(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "1d": day, "2w": 14 * day, "1.5d": 36 * time.Hour, "1w2d3h": 9*day + 3*time.Hour, "-1d": -day, "0": 0, "10ms": 10 * time.Millisecond, ".5d": 12 * time.Hour,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "2y", "1 d", "1", "99999999d"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is accepted as %s", text, got)
		}
	}
	for d, want := range map[time.Duration]string{2 * time.Minute: "2m", time.Hour: "1h", 90 * time.Minute: "1h30m", 61 * time.Second: "1m1s", 10 * time.Second: "10s", 20 * time.Minute: "20m", 10 * time.Hour: "10h", 0: "0s"} {
		if got := durationText(d); got != want {
			t.Errorf("%s is shown as %s, want %s", d, got, want)
		}
	}
	for _, c := range []struct {
		args []string
		read func(*cli) time.Duration
		want time.Duration
	}{
		{[]string{"jobs", "failures", "--since", "1d"}, func(line *cli) time.Duration { return line.Jobs.Failures.Since }, day},
		{[]string{"enqueue", "-k", "k", "--within", "2w"}, func(line *cli) time.Duration { return line.Enqueue.Within }, 14 * day},
		{[]string{"settings", "set-rule", "r", "--backoff", "1d"}, func(line *cli) time.Duration { return *line.Settings.SetRule.Backoff }, day},
		{[]string{"enqueue", "-k", "k", "--run-at", "1w"}, func(line *cli) time.Duration { return time.Until(line.Enqueue.RunAt.Time).Round(day) }, 7 * day},
		{[]string{"jobs", "retry", "--enqueued-before", "1d"}, func(line *cli) time.Duration { return time.Since(line.Jobs.Retry.EnqueuedBefore.Time).Round(day) }, day},
	} {
		var line cli
		parser, err := newParser(&line)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(c.args); err != nil {
			t.Errorf("%v: %v", c.args, err)
		} else if got := c.read(&line); got != c.want {
			t.Errorf("%v: read as %s, want %s", c.args, got, c.want)
		}
	}
}
