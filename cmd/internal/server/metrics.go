package server

import "github.com/prometheus/client_golang/prometheus"

// collector exports what the wire protocol counts; the hub's and HTTP's metrics are package web's.
type collector struct{ s *Server }

var (
	pgConnections   = desc("weir_pg_connections", "Connections of the wire protocol now.")
	pgAccepted      = desc("weir_pg_connections_total", "Connections of the wire protocol accepted.")
	pgRefused       = desc("weir_pg_refused_total", "Connections of the wire protocol refused past the limit.")
	pgShed          = desc("weir_pg_shed_total", "Connections of the wire protocol that had not logged in and made room for others.")
	pgAuthenticated = desc("weir_pg_authenticated_total", "Clients of the wire protocol that were let in.")
	pgAuthFailed    = desc("weir_pg_auth_failed_total", "Clients of the wire protocol that were not.")
	pgNotified      = desc("weir_pg_notified_total", "Notifications that clients of the wire protocol sent.")
	pgSlow          = desc("weir_pg_slow_total", "Clients of the wire protocol cut off because they did not read.")
)

var clusterRole = prometheus.NewDesc("weir_cluster_role", "1 for the part that this hub has in its cluster: reading gives ticks to the others, serving reads for itself, following receives.", []string{"role"}, nil)

var (
	clusterHubs      = desc("weir_cluster_hubs", "Hubs of the cluster that this one hears, itself included.")
	clusterFallbacks = desc("weir_cluster_fallbacks_total", "Ticks, or parts of long ones, that were read from the database because NATS did not bring them in time.")
	clusterTakeovers = desc("weir_cluster_takeovers_total", "Times that this hub has become the reader.")
)

func desc(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }

func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{clusterRole, clusterHubs, clusterFallbacks, clusterTakeovers, pgConnections, pgAccepted, pgRefused, pgShed, pgAuthenticated, pgAuthFailed, pgNotified, pgSlow} {
		out <- d
	}
}

func (c collector) Collect(out chan<- prometheus.Metric) {
	if c.s.cluster != nil {
		n := c.s.cluster.Stats()
		out <- prometheus.MustNewConstMetric(clusterRole, prometheus.GaugeValue, 1, n.Role.String())
		out <- prometheus.MustNewConstMetric(clusterHubs, prometheus.GaugeValue, float64(n.Hubs))
		out <- prometheus.MustNewConstMetric(clusterFallbacks, prometheus.CounterValue, float64(n.Fallbacks))
		out <- prometheus.MustNewConstMetric(clusterTakeovers, prometheus.CounterValue, float64(n.Takeovers))
	}
	if c.s.pg == nil {
		return
	}
	n := c.s.pg.Stats()
	out <- prometheus.MustNewConstMetric(pgConnections, prometheus.GaugeValue, float64(n.Connections))
	for _, count := range []struct {
		desc *prometheus.Desc
		n    int64
	}{{pgAccepted, n.Accepted}, {pgRefused, n.Refused}, {pgShed, n.Shed}, {pgAuthenticated, n.Authenticated}, {pgAuthFailed, n.AuthFailed}, {pgNotified, n.Notified}, {pgSlow, n.Slow}} {
		out <- prometheus.MustNewConstMetric(count.desc, prometheus.CounterValue, float64(count.n))
	}
}
