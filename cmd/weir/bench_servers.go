package main

import (
	"context"
	"errors"

	"github.com/weir-pg/weir/cmd/internal/bench"
	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
)

// mostBenchServers bounds the private servers of a bench: a worker has a concurrency of at most 10,000.
const mostBenchServers = 10

// overServers starts the other private servers, and drains over one, two, and so on.
func (c *benchDrainCmd) overServers(ctx context.Context, s *streams, first *load.Database, config bench.DrainConfig) (report *load.Report, err error) {
	weir := engine.Engine{Log: s.err}
	all := []*load.Database{first}
	defer func() {
		for _, d := range all[1:] { // whoever opened the first closes it
			err = errors.Join(err, d.Close())
		}
	}()
	for len(all) < c.Servers {
		next, err := load.Open(ctx, first.Config, weir)
		if err != nil {
			return nil, err // it has closed what it has opened
		}
		all = append(all, next)
	}
	return bench.DrainServers(ctx, all, weir, config, weir.WorkMany)
}
