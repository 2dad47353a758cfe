package guard

import "github.com/prometheus/client_golang/prometheus"

// metrics are counted even if they are not registered.
type metrics struct {
	polls   *prometheus.CounterVec // by result
	actions *prometheus.CounterVec // by action and outcome
	age     prometheus.Gauge
	held    prometheus.Gauge
	holders *prometheus.GaugeVec // by kind
	suffers prometheus.Gauge
	dead    prometheus.Gauge
	blocked prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "weir", Subsystem: "guard", Name: name, Help: help})
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "weir", Subsystem: "guard", Name: name, Help: help}, labels)
	}
	m := &metrics{
		polls:   counter("looks_total", "Polls of the cluster, by result.", "result"),
		actions: counter("actions_total", "Actions, by outcome.", "action", "outcome"),
		age:     gauge("horizon_age_xids", "Age of the horizon in transactions."),
		held:    gauge("horizon_held_seconds", "Time for which the oldest holder has held the horizon, at least."),
		holders: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "weir", Subsystem: "guard", Name: "holders", Help: "Holders of the horizon, by kind.",
		}, []string{"kind"}),
		suffers: gauge("suffering", "Protected tables and probes that suffer."),
		dead:    gauge("dead_rows", "Dead rows in the protected tables that have the most."),
		blocked: gauge("blocked_sessions", "Sessions that have waited for locks for as long as the policy says (at most 64 are counted); 0 if it does not say."),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.polls, m.actions, m.age, m.held, m.holders, m.suffers, m.dead, m.blocked} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) polled(r *Findings, err error) {
	if err != nil {
		m.polls.WithLabelValues("failed").Inc()
		return
	}
	m.polls.WithLabelValues("done").Inc()
	m.age.Set(float64(r.AgeXids))
	m.held.Set(r.Held)
	m.holders.Reset()
	for _, h := range r.Holders {
		if h.relevant {
			m.holders.WithLabelValues(string(h.Kind)).Inc()
		}
	}
	suffers, dead := 0, int64(0)
	for _, t := range r.Tables {
		dead += t.Dead
		if t.Suffers {
			suffers++
		}
	}
	for _, t := range r.Probes {
		if t.Suffers {
			suffers++
		}
	}
	m.suffers.Set(float64(suffers))
	m.dead.Set(float64(dead))
	m.blocked.Set(float64(r.Blocked))
}

func (m *metrics) did(action Action, outcome string) {
	m.actions.WithLabelValues(string(action), outcome).Inc()
}
