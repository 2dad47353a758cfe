package guard

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// unmatched returns the patterns of protected tables that match none.
func unmatched(ctx context.Context, primary *view, patterns []string) ([]string, error) {
	names := []string{}
	if len(patterns) == 0 {
		return names, nil
	}
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	list, err := read(ctx, primary.server.DB, unmatchedSQL, pgx.RowTo[int32], likePatterns(patterns))
	if err != nil {
		return nil, fmt.Errorf("match the protected tables of %s: %w", primary.server.Name, err)
	}
	for _, at := range list {
		names = append(names, patterns[at-1])
	}
	return names, nil
}

// warn logs what of the policy protects nothing, when that begins and when it is over: tables that do not exist, which may be made later, and probes
// that fail.
func (g *Guard) warn(database string, missing []string, timings []Timing) {
	useless := map[string]bool{}
	for _, pattern := range missing {
		key := "table " + pattern
		if useless[key] = true; !g.useless[key] {
			g.log.Warn("no table matches protect.tables: write schema.table, as it is in this database, with * and ? as wildcards",
				"table", pattern, "database", database)
		}
	}
	for _, t := range timings {
		key := "probe " + t.Name
		if !t.failed() {
			continue
		}
		if useless[key] = true; !g.useless[key] {
			g.log.Warn("a probe fails, and shows nothing until it does not", "probe", t.Name, "database", database, "error", t.Error)
		}
	}
	for key := range g.useless {
		if !useless[key] {
			g.log.Info("protects again: "+key, "database", database)
		}
	}
	g.useless = useless
}

// failed reports whether a probe showed nothing: it failed, other than by its time limit.
func (t *Timing) failed() bool { return t.Error != "" && t.Seconds < probeTimeout.Seconds() }
