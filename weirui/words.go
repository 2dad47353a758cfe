package weirui

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// words says what conditions select, such as: queue mail, kind charge, failed before 2026-11-26 00:03:02 UTC. The end of the jobs is what happened to them then.
func words(conditions []condition, end string) string {
	var all []string
	for _, c := range conditions {
		all = append(all, c.words(end))
	}
	return strings.Join(all, ", ")
}

func (c condition) words(end string) string {
	value := cut(c.Value, 300)
	if at, err := time.Parse(time.RFC3339Nano, c.Value); err == nil {
		value = clock(at)
	}
	switch c.Name {
	case "kinds", "states":
		var list []string
		if json.Unmarshal([]byte(c.Value), &list) == nil && len(list) > 0 {
			value = cut(strings.Join(list, " or "), 300)
		}
		return strings.TrimSuffix(c.Name, "s") + " " + value
	case "meta":
		return "meta with " + value
	case "hours":
		return end + " within " + value + " hours"
	case "text":
		return fmt.Sprintf("arguments with “%s”", value)
	case "error":
		return fmt.Sprintf("error with “%s”", value)
	case "shape":
		return fmt.Sprintf("error “%s”", value)
	case "enqueued_after", "from":
		return "enqueued at " + value + " or later"
	case "enqueued_before", "until":
		return "enqueued before " + value
	case "finished_after", "ended_from":
		return end + " at " + value + " or later"
	case "finished_before", "ended_until", "before":
		return end + " before " + value
	}
	return c.Name + " " + value
}

// clock is a time in UTC, for people.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
