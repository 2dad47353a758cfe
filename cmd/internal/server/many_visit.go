package server

import (
	"context"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

const (
	visitEvery  = 5 * time.Minute // a database without a hub
	visitWithin = 5 * time.Second
	visitAtOnce = 8 // those that don't answer must not keep others waiting
)

// visit reclaims segments of messages in databases whose hubs do not run, until ctx ends: programs may publish there, though nobody listens.
func (m *Many) visit(ctx context.Context) {
	turns := make(chan struct{}, visitAtOnce)
	var visits sync.WaitGroup
	defer visits.Wait()
	for {
		all := m.all()
		pause := visitEvery / time.Duration(max(len(all), 1))
		for _, d := range all {
			if !sleep.For(ctx, sleep.Jitter(pause)) {
				return
			}
			if d.err != nil || d.running() != nil {
				continue
			}
			select {
			case turns <- struct{}{}:
			case <-ctx.Done():
				return
			}
			visits.Go(func() {
				defer func() { <-turns }()
				if err := d.visit(ctx); err != nil && ctx.Err() == nil {
					m.log.Debug("weir: a database without clients can't be looked after now", "database", d.Full, "error", err)
				}
			})
		}
		if len(all) == 0 && !sleep.For(ctx, m.config.ListEvery) {
			return
		}
	}
}

func (d *member) visit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, visitWithin)
	defer cancel()
	pool, err := openPool(ctx, d.url, 1, "weir hub", nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = store.New(pool, 0).RotateMessages(ctx)
	return err
}
