package weir_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir"
)

// TestWorkAndCheckpointsInOneTransactionAreDoneOnce: a handler that sets its checkpoint in the transaction of each step does each step exactly once, although attempts
// fail, transactions are rolled back, and the worker is fenced in the midst of one, which then commits or not.
func TestWorkAndCheckpointsInOneTransactionAreDoneOnce(t *testing.T) {
	t.Parallel()
	const jobs, steps = 4, 12
	for _, encrypted := range []bool{false, true} {
		r := newRig(t)
		if encrypted {
			r.client = r.client.WithCodec(codec(t, "k1"))
		}
		if _, err := r.pool.Exec(t.Context(), `CREATE TABLE done (job bigint, step integer, PRIMARY KEY (job, step))`); err != nil {
			t.Fatal(err)
		}
		var ids []int64
		for i := range jobs {
			ids = append(ids, r.enqueue(i, nil))
		}
		var calls, fenced, late atomic.Int64
		r.work(func(ctx context.Context, job *weir.Job[number]) error {
			var done int
			if _, err := job.Checkpoint(ctx, &done); err != nil {
				return err
			}
			for done < steps {
				n := calls.Add(1)
				if n%5 == 0 { // what is set outside is stored before the transaction's, and does not replace it
					if err := job.SetCheckpoint(done); err != nil {
						return err
					}
				}
				tx, err := r.pool.Begin(ctx)
				if err != nil {
					return err
				}
				step := func() error {
					if err := job.SetCheckpointTx(ctx, tx, done+1); err != nil {
						return err // the worker is lost: nobody else does this step before the transaction has ended
					}
					_, err := tx.Exec(ctx, `INSERT INTO done VALUES ($1, $2)`, job.ID, done)
					return err
				}
				if err := step(); err != nil || n%7 == 0 {
					_ = tx.Rollback(context.WithoutCancel(ctx))
					if strings.Contains(fmt.Sprint(err), "23505") {
						t.Errorf("job %d does step %d again: %v", job.ID, done, err)
					}
					return errors.Join(err, errors.New("rolled back"))
				}
				isLost := n == 20 || n == 40
				if isLost { // while the transaction is open
					info, err := r.client.Job(context.WithoutCancel(ctx), job.ID)
					for lost := false; err == nil && !lost; { // not while it claims or reports
						err = r.pool.QueryRow(context.WithoutCancel(ctx), `SELECT weir._fence($1, 'its machine burned')`, *info.Worker).Scan(&lost)
					}
					if err != nil {
						t.Error(err)
					}
					fenced.Add(1)
				}
				if err := tx.Commit(context.WithoutCancel(ctx)); err != nil {
					return err
				}
				if isLost {
					return nil // which is not recorded
				}
				done++
				var stored int
				if found, err := job.Checkpoint(context.WithoutCancel(ctx), &stored); err == nil && (!found || stored != done) {
					late.Add(1)
				}
			}
			return nil
		}, func(cfg *weir.WorkerConfig) { cfg.Retry = func(int, error) time.Duration { return 0 } })
		for _, id := range ids {
			r.await(id, weir.StateCompleted)
		}
		var n int
		if err := r.pool.QueryRow(t.Context(), `SELECT count(*) FROM done`).Scan(&n); err != nil || n != jobs*steps {
			t.Errorf("%d steps were done (%v), want %d", n, err, jobs*steps)
		}
		if fenced.Load() != 2 || late.Load() != 0 {
			t.Errorf("encrypted %v: fenced %d times; %d checkpoints were not read back", encrypted, fenced.Load(), late.Load())
		}
	}
}
