package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Change is something that came or went while Watch ran.
type Change struct {
	At       time.Time
	Severity Severity // of the finding that has come, Warning for who blocks others, and Info for what is over
	Text     string
}

// changes notices what comes and goes.
type changes struct {
	findings map[string]cameFinding // by code, and queue if it is about one
	heads    map[string]*cameHead
	last     []Change
}

type cameFinding struct {
	severity Severity
	at       time.Time
}

// cameHead is a session for which others wait.
type cameHead struct {
	who  string
	at   time.Time
	most int
	told bool
	seen bool
}

// headLasts is how long others must wait for a session, in reading after reading, for it to be told: at a hot row another one comes every moment.
const headLasts = 2 * time.Second

func (c *changes) tell(at time.Time, severity Severity, format string, args ...any) {
	c.last = append(c.last, Change{at, severity, fmt.Sprintf(format, args...)})
}

// take returns what has changed since it was last called.
func (c *changes) take() []Change {
	last := c.last
	c.last = nil
	return last
}

// report compares a report with the one before.
func (c *changes) report(at time.Time, r Report) {
	found := map[string]cameFinding{}
	for _, f := range r.Findings {
		key := strings.Join(append([]string{string(f.Code)}, f.queues...), " ")
		was, known := c.findings[key]
		if !known {
			was.at = at
		}
		if was.severity != f.Severity {
			c.tell(at, f.Severity, "%s %s: %s", f.Severity, f.Code, f.Summary)
		}
		found[key] = cameFinding{f.Severity, was.at}
	}
	for _, key := range slices.Sorted(maps.Keys(c.findings)) {
		if _, still := found[key]; !still {
			c.tell(at, Info, "over %s, after %s", key, span(at.Sub(c.findings[key].at)))
		}
	}
	c.findings = found
}

// blocking compares who blocks others with the reading before.
func (c *changes) blocking(at time.Time, b Blocking) {
	if c.heads == nil {
		c.heads = map[string]*cameHead{}
	}
	for _, h := range b.Heads {
		key := fmt.Sprint(h.PID, h.Prepared)
		was := c.heads[key]
		if was == nil {
			was = &cameHead{who: h.who(), at: at}
			c.heads[key] = was
		}
		was.seen, was.most = true, max(was.most, h.Size())
		if !was.told && at.Sub(was.at) >= headLasts {
			was.told = true
			c.tell(at, Warning, "blocks %s: %s, for %s", many(h.Size(), "session"), h.text(), span(at.Sub(was.at)))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.heads)) {
		was := c.heads[key]
		if !was.seen {
			if was.told {
				c.tell(at, Info, "%s blocks nobody any more, after %s, with %s behind it at most", was.who, span(at.Sub(was.at)), many(was.most, "session"))
			}
			delete(c.heads, key)
			continue
		}
		was.seen = false
	}
}
