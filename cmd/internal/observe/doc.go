// Package observe tests the dashboard in deploy/grafana and the alerts in deploy/prometheus against the metrics that hubs, weirotel and relays export, and
// with Prometheus itself if it is installed. Nothing imports it.
package observe
