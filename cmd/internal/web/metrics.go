package web

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-pg/weir/internal/hub"
)

// metrics are those of streams; the hub's come from Collector.
type metrics struct {
	registry    *prometheus.Registry
	connections *prometheus.GaugeVec
	opens       *prometheus.CounterVec
	refusals    *prometheus.CounterVec
	limits      *prometheus.CounterVec
	publishes   *prometheus.CounterVec
	bytes       map[string]prometheus.Counter // by kind
}

func newMetrics(registry *prometheus.Registry, h *hub.Hub) (*metrics, error) {
	if registry == nil {
		registry = prometheus.NewRegistry()
	}
	sent := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_hub_sent_bytes_total", Help: "Bytes written to streams, without the overhead of TLS and HTTP.",
	}, []string{"transport"})
	m := &metrics{
		registry: registry,
		connections: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weir_hub_connections", Help: "Open streams.",
		}, []string{"transport"}),
		opens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_hub_connections_opened_total", Help: "Streams opened.",
		}, []string{"transport"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_hub_refused_requests_total", Help: "Requests refused, by error code; unauthorized and denied come from authorization.",
		}, []string{"code"}),
		limits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_hub_rate_limited_total", Help: "Requests refused because a client has exceeded a rate.",
		}, []string{"transport"}),
		publishes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_hub_publish_requests_total", Help: "Requests to publish.",
		}, []string{"transport", "result"}),
		bytes: map[string]prometheus.Counter{},
	}
	m.limits.WithLabelValues("http")
	m.limits.WithLabelValues(webSocketKind{}.name())
	for _, kind := range []kind{webSocketKind{}, eventKind{}} {
		m.bytes[kind.name()] = sent.WithLabelValues(kind.name())
		m.connections.WithLabelValues(kind.name())
		m.opens.WithLabelValues(kind.name())
	}
	for _, c := range []prometheus.Collector{m.connections, m.opens, m.refusals, m.limits, m.publishes, sent, Collector(h)} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("web: register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) opened(k kind) {
	m.connections.WithLabelValues(k.name()).Inc()
	m.opens.WithLabelValues(k.name()).Inc()
}

func (m *metrics) closed(k kind)            { m.connections.WithLabelValues(k.name()).Dec() }
func (m *metrics) refused(code string)      { m.refusals.WithLabelValues(code).Inc() }
func (m *metrics) limited(transport string) { m.limits.WithLabelValues(transport).Inc() }
func (m *metrics) publish(transport, result string) {
	m.publishes.WithLabelValues(transport, result).Inc()
}
func (m *metrics) sent(k kind, n int) { m.bytes[k.name()].Add(float64(n)) }

// Collector collects a hub's Stats.
func Collector(h *hub.Hub) prometheus.Collector {
	c := &collector{hub: h}
	for _, d := range []struct {
		name, help string
		kind       prometheus.ValueType
		value      func(hub.Stats) float64
	}{
		{"live", "1 while the hub can read ticks, otherwise 0.", prometheus.GaugeValue, func(s hub.Stats) float64 {
			if s.Live {
				return 1
			}
			return 0
		}},
		{"subscribers", "Subscribers of all transports.", prometheus.GaugeValue, func(s hub.Stats) float64 { return float64(s.Subscribers) }},
		{"channels", "Channels with at least one subscriber; patterns are not counted.", prometheus.GaugeValue,
			func(s hub.Stats) float64 { return float64(s.Channels) }},
		{"ring_bytes", "Bytes of newest history kept in memory.", prometheus.GaugeValue, func(s hub.Stats) float64 { return float64(s.RingBytes) }},
		{"tick", "The hub's position in the log: the next tick.", prometheus.GaugeValue,
			func(s hub.Stats) float64 { return float64(s.Position.Tick) }},
		{"messages_total", "Messages dispatched, each counted once for all its subscribers.", prometheus.CounterValue,
			func(s hub.Stats) float64 { return float64(s.Messages) }},
		{"deliveries_total", "Messages and gaps delivered to subscribers.", prometheus.CounterValue,
			func(s hub.Stats) float64 { return float64(s.Delivered) }},
		{"skips_total", "Times a slow subscriber was skipped ahead.", prometheus.CounterValue,
			func(s hub.Stats) float64 { return float64(s.Skipped) }},
		{"slow_subscribers_total", "Subscribers disconnected because they did not keep up.", prometheus.CounterValue,
			func(s hub.Stats) float64 { return float64(s.Slow) }},
		{"relayed_messages_total", "Messages received from other hubs that are not in the log.", prometheus.CounterValue,
			func(s hub.Stats) float64 { return float64(s.Relayed) }},
		{"published_messages_total", "Messages logged for clients of this hub.", prometheus.CounterValue,
			func(s hub.Stats) float64 { return float64(s.Published) }},
	} {
		c.all = append(c.all, stat{prometheus.NewDesc("weir_hub_"+d.name, d.help, nil, nil), d.kind, d.value})
	}
	return c
}

type stat struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(hub.Stats) float64
}

type collector struct {
	hub *hub.Hub
	all []stat
}

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, s := range c.all {
		out <- s.desc
	}
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
	stats := c.hub.Stats()
	for _, s := range c.all {
		out <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(stats))
	}
}
