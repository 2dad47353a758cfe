// Package observe tests the dashboard in deploy/grafana and the alerts in deploy/prometheus against what hubs and weirotel really export, and
// where Prometheus is installed by Prometheus itself. Nothing imports it.
package observe
