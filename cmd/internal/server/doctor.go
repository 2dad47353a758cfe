package server

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/sleep"
)

// examiner runs a doctor continuously, and exports its findings.
type examiner struct {
	report  atomic.Pointer[doctor.Report] // nil: none yet, or the database can't be examined
	waits   atomic.Pointer[doctor.Waits]
	trouble atomic.Pointer[error] // why it can't; nil: it can, or it is not known yet
}

const examineAgain = 10 * time.Second // after a failure

var (
	doctorUp      = desc("weir_doctor_up", "1 while the doctor can examine the database.")
	doctorFinding = prometheus.NewDesc("weir_doctor_finding", "1 while there are such findings. downstream_of is the finding of which it is a consequence.", []string{"code", "severity", "downstream_of"}, nil)
	doctorLost    = prometheus.NewDesc("weir_doctor_lost_sessions", "Sessions that waited because of such findings, on average over the last report.", []string{"code"}, nil)
	doctorUnseen  = desc("weir_doctor_unchecked", "What the doctor cannot examine, in number of things; the hub's log names each, and what it requires. Usually privileges.")
	doctorWaits   = prometheus.NewDesc("weir_doctor_waiting_sessions", "Waiting sessions by class of wait, on average over the last second.", []string{"class"}, nil)
)

// run examines the database until ctx ends, across outages.
func (e *examiner) run(ctx context.Context, s *Server) {
	for wait := time.Duration(0); sleep.For(ctx, wait); wait = examineAgain {
		err := e.watch(ctx, s)
		e.report.Store(nil)
		e.waits.Store(nil)
		if ctx.Err() == nil {
			e.trouble.Store(&err)
			s.log.Warn("weir: the doctor can't examine the database, trying again", "error", err, "in", examineAgain)
		}
	}
}

func (e *examiner) watch(ctx context.Context, s *Server) error {
	d, err := doctor.Open(ctx, doctor.Config{URL: s.config.Database, Logger: s.log})
	if err != nil {
		return err
	}
	defer d.Close()
	var unseen []string // as last logged
	return d.Watch(ctx, func(now doctor.Snapshot) {
		e.waits.Store(&now.Waits)
		if now.Report != nil {
			e.report.Store(now.Report)
			e.trouble.Store(nil)
			if now := now.Report.Unseen; len(now) > 0 && !slices.Equal(now, unseen) {
				unseen = now
				s.log.Warn("weir: what the doctor can't examine", "unchecked", strings.Join(unseen, "; "))
			}
		}
	})
}

// Describe implements prometheus.Collector.
func (e *examiner) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{doctorUp, doctorFinding, doctorLost, doctorUnseen, doctorWaits} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (e *examiner) Collect(out chan<- prometheus.Metric) {
	report, waits := e.report.Load(), e.waits.Load()
	up := 0.0
	if report != nil {
		up = 1
		out <- prometheus.MustNewConstMetric(doctorUnseen, prometheus.GaugeValue, float64(len(report.Unseen)))
		// A check can find the same in several queues: one series tells of all, because a repeated one would fail the scrape.
		type labels struct{ code, severity, downstreamOf string }
		found, lost := map[labels]bool{}, map[string]float64{}
		for _, f := range report.Findings {
			found[labels{string(f.Code), string(f.Severity), string(f.DownstreamOf)}] = true
			lost[string(f.Code)] += f.Lost
		}
		for l := range found {
			out <- prometheus.MustNewConstMetric(doctorFinding, prometheus.GaugeValue, 1, l.code, l.severity, l.downstreamOf)
		}
		for code, sessions := range lost {
			out <- prometheus.MustNewConstMetric(doctorLost, prometheus.GaugeValue, sessions, code)
		}
	}
	out <- prometheus.MustNewConstMetric(doctorUp, prometheus.GaugeValue, up)
	if waits != nil {
		for _, class := range doctor.Classes() {
			out <- prometheus.MustNewConstMetric(doctorWaits, prometheus.GaugeValue, waits.Rate(class), string(class))
		}
	}
}
