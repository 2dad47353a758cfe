package work

import (
	"errors"
	"fmt"

	"github.com/weir-pg/weir/internal/worker"
)

// counts are totals since the start.
type counts struct{ recorded, silent int64 }

// Stats describe a dispatcher for operators.
type Stats struct {
	Workers   int // heard of within the lease
	Connected int // of these, connected or waiting in a call
	Slots     int // how many more jobs they want now
	Jobs      int // that they have
	Waiting   int // jobs that wait here for one of them
	Recorded  int64
	Silent    int64 // attempts that ended because nothing was heard of their worker
}

// Stats returns the present figures.
func (d *Dispatcher) Stats() (s Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Workers, s.Recorded, s.Silent = len(d.sessions), d.counts.recorded, d.counts.silent
	for _, session := range d.sessions {
		if session.call != nil {
			s.Connected++
		}
	}
	for _, q := range d.queues {
		s.Slots += q.credit
		s.Waiting += q.here
	}
	s.Jobs = len(d.attempts) - s.Waiting
	return s
}

// Stuck returns an error if the worker in the database makes no progress, although nothing hinders it.
func (d *Dispatcher) Stuck() error {
	d.mu.Lock()
	g := d.now
	d.mu.Unlock()
	if g == nil {
		return nil
	}
	if why, since, err := g.worker.Health.Ill(); why == worker.Stuck {
		return errors.Join(fmt.Errorf("the worker of jobs over HTTP has been stuck since %s", since.Format("15:04:05")), err)
	}
	return nil
}
