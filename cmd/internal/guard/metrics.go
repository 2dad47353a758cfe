package guard

import "github.com/prometheus/client_golang/prometheus"

// metrics are counted whether or not anybody asks for them.
type metrics struct {
	looks   *prometheus.CounterVec // by result
	actions *prometheus.CounterVec // by action and outcome
	age     prometheus.Gauge
	held    prometheus.Gauge
	holders *prometheus.GaugeVec // by kind
	suffers prometheus.Gauge
	dead    prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "weir", Subsystem: "guard", Name: name, Help: help})
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "weir", Subsystem: "guard", Name: name, Help: help}, labels)
	}
	m := &metrics{
		looks:   counter("looks_total", "Looks at the cluster.", "result"),
		actions: counter("actions_total", "Actions, by what became of them.", "action", "outcome"),
		age:     gauge("horizon_age_xids", "Transactions since the oldest that somebody holds."),
		held:    gauge("horizon_held_seconds", "How long the oldest hold has lasted, at least."),
		holders: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "weir", Subsystem: "guard", Name: "holders", Help: "Who holds the horizon, by kind.",
		}, []string{"kind"}),
		suffers: gauge("suffering", "Protected tables and probes that suffer."),
		dead:    gauge("dead_rows", "Dead rows in the protected tables that have most."),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.looks, m.actions, m.age, m.held, m.holders, m.suffers, m.dead} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) looked(r *Findings, err error) {
	if err != nil {
		m.looks.WithLabelValues("failed").Inc()
		return
	}
	m.looks.WithLabelValues("done").Inc()
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
}

func (m *metrics) did(action Action, outcome string) {
	m.actions.WithLabelValues(string(action), outcome).Inc()
}
