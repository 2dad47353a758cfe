package push

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count what is pushed, by endpoint.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	reports  *prometheus.CounterVec
}

var (
	runningDesc  = prometheus.NewDesc("weir_push_requests_in_flight", "Requests to an endpoint that are not answered yet.", []string{"endpoint"}, nil)
	acceptedDesc = prometheus.NewDesc("weir_push_accepted_jobs", "Jobs that an endpoint has accepted, and not reported yet.", []string{"endpoint"}, nil)
)

func newMetrics(r *prometheus.Registry, p *Pusher) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_push_requests_total", Help: "Requests to endpoints, by what became of them."}, []string{"endpoint", "result"}),
		seconds:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "weir_push_request_seconds", Help: "How long endpoints took to answer.", Buckets: prometheus.ExponentialBuckets(0.005, 4, 8)}, []string{"endpoint"}),
		reports:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_push_callbacks_total", Help: "Callbacks with a good signature."}, []string{"endpoint", "recorded"}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.seconds, m.reports, gauges{p}} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// delivered counts a request.
func (m *metrics) delivered(endpoint string, f fate, took time.Duration) {
	result := f.outcome
	if result == "" {
		result = "accepted"
	}
	m.requests.WithLabelValues(endpoint, result).Inc()
	m.seconds.WithLabelValues(endpoint).Observe(took.Seconds())
}

// reported counts a callback.
func (m *metrics) reported(endpoint string, recorded bool) {
	value := "no"
	if recorded {
		value = "yes"
	}
	m.reports.WithLabelValues(endpoint, value).Inc()
}

// gauges show what is under way.
type gauges struct{ p *Pusher }

// Describe implements prometheus.Collector.
func (g gauges) Describe(to chan<- *prometheus.Desc) {
	to <- runningDesc
	to <- acceptedDesc
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(to chan<- prometheus.Metric) {
	g.p.mu.Lock()
	all := make([]*endpoint, 0, len(g.p.endpoints))
	for _, e := range g.p.endpoints {
		all = append(all, e)
	}
	g.p.mu.Unlock()
	for _, e := range all {
		requests, accepted := e.counts()
		to <- prometheus.MustNewConstMetric(runningDesc, prometheus.GaugeValue, float64(requests), e.name)
		to <- prometheus.MustNewConstMetric(acceptedDesc, prometheus.GaugeValue, float64(accepted), e.name)
	}
}
