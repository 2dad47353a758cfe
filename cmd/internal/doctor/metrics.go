package doctor

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics exports what Watch reports to Prometheus. It is ready to use, by several goroutines.
type Metrics struct {
	newest atomic.Pointer[Snapshot] // nil: none yet, or the database can't be examined
}

var (
	metricUp      = prometheus.NewDesc("weir_doctor_up", "1 while the doctor can examine the database.", nil, nil)
	metricFinding = prometheus.NewDesc("weir_doctor_finding", "1 while there are such findings. downstream_of is the finding of which it is a consequence.", []string{"code", "severity", "downstream_of"}, nil)
	metricLost    = prometheus.NewDesc("weir_doctor_lost_sessions", "Sessions that waited because of such findings, on average over the last report.", []string{"code"}, nil)
	metricUnseen  = prometheus.NewDesc("weir_doctor_unchecked", "What the doctor cannot examine, in number of things; the log names each, and what it requires. Usually privileges.", nil, nil)
	metricWaits   = prometheus.NewDesc("weir_doctor_waiting_sessions", "Waiting sessions by class of wait, on average over the last second.", []string{"class"}, nil)
	metricAnswer  = prometheus.NewDesc("weir_doctor_postmaster_answer_seconds", "How long the postmaster took to answer a new connection, at worst in the last 15 seconds, without the network's time.", nil, nil)
)

// Show stores what Watch has reported.
func (m *Metrics) Show(s Snapshot) { m.newest.Store(&s) }

// Lost says that the database can't be examined for now.
func (m *Metrics) Lost() { m.newest.Store(nil) }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{metricUp, metricFinding, metricLost, metricUnseen, metricWaits, metricAnswer} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	now := m.newest.Load()
	if now == nil {
		gauge(metricUp, 0)
		return
	}
	for _, class := range Classes() {
		gauge(metricWaits, now.Waits.Rate(class), string(class))
	}
	if now.Answer > 0 {
		gauge(metricAnswer, now.Answer.Seconds())
	}
	if now.Report == nil || now.Report.Samples == 0 {
		gauge(metricUp, 0)
		return
	}
	gauge(metricUp, 1)
	gauge(metricUnseen, float64(len(now.Report.Unseen)))
	// A check can find the same in several queues: one series tells of all, because a repeated one would fail the scrape.
	type labels struct{ code, severity, downstreamOf string }
	found, lost := map[labels]bool{}, map[string]float64{}
	for _, f := range now.Report.Findings {
		found[labels{string(f.Code), string(f.Severity), string(f.DownstreamOf)}] = true
		lost[string(f.Code)] += f.Lost
	}
	for l := range found {
		gauge(metricFinding, 1, l.code, l.severity, l.downstreamOf)
	}
	for code, sessions := range lost {
		gauge(metricLost, sessions, code)
	}
}

const (
	silentUnready = 30 * time.Second // without a snapshot, which comes once a second while the server answers
	silentStuck   = 5 * time.Minute  // longer than all checks together may take
)

// Ready returns why the doctor does not examine the database, or nil while it does.
func (m *Metrics) Ready() error {
	switch now := m.newest.Load(); {
	case now == nil || now.Report == nil:
		return errors.New("there is no report yet")
	case now.Report.Samples == 0:
		return errors.New("no sample of the database's sessions could be taken")
	}
	return m.silent(silentUnready)
}

// Stuck returns an error if a restart would help, and nil otherwise.
func (m *Metrics) Stuck() error { return m.silent(silentStuck) }

func (m *Metrics) silent(limit time.Duration) error {
	if now := m.newest.Load(); now != nil && time.Since(now.At) > limit {
		return fmt.Errorf("nothing was seen of the database for %s", time.Since(now.At).Round(time.Second))
	}
	return nil
}
