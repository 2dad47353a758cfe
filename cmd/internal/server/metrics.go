package server

import "github.com/prometheus/client_golang/prometheus"

// collector exports the metrics of the wire protocol; package web exports those of the hub and of HTTP.
type collector struct{ s *Server }

var (
	pgConnections   = desc("weir_pg_connections", "Current connections of the wire protocol.")
	pgAccepted      = desc("weir_pg_connections_total", "Connections of the wire protocol accepted.")
	pgRefused       = desc("weir_pg_refused_total", "Connections of the wire protocol refused because of the limit.")
	pgShed          = desc("weir_pg_shed_total", "Connections of the wire protocol closed before login to make room for others.")
	pgAuthenticated = desc("weir_pg_authenticated_total", "Clients of the wire protocol that authenticated.")
	pgAuthFailed    = desc("weir_pg_auth_failed_total", "Clients of the wire protocol that failed to authenticate.")
	pgNotified      = desc("weir_pg_notified_total", "Notifications sent by clients of the wire protocol.")
	pgSlow          = desc("weir_pg_slow_total", "Clients of the wire protocol disconnected because they did not read.")
)

var pgDelayed = desc("weir_pg_delayed_statements_total", "Statements and messages of the wire protocol that waited because their connection exceeded its rate.")

var clusterRole = prometheus.NewDesc("weir_cluster_role", "1 for this hub's role in its cluster: reading sends ticks to the others, serving reads for itself, following receives.", []string{"role"}, nil)

var (
	clusterHubs      = desc("weir_cluster_hubs", "Hubs of the cluster that this hub receives from, including itself.")
	clusterFallbacks = desc("weir_cluster_fallbacks_total", "Ticks, or parts of long ticks, read from the database because NATS did not deliver them in time.")
	clusterTakeovers = desc("weir_cluster_takeovers_total", "Times that this hub became the reader.")
)

var (
	workWorkers   = desc("weir_work_workers", "Workers over HTTP that were heard of within the lease.")
	workConnected = desc("weir_work_connected", "Workers over HTTP that are connected, or wait in a call.")
	workSlots     = desc("weir_work_free_slots", "How many more jobs the workers over HTTP want now.")
	workJobs      = desc("weir_work_running", "Jobs that workers over HTTP have.")
	workWaiting   = desc("weir_work_waiting", "Jobs that this hub has claimed and that wait for one of its workers.")
	workRecorded  = desc("weir_work_recorded_total", "Attempts by workers over HTTP whose end this hub has recorded.")
	workSilent    = desc("weir_work_silent_total", "Attempts that ended because nothing was heard of their worker over HTTP.")
)

func desc(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }

func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{clusterRole, clusterHubs, clusterFallbacks, clusterTakeovers, pgConnections, pgAccepted, pgRefused, pgShed, pgAuthenticated, pgAuthFailed, pgNotified, pgSlow, pgDelayed, workWorkers, workConnected, workSlots, workJobs, workWaiting, workRecorded, workSilent} {
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
	if c.s.work != nil {
		n := c.s.work.Stats()
		for d, v := range map[*prometheus.Desc]int{workWorkers: n.Workers, workConnected: n.Connected, workSlots: n.Slots, workJobs: n.Jobs, workWaiting: n.Waiting} {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
		}
		out <- prometheus.MustNewConstMetric(workRecorded, prometheus.CounterValue, float64(n.Recorded))
		out <- prometheus.MustNewConstMetric(workSilent, prometheus.CounterValue, float64(n.Silent))
	}
	if c.s.pg == nil {
		return
	}
	n := c.s.pg.Stats()
	out <- prometheus.MustNewConstMetric(pgConnections, prometheus.GaugeValue, float64(n.Connections))
	for _, count := range []struct {
		desc *prometheus.Desc
		n    int64
	}{{pgAccepted, n.Accepted}, {pgRefused, n.Refused}, {pgShed, n.Shed}, {pgAuthenticated, n.Authenticated}, {pgAuthFailed, n.AuthFailed}, {pgNotified, n.Notified}, {pgSlow, n.Slow}, {pgDelayed, n.Delayed}} {
		out <- prometheus.MustNewConstMetric(count.desc, prometheus.CounterValue, float64(count.n))
	}
}
