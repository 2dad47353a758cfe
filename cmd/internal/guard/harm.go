package guard

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Table is a protected table with dead rows.
type Table struct {
	Name      string  `json:"name"`
	Dead      int64   `json:"dead_rows"`
	PerSecond float64 `json:"growth_per_second"`
	Usual     int64   `json:"autovacuum_at"` // the number at which autovacuum starts; 0: it is off
	InVain    bool    `json:"vacuumed_in_vain"`
	Suffers   bool    `json:"suffers"`
	vacuumed  *time.Time
}

// Timing is the result of a probe.
type Timing struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
	Suffers bool    `json:"suffers"`
}

const (
	growthWindow = 12 // polls over which growth is measured
	probePolls   = 3  // consecutive polls in which a probe must be slow
	probeTimeout = 5 * time.Second
)

// harm remembers earlier polls, to detect growth. Its zero value is ready to use.
type harm struct {
	dead map[string][]deadAt
	slow map[string]int // consecutive polls
}

type deadAt struct {
	at   time.Time
	dead int64
}

// tables reads the protected tables and marks those that suffer.
func (m *harm) tables(ctx context.Context, primary *view, p Protect, pinnedSince time.Time) ([]Table, error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	list, err := read(ctx, primary.server.DB, tablesSQL, func(row pgx.CollectableRow) (t Table, err error) {
		return t, row.Scan(&t.Name, &t.Dead, &t.vacuumed, &t.Usual)
	}, likePatterns(p.Tables))
	if err != nil {
		return nil, fmt.Errorf("read the tables of %s: %w", primary.server.Name, err)
	}
	before := m.dead
	m.dead = make(map[string][]deadAt, len(list))
	for i := range list {
		t := &list[i]
		seen := append(before[t.Name], deadAt{primary.At, t.Dead})
		seen = seen[max(0, len(seen)-growthWindow):]
		m.dead[t.Name] = seen
		if first := seen[0]; primary.At.After(first.at) {
			t.PerSecond = float64(t.Dead-first.dead) / primary.At.Sub(first.at).Seconds()
		}
		t.InVain = t.vacuumed != nil && !pinnedSince.IsZero() && t.vacuumed.After(pinnedSince)
		t.Suffers = t.Dead >= max(p.DeadRows, t.Usual, 1) && (t.PerSecond > 0 || t.InVain)
	}
	return list, nil
}

// probes times the policy's probes. They are read-only and have a timeout, because they hold the horizon too.
func (m *harm) probes(ctx context.Context, primary *view, probes []Probe) []Timing {
	list := make([]Timing, len(probes))
	if m.slow == nil {
		m.slow = map[string]int{}
	}
	for i, p := range probes {
		t := &list[i]
		t.Name = p.Name
		begin := time.Now()
		err := probe(ctx, primary.server.DB, p.SQL)
		took := time.Since(begin)
		t.Seconds = took.Seconds()
		if err != nil {
			t.Error = err.Error()
		}
		if took >= p.SlowerThan.Duration && !t.failed() {
			m.slow[p.Name]++
		} else {
			m.slow[p.Name] = 0
		}
		t.Suffers = m.slow[p.Name] >= probePolls
	}
	return list
}

func probe(ctx context.Context, db DB, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout+time.Second)
	defer cancel()
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = tx.Rollback(ctx) // it has changed nothing
	}()
	if _, err := tx.Exec(ctx, fmt.Sprintf("SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = %d", probeTimeout.Milliseconds())); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, sql)
	return err
}

// sufferers describes the tables and probes that suffer.
func sufferers(tables []Table, timings []Timing) []string {
	var names []string
	for _, t := range tables {
		if t.Suffers {
			names = append(names, fmt.Sprintf("%s (%d dead rows, %+.0f/s)", t.Name, t.Dead, t.PerSecond))
		}
	}
	for _, t := range timings {
		if t.Suffers {
			names = append(names, fmt.Sprintf("%s (%.0f ms)", t.Name, 1000*t.Seconds))
		}
	}
	return slices.Clip(names)
}
