package server

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// manyCollector exports how many databases there are.
type manyCollector struct{ m *Many }

var (
	databasesListed  = desc("weir_hub_databases", "Databases of the list.")
	databasesServed  = desc("weir_hub_databases_running", "Databases whose hub runs: they have clients, or had some lately.")
	databasesFailing = desc("weir_hub_databases_failing", "Databases whose hub could not start when a client last asked for it.")
)

// Describe implements prometheus.Collector.
func (manyCollector) Describe(out chan<- *prometheus.Desc) {
	out <- databasesListed
	out <- databasesServed
	out <- databasesFailing
}

// Collect implements prometheus.Collector.
func (c manyCollector) Collect(out chan<- prometheus.Metric) {
	all := c.m.all()
	served, failing := 0, 0
	for _, d := range all {
		if d.running() != nil {
			served++
		}
		if d.fails() {
			failing++
		}
	}
	for desc, n := range map[*prometheus.Desc]int{databasesListed: len(all), databasesServed: served, databasesFailing: failing} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n))
	}
}

// atOnce gathers from all at the same time: some databases are asked for the state of their queues, and several that do not answer must not take longer than one.
func atOnce(all []prometheus.Gatherer) prometheus.Gatherers {
	gathered := make(prometheus.Gatherers, len(all))
	var gathers sync.WaitGroup
	for i, g := range all {
		gathers.Go(func() {
			families, err := g.Gather()
			gathered[i] = prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return families, err })
		})
	}
	gathers.Wait()
	return gathered
}

// labelled are a hub's metrics with the name of its database.
type labelled struct {
	prometheus.Gatherer
	database string
}

// Gather implements prometheus.Gatherer.
func (l labelled) Gather() ([]*dto.MetricFamily, error) {
	name := "database"
	all, err := l.Gatherer.Gather()
	for _, family := range all {
		for _, metric := range family.Metric {
			metric.Label = append(slices.Clone(metric.Label), &dto.LabelPair{Name: &name, Value: &l.database})
			slices.SortFunc(metric.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
		}
	}
	return all, err
}
