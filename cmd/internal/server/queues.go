package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/internal/store"
)

// queues exports the state of the job queues, under the names that weirotel uses.
type queues struct {
	store *store.Store
	log   *slog.Logger

	mu     sync.Mutex
	asked  time.Time
	all    []queueInfo // ordered by name; nil: the database did not answer
	failed bool        // the failure has been logged
}

const (
	queuesEvery   = 5 * time.Second // scrapes may come from anyone: limits the queries to the database
	queuesTimeout = 5 * time.Second // limits how long a scrape waits: half as long as Prometheus does by default
	queuesLimit   = 500             // further queues are combined into one
	otherQueues   = "_OTHER"
)

// queueInfo has the columns of weir.queues(), in order.
type queueInfo struct {
	Name        string
	PausedAt    *time.Time
	Available   int64
	Running     int64
	Scheduled   int64
	Approximate bool
	ReadySince  *time.Time
	Claimed     int64
	LastClaim   *time.Time
	Workers     int64
}

var (
	queuesUp     = desc("weir_queues_up", "1 while the state of the job queues can be read from the database.")
	queueJobs    = prometheus.NewDesc("weir_queue_jobs", "Jobs of a queue, by state. An estimate above about 10,000.", []string{"queue", "state"}, nil)
	queueOldest  = prometheus.NewDesc("weir_queue_oldest_seconds", "Waiting time of the oldest available job; 0 if there is none.", []string{"queue"}, nil)
	queueWorkers = prometheus.NewDesc("weir_queue_workers", "Workers that are alive and work a queue.", []string{"queue"}, nil)
	queuePaused  = prometheus.NewDesc("weir_queue_paused", "1 for a queue that is paused.", []string{"queue"}, nil)
	queueClaimed = prometheus.NewDesc("weir_queue_claimed_total", "Attempts claimed by workers.", []string{"queue"}, nil)
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
		gauge(queueJobs, float64(i.Scheduled), i.Name, "scheduled")
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

// read queries the database, unless the last answer is recent.
func (q *queues) read() []queueInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.asked.IsZero() && time.Since(q.asked) < queuesEvery {
		return q.all
	}
	ctx, cancel := context.WithTimeout(context.Background(), queuesTimeout) // Collect has no context
	defer cancel()
	all, err := store.Queues[queueInfo](ctx, q.store)
	if err != nil {
		if !q.failed {
			q.log.Warn("weir: can't read the state of the queues: their metrics are missing", "error", err)
		}
		q.all = nil
	} else {
		q.all = folded(all)
	}
	q.asked, q.failed = time.Now(), err != nil
	return q.all
}

// folded combines the queues beyond the limit into one, because programs choose the names of queues.
func folded(all []queueInfo) []queueInfo {
	if len(all) <= queuesLimit {
		return append([]queueInfo{}, all...)
	}
	rest := queueInfo{Name: otherQueues}
	for _, i := range all[queuesLimit:] {
		rest.Available += i.Available
		rest.Running += i.Running
		rest.Scheduled += i.Scheduled
		rest.Claimed += i.Claimed
		rest.Workers = max(rest.Workers, i.Workers)
		if rest.ReadySince == nil || i.ReadySince != nil && i.ReadySince.Before(*rest.ReadySince) {
			rest.ReadySince = i.ReadySince
		}
	}
	return append(all[:queuesLimit:queuesLimit], rest)
}
