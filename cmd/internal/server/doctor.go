package server

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/sleep"
)

// examiner runs a doctor continuously, and keeps what it finds.
type examiner struct {
	report  atomic.Pointer[doctor.Report] // nil: none yet, or the database can't be examined
	metrics doctor.Metrics
	trouble atomic.Pointer[error] // why it can't; nil: it can, or it is not known yet
}

const examineAgain = 10 * time.Second // after a failure

// run examines the database until ctx ends, across outages.
func (e *examiner) run(ctx context.Context, s *Server) {
	for wait := time.Duration(0); sleep.For(ctx, wait); wait = examineAgain {
		err := e.watch(ctx, s)
		e.report.Store(nil)
		e.metrics.Lost()
		if ctx.Err() == nil {
			e.trouble.Store(&err)
			s.log.Warn("weir: the doctor can't examine the database, trying again", "error", err, "in", examineAgain)
		}
	}
}

func (e *examiner) watch(ctx context.Context, s *Server) error {
	d, err := doctor.Open(ctx, doctor.Config{URL: s.config.Database, Logger: s.log})
	if err != nil {
		return err
	}
	defer d.Close()
	var unseen []string // as last logged
	return d.Watch(ctx, func(now doctor.Snapshot) {
		e.metrics.Show(now)
		if now.Report != nil {
			e.report.Store(now.Report)
			e.trouble.Store(nil)
			if now := now.Report.Unseen; len(now) > 0 && !slices.Equal(now, unseen) {
				unseen = now
				s.log.Warn("weir: what the doctor can't examine", "unchecked", strings.Join(unseen, "; "))
			}
		}
	})
}
