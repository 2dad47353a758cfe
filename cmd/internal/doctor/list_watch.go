package doctor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// Part names a part of a ListReport. Database is "" for what the databases of a server share.
type Part struct{ Cluster, Database, Address string }

// Parts returns the reports by what they are about, and why there is none. Copies of a cluster have its identifier, and another address. Databases that can't be reached
// have no cluster.
func (r ListReport) Parts() (reports map[Part]*Report, failed map[Part]string) {
	reports, failed = map[Part]*Report{}, map[Part]string{}
	put := func(p Part, report *Report, err string) {
		if report != nil {
			reports[p] = report
		} else {
			failed[p] = err
		}
	}
	for _, s := range r.Servers {
		put(Part{s.Cluster, "", s.Address}, s.Report, s.Error)
		for _, d := range s.Databases {
			put(Part{s.Cluster, d.Database, d.Address}, d.Report, d.Error)
		}
	}
	for _, d := range r.Unreachable {
		put(Part{"", d.Database, d.Address}, d.Report, d.Error)
	}
	return reports, failed
}

// ListChanges notices what comes and goes from one report on a list to the next. The zero value is ready to use.
type ListChanges struct {
	parts  map[Part]*changes
	failed map[Part]string
}

// PartChange is a change in a part.
type PartChange struct {
	Part
	Change
}

// Next returns how a report differs from the one before.
func (c *ListChanges) Next(r ListReport) (all []PartChange) {
	reports, failed := r.Parts()
	parts := map[Part]*changes{}
	order := func(a, b Part) int {
		return slices.Compare([]string{a.Cluster, a.Database, a.Address}, []string{b.Cluster, b.Database, b.Address})
	}
	for _, p := range slices.SortedFunc(maps.Keys(reports), order) {
		was := c.parts[p]
		if was == nil {
			was = &changes{}
		}
		was.report(r.At, *reports[p])
		if c.failed[p] != "" {
			was.tell(r.At, Info, "it can be examined again")
		}
		for _, change := range was.take() {
			all = append(all, PartChange{p, change})
		}
		parts[p] = was
	}
	for _, p := range slices.SortedFunc(maps.Keys(failed), order) {
		if c.failed[p] != failed[p] {
			all = append(all, PartChange{p, Change{r.At, Critical, "it can't be examined: " + failed[p]}})
		}
	}
	c.parts, c.failed = parts, failed
	return all
}

// ListMetrics exports the newest report on a list to Prometheus. It is ready to use, by several goroutines.
type ListMetrics struct {
	newest atomic.Pointer[ListReport]
	moved  atomic.Pointer[time.Time]
}

var (
	ofPart            = []string{"cluster", "database", "address"}
	metricListUp      = prometheus.NewDesc("weir_doctor_up", "1 while the doctor can examine the server (then database is empty) or the database.", ofPart, nil)
	metricListFinding = prometheus.NewDesc("weir_doctor_finding", "1 while there are such findings. downstream_of is the finding of which it is a consequence. database is empty for a server's.", append(ofPart[:3:3], "code", "severity", "downstream_of"), nil)
	metricListLost    = prometheus.NewDesc("weir_doctor_lost_sessions", "Sessions that waited because of such findings, on average over the last report.", append(ofPart[:3:3], "code"), nil)
	metricListUnseen  = prometheus.NewDesc("weir_doctor_unchecked", "What the doctor cannot examine, in number of things. Usually privileges.", ofPart, nil)
	metricListMissing = prometheus.NewDesc("weir_doctor_unreachable_databases", "Listed databases that the doctor cannot reach; the log names them.", nil, nil)
)

// Show stores a report.
func (m *ListMetrics) Show(r ListReport) {
	m.newest.Store(&r)
	m.Moved()
}

// Moved says that the examination makes progress.
func (m *ListMetrics) Moved() {
	now := time.Now()
	m.moved.Store(&now)
}

// Describe implements prometheus.Collector.
func (m *ListMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{metricListUp, metricListFinding, metricListLost, metricListUnseen, metricListMissing} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *ListMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		for i, l := range labels {
			labels[i] = legible(l)
		}
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	now := m.newest.Load()
	if now == nil {
		return
	}
	missing := 0
	reports, failed := now.Parts()
	for p := range failed {
		if p.Cluster == "" {
			missing++
		} else {
			gauge(metricListUp, 0, p.Cluster, p.Database, p.Address)
		}
	}
	for p, r := range reports {
		if p.Cluster == "" { // it is full, and lets nobody in
			missing++
			continue
		}
		gauge(metricListUp, 1, p.Cluster, p.Database, p.Address)
		gauge(metricListUnseen, float64(len(r.Unseen)), p.Cluster, p.Database, p.Address)
		type labels struct{ code, severity, downstreamOf string }
		found, lost := map[labels]bool{}, map[string]float64{}
		for _, f := range r.Findings {
			found[labels{string(f.Code), string(f.Severity), string(f.DownstreamOf)}] = true
			lost[string(f.Code)] += f.Lost
		}
		for l := range found {
			gauge(metricListFinding, 1, p.Cluster, p.Database, p.Address, l.code, l.severity, l.downstreamOf)
		}
		for code, sessions := range lost {
			gauge(metricListLost, sessions, p.Cluster, p.Database, p.Address, code)
		}
	}
	gauge(metricListMissing, float64(missing))
}

// legible returns a label as Prometheus takes it, which refuses all metrics for one that is not UTF-8: names of databases may have any bytes.
func legible(label string) string {
	if utf8.ValidString(label) {
		return label
	}
	return strings.Trim(strconv.Quote(label), `"`)
}

// Ready returns why the databases are not examined, or nil while they are.
func (m *ListMetrics) Ready() error {
	now := m.newest.Load()
	if now == nil {
		return errors.New("there is no report yet")
	}
	if len(now.Servers) == 0 {
		return errors.New("no database of the list can be reached")
	}
	return m.Stuck()
}

// Stuck returns an error if a restart would help, and nil otherwise.
func (m *ListMetrics) Stuck() error {
	if moved := m.moved.Load(); moved != nil && time.Since(*moved) > silentStuck {
		return fmt.Errorf("no server was examined for %s", time.Since(*moved).Round(time.Second))
	}
	return nil
}
