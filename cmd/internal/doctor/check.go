package doctor

import (
	"context"
	"fmt"
	"time"
)

// check looks at one idea.
type check struct {
	name string
	run  func(context.Context, *look) (result, error)
}

// checks are run in this order; the order of findings is relate.go's.
func checks() []check {
	return []check{
		{"notify", checkNotify},
		{"listeners", checkListeners},
		{"notify queue", checkNotifyQueue},
		{"postmaster", checkPostmaster},
		{"multixact", checkMultiXact},
		{"rows", checkHotRow},
		{"tables", checkTableLock},
		{"statements", checkChatty},
		{"commits", checkRowCommits},
		{"horizon", checkHorizon},
		{"claims", checkSlow},
		{"lanes", checkLanes},
		{"segments", checkSegments},
		{"workers", checkWorkers},
		{"promotion", checkPromotion},
		{"kinds", checkKinds},
		{"hubs", checkHubs},
	}
}

// result is what a check says: findings, or what is well.
type result struct {
	findings []Finding
	well     string
	unseen   []string
}

func found(f Finding) (result, error) { return result{findings: []Finding{f}}, nil }

func well(format string, args ...any) (result, error) {
	return result{well: fmt.Sprintf(format, args...)}, nil
}

// look is what checks read: a stretch of samples, the counters at its ends, and a session for questions of their own.
type look struct {
	server      Server
	view        view
	waits       Waits
	first, last *counters
	pins        []pin // who held the horizon at the first look
	hot         *hotRows
	session     *session
	local       *local
}

// span is the time between the counters.
func (l *look) span() time.Duration { return l.last.At.Sub(l.first.At) }

// rate is the growth of a counter per second. A counter that was reset in between counts from zero.
func (l *look) rate(get func(*counters) int64) float64 {
	grown := get(l.last) - get(l.first)
	if grown < 0 {
		grown = get(l.last)
	}
	return per(float64(grown), l.span())
}

// commits per second of this database, without ours.
func (l *look) commits() float64 {
	return max(0, l.rate(func(c *counters) int64 { return c.Commits })-l.rate(func(c *counters) int64 { return c.Own }))
}

// finding begins one, with how often it was seen.
func (l *look) finding(code Code, severity Severity, lost float64, seen int) Finding {
	return Finding{Code: code, Severity: severity, Lost: lost, Seen: seen, Samples: len(l.view.samples), holders: map[Class]float64{}}
}

func (f *Finding) add(query, format string, args ...any) {
	f.Evidence = append(f.Evidence, Evidence{Fact: fmt.Sprintf(format, args...), Query: query})
}

// What is lost, in sessions that stand still at any moment.
const (
	noticeable = 0.1
	costly     = 1.0
	crippling  = 4.0
)

// grade turns time lost into a severity.
func grade(lost float64) Severity {
	switch {
	case lost >= crippling:
		return Critical
	case lost >= costly:
		return Warning
	}
	return Info
}

// fresh takes some looks at the locks now, for a check that knows only now that it needs them.
func (l *look) fresh(ctx context.Context) []Sample {
	const looks = 8
	const freshEvery = 50 * time.Millisecond
	var fresh []Sample
	for range looks {
		select {
		case <-ctx.Done():
			return fresh
		case <-time.After(freshEvery):
		}
		s, err := takeSample(ctx, l.session, nil)
		if err != nil {
			break
		}
		if s.Locks, err = takeLocks(ctx, l.session, s.writers()); err != nil {
			break
		}
		s.Looked = true
		fresh = append(fresh, s)
	}
	return fresh
}
