package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// Build lets the fleet of scenario tree build in a database that others use, for a time with each of its steps: as the story's fleet did, and with one
// fix after another. Its workers are sessions that make up their items, so they pay for no queue. Afterwards it drops what was built.
func Build(ctx context.Context, url string, size TreeSize, d time.Duration, say func(format string, args ...any)) (all []load.Built, err error) {
	size = size.withDefaults()
	s, err := openSite(ctx, url, 0, true, needs{connections: size.Workers + 5}, func(string) {})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	workers, err := openSessions(ctx, url, size.Workers, nil)
	if err != nil {
		return nil, err
	}
	defer workers.close()
	wal := func() (bytes int64, err error) {
		err = s.guard.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&bytes)
		return bytes, err
	}
	for _, step := range treeSteps {
		tree, err := plantTree(ctx, s, size, step.fixes)
		if err != nil {
			return nil, err
		}
		before, err := wal()
		if err != nil {
			return nil, err
		}
		began := time.Now()
		until, cancel := context.WithTimeout(ctx, d)
		err = tree.grow(ctx, until, workers, load.NewTally())
		cancel()
		took := time.Since(began).Seconds()
		if err == nil {
			err = tree.check(ctx, s.guard)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		after, err := wal()
		if err != nil {
			return nil, err
		}
		rows := float64(max(tree.rows.Load(), 1))
		b := load.Built{What: step.name, Nodes: tree.rows.Load(), Seconds: took, PerSecond: rows / took, CallsPerRow: float64(tree.calls.Load()) / rows, WAL: float64(after-before) / rows}
		say("the lab's fleet, %s: %.0f nodes/s", b.What, b.PerSecond)
		all = append(all, b)
	}
	return all, nil
}
