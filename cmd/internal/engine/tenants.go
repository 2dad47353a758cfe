package engine

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// EnqueueFor enqueues a job whose key is its tenant.
func (c client) EnqueueFor(ctx context.Context, queue, tenant string, number int64) error {
	_, err := c.weir.Enqueue(ctx, Job{number}, &weir.Options{Queue: queue, Key: tenant})
	return err
}

// FillFor enqueues many jobs of a tenant in one transaction.
func (c client) FillFor(ctx context.Context, queue, tenant string, n int, commits func() error) error {
	jobs := make([]weir.NewJob, min(n, BatchSize))
	for i := range jobs {
		jobs[i] = weir.NewJob{Args: Job{}, Options: &weir.Options{Queue: queue, Key: tenant}}
	}
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		for ; n > 0; n -= len(jobs) {
			if _, err := c.weir.EnqueueManyTx(ctx, tx, jobs[:min(n, len(jobs))]); err != nil {
				return err
			}
		}
		if commits != nil {
			return commits()
		}
		return nil
	})
}

// LimitTenants limits the queue's keys.
func (c client) LimitTenants(ctx context.Context, queue string, running int) error {
	if running > 0 {
		return c.weir.SetLimit(ctx, queue, weir.Limit{Running: running, PerKey: true})
	}
	if err := c.weir.ClearKeyLimit(ctx, queue); !errors.Is(err, weir.ErrNotFound) {
		return err
	}
	return nil
}
