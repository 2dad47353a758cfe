package engine

import (
	"context"
	"errors"
	"strconv"

	"github.com/weir-pg/weir"
)

// Chord creates a flow of many jobs, while they run.
func (c client) Chord(ctx context.Context, queue string, n int, callback int64) (int64, error) {
	flow, err := c.weir.Flow(ctx, weir.Flow{Name: "bench", Open: true, OnSuccess: c.callback(queue, callback)})
	if err != nil {
		return 0, err
	}
	jobs := make([]weir.NewJob, min(n, BatchSize))
	for i := range jobs {
		jobs[i] = weir.NewJob{Args: Job{}, Options: &weir.Options{Queue: queue, Flow: flow}}
	}
	for ; n > 0; n -= len(jobs) {
		if _, err := c.weir.EnqueueMany(ctx, jobs[:min(n, len(jobs))]); err != nil {
			return 0, err
		}
	}
	return flow, c.weir.SealFlow(ctx, flow)
}

// DAG creates a flow of tasks.
func (c client) DAG(ctx context.Context, queue string, after [][]int, callback int64) (int64, error) {
	tasks := make([]weir.Task, len(after))
	for i := range tasks {
		tasks[i] = weir.Task{Name: strconv.Itoa(i), Job: weir.NewJob{Args: Job{}, Options: &weir.Options{Queue: queue}}}
		for _, before := range after[i] {
			tasks[i].After = append(tasks[i].After, strconv.Itoa(before))
		}
	}
	return c.weir.Flow(ctx, weir.Flow{Name: "bench", OnSuccess: c.callback(queue, callback), Tasks: tasks})
}

func (client) callback(queue string, number int64) weir.NewJob {
	return weir.NewJob{Args: Job{number}, Options: &weir.Options{Queue: queue}}
}

// Arrivals counts the rows of weir.arrival. They are there until 4 MB of them have been written, which opens another table, and more time has passed.
func (c client) Arrivals(ctx context.Context, flow int64) (rows int64, err error) {
	var whole bool
	err = c.pool.QueryRow(ctx, `SELECT count(*), bool_or(event = 'created') FROM weir.arrival WHERE flow = $1`, flow).Scan(&rows, &whole)
	if err == nil && !whole {
		err = errors.New("the rows that count the flow are gone already: measure on a database without other flows")
	}
	return rows, err
}
