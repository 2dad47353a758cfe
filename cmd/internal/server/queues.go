package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/internal/store"
)

// queues exports how the queues of jobs stand, under the names that weirotel has for the same.
type queues struct {
	store *store.Store
	log   *slog.Logger

	mu     sync.Mutex
	asked  time.Time
	all    []queueInfo // in the order of names; nil: the database did not answer
	failed bool        // and that was said
}

const (
	queuesEvery = 5 * time.Second // scrapes may come from anybody: the database is asked so often at most
	queuesBound = 2 * time.Second // and a scrape waits for its answer no longer
	queuesMost  = 500             // the rest are one
	otherQueues = "_OTHER"
)

// queueInfo has the columns of weir.queues(), in their order.
type queueInfo struct {
	Name        string
	PausedAt    *time.Time
	Available   int64
	Running     int64
	Later       int64
	Approximate bool
	ReadySince  *time.Time
	Claimed     int64
	LastClaim   *time.Time
	Workers     int64
}

var (
	queuesUp     = desc("weir_queues_up", "1 while the database says how the queues of jobs stand.")
	queueJobs    = prometheus.NewDesc("weir_queue_jobs", "Jobs of a queue, by state. Past some 10,000 it is an estimate.", []string{"queue", "state"}, nil)
	queueOldest  = prometheus.NewDesc("weir_queue_oldest_seconds", "How long the available job that has waited longest has been waiting; 0 while none waits.", []string{"queue"}, nil)
	queueWorkers = prometheus.NewDesc("weir_queue_workers", "Workers that work a queue.", []string{"queue"}, nil)
	queuePaused  = prometheus.NewDesc("weir_queue_paused", "1 for a queue that is paused.", []string{"queue"}, nil)
	queueClaimed = prometheus.NewDesc("weir_queue_claimed_total", "Attempts that were handed to workers.", []string{"queue"}, nil)
)

// Describe implements prometheus.Collector.
func (q *queues) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queuesUp, queueJobs, queueOldest, queueWorkers, queuePaused, queueClaimed} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (q *queues) Collect(out chan<- prometheus.Metric) {
	all := q.read()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if all == nil {
		gauge(queuesUp, 0)
		return
	}
	gauge(queuesUp, 1)
	for _, i := range all {
		gauge(queueJobs, float64(i.Available), i.Name, "available")
		gauge(queueJobs, float64(i.Running), i.Name, "running")
		gauge(queueJobs, float64(i.Later), i.Name, "later")
		oldest, paused := 0.0, 0.0
		if i.ReadySince != nil {
			oldest = max(time.Since(*i.ReadySince).Seconds(), 0)
		}
		if i.PausedAt != nil {
			paused = 1
		}
		gauge(queueOldest, oldest, i.Name)
		gauge(queueWorkers, float64(i.Workers), i.Name)
		gauge(queuePaused, paused, i.Name)
		out <- prometheus.MustNewConstMetric(queueClaimed, prometheus.CounterValue, float64(i.Claimed), i.Name)
	}
}

// read asks the database, unless it was asked just now.
func (q *queues) read() []queueInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.asked.IsZero() && time.Since(q.asked) < queuesEvery {
		return q.all
	}
	ctx, cancel := context.WithTimeout(context.Background(), queuesBound) // a scrape's own does not come here
	defer cancel()
	all, err := store.Queues[queueInfo](ctx, q.store)
	if err != nil {
		if !q.failed {
			q.log.Warn("weir: the database does not say how its queues stand: there are no metrics of them", "error", err)
		}
		q.all = nil
	} else {
		q.all = folded(all)
	}
	q.asked, q.failed = time.Now(), err != nil
	return q.all
}

// folded makes one of the queues past the first so many: their names are whatever programs say.
func folded(all []queueInfo) []queueInfo {
	if len(all) <= queuesMost {
		return append([]queueInfo{}, all...)
	}
	rest := queueInfo{Name: otherQueues}
	for _, i := range all[queuesMost:] {
		rest.Available += i.Available
		rest.Running += i.Running
		rest.Later += i.Later
		rest.Claimed += i.Claimed
		rest.Workers = max(rest.Workers, i.Workers)
		if rest.ReadySince == nil || i.ReadySince != nil && i.ReadySince.Before(*rest.ReadySince) {
			rest.ReadySince = i.ReadySince
		}
	}
	return append(all[:queuesMost:queuesMost], rest)
}
