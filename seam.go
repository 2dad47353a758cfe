package weir

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/seam"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

func init() {
	seam.Attempt = func(ctx context.Context, w any, t *worker.Task) worker.Result {
		return worker.New(w.(*Worker).config).Attempt(ctx, t)
	}
	seam.Follow = func(config any, fits func(string) bool, others []string, most int) {
		c := config.(*WorkerConfig)
		c.fits, c.others, c.most = fits, others, most
	}
	seam.Drain = func(ctx context.Context, w any, upto time.Time, done seam.Done) error {
		return w.(*Worker).drain(ctx, upto, done)
	}
}

// drain runs the worker for tests: see worker.Drain.
func (w *Worker) drain(ctx context.Context, upto time.Time, done seam.Done) error {
	own, err := store.OpenOwn(w.pool)
	if err != nil {
		return fmt.Errorf("weir: open the worker's connections: %w", err)
	}
	defer own.Close()
	config := w.config
	config.Store, config.Keep = own.Work, own.Keep
	config.Outage = outage.New(config.Log)
	return explain(worker.New(config).Drain(ctx, upto, done), "weir_work")
}
