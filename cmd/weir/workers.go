package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/weir-pg/weir"
)

type workersCmd struct {
	All bool `help:"Include workers that have ended."`
	jsonFlag
}

func (workersCmd) Help() string {
	return `A worker is alive, silent (past its lease, so other workers are about to take over its jobs) or ended. RUNNING is what it said in its last heartbeat; weir queues counts the jobs that it has claimed since too.

Example:

    weir workers --all`
}

func (c *workersCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	all, err := client.Workers(ctx)
	if err != nil {
		return err
	}
	var workers []weir.WorkerInfo
	for _, w := range all {
		if c.All || w.State != "ended" {
			workers = append(workers, w)
		}
	}
	if c.JSON {
		return printJSON(s.out, orEmpty(workers))
	}
	if len(workers) == 0 {
		fmt.Fprintln(s.err, "weir: no workers: start one with weir work")
		return nil
	}
	rows := make([][]string, len(workers))
	for i, w := range workers {
		why := ""
		if w.Reason != nil {
			why = *w.Reason
		}
		rows[i] = []string{
			strconv.Itoa(int(w.ID)), w.Name, w.State, strings.Join(w.Queues, ","), strconv.Itoa(w.Running), ago(&w.StartedAt), ago(&w.SeenAt), cell(why),
		}
	}
	return table(s.out, []string{"ID", "NAME", "STATE", "QUEUES", "RUNNING", "STARTED", "SEEN", "WHY"}, rows)
}
