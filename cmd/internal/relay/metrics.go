package relay

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/weirrelay"
)

// metrics count what relays do, by relay.
type metrics struct {
	sent, dead, gaps *prometheus.CounterVec
	lag              *prometheus.HistogramVec
	active           *prometheus.GaugeVec
	registerer       prometheus.Registerer
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	by := []string{"relay"}
	m := &metrics{
		registerer: r,
		sent:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_relay_messages_total", Help: "Messages that the target has."}, by),
		dead:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_relay_dead_letters_total", Help: "Messages that the target refused, kept as jobs."}, by),
		gaps:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_relay_gaps_total", Help: "Places of the log at which messages may be missing."}, by),
		lag:        prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "weir_relay_send_seconds", Help: "From when the newest message of a batch was read until the target had it.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}, by),
		active:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_relay_active", Help: "1: this process passes messages on; 0: it stands by."}, by),
	}
	for _, c := range []prometheus.Collector{m.sent, m.dead, m.gaps, m.lag, m.active} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// observer returns what counts the progress of a relay.
func (m *metrics) observer(relay string) func(weirrelay.Progress) {
	sent, dead, gaps, lag, active := m.sent.WithLabelValues(relay), m.dead.WithLabelValues(relay), m.gaps.WithLabelValues(relay), m.lag.WithLabelValues(relay), m.active.WithLabelValues(relay)
	return func(p weirrelay.Progress) {
		sent.Add(float64(p.Sent))
		dead.Add(float64(p.Dead))
		if p.Gap != nil {
			gaps.Inc()
		}
		if p.Sent > 0 {
			lag.Observe(p.Lag.Seconds())
		}
		active.Set(map[bool]float64{true: 1}[p.Active])
	}
}

// behind is since when the oldest message of a relay waits; nil: none does.
type behind struct{ since atomic.Pointer[time.Time] }

// behindObserver returns what also notes how far a relay of messages is behind.
func (m *metrics) behindObserver(relay string) (func(weirrelay.Progress), error) {
	var b behind
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_relay_behind_seconds", Help: "For how long the oldest message has waited that may still have to be passed on.", ConstLabels: prometheus.Labels{"relay": relay},
	}, b.seconds)
	if err := m.registerer.Register(gauge); err != nil {
		return nil, err
	}
	count := m.observer(relay)
	return func(p weirrelay.Progress) {
		b.note(p.Waiting)
		count(p)
	}, nil
}

func (b *behind) note(since time.Time) {
	if since.IsZero() {
		b.since.Store(nil)
	} else {
		b.since.Store(&since)
	}
}

// seconds is of now: it grows while nothing is observed, as while a target refuses.
func (b *behind) seconds() float64 {
	since := b.since.Load()
	if since == nil {
		return 0
	}
	return max(time.Since(*since).Seconds(), 0) // it may be by the database's clock
}
