package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/weir-pg/weir"
)

type storageCmd struct{ jsonFlag }

func (storageCmd) Help() string {
	return `Each log has four segments: one is active, closed ones are kept until RECLAIM, at least, and free ones are empty. HELD BY are the pids of transactions that keep a segment from being reclaimed (0: a prepared one). The last rows are tables without segments.

Example:

    weir storage`
}

func (c *storageCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	all, err := client.Storage(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(all))
	}
	rows := make([][]string, len(all))
	for i, g := range all {
		segment := ""
		if g.Segment > 0 {
			segment = strconv.Itoa(g.Segment)
		}
		rows[i] = []string{g.Log, segment, string(g.State), ago(g.Since), bytesText(g.Bytes), bytesText(g.IndexBytes), ago(g.ReclaimAt), holdersText(g)}
	}
	return table(s.out, []string{"LOG", "SEGMENT", "STATE", "SINCE", "SIZE", "INDEXES", "RECLAIM", "HELD BY"}, rows)
}

func holdersText(g weir.StorageInfo) string {
	pids := make([]string, len(g.Holders))
	for i, pid := range g.Holders {
		pids[i] = strconv.Itoa(int(pid))
	}
	return strings.Join(pids, ", ")
}
