package lab

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// Gauges of the whole server. The stories' fingerprint is that they fall when load rises.
const (
	serverCPU      = "CPU of the server"
	walWritten     = "WAL written"
	activeSessions = "active sessions"
)

// serverGauges are the gauges of the site's server that can be read here. They must be made anew for each measurement, because two of them
// count from when they are first read.
func serverGauges(s *site, conn *pgx.Conn) []gauge {
	gauges := []gauge{
		rateOf(walWritten, func(ctx context.Context) (megabytes float64, err error) {
			err = conn.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 / 1e6`).Scan(&megabytes)
			return megabytes, err
		}),
		{activeSessions, func(ctx context.Context) (n float64, err error) {
			err = conn.QueryRow(ctx, `SELECT count(*)::float8 FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1 AND state = 'active'`, appName).Scan(&n)
			return n, err
		}},
	}
	if s.server == nil { // which may be on another machine
		return gauges
	}
	if _, ok := load.CPUOf(s.server.PID()); !ok {
		return gauges
	}
	// It comes first, because a busy server answers the others late.
	return slices.Insert(gauges, 0, rateOf(serverCPU, func(context.Context) (float64, error) {
		used, ok := load.CPUOf(s.server.PID())
		if !ok {
			return 0, errors.New("the server's CPU time can't be read")
		}
		return used.Seconds(), nil
	}))
}

// chartServer adds a chart of each gauge of the server.
func (r *run) chartServer(tracks []*track, during string, marks ...Mark) {
	for _, c := range []struct{ name, y, note string }{
		{serverCPU, "cores busy", "all processes of the server, of this machine's cores"},
		{walWritten, "MB per second", "what commits write to disk"},
		{activeSessions, "sessions", "that run a statement, or wait within one"},
	} {
		r.chartGauge(tracks, c.name, Chart{Title: capital(c.name) + during, Note: c.note, Y: Axis{Label: c.y}, Marks: marks})
	}
}

// gaugeEvery is the shortest time over which a rate is computed: the system counts CPU time in hundredths of a second.
const gaugeEvery = 400 * time.Millisecond

var errNoRateYet = errors.New("a rate needs two readings")

// rateOf is a gauge of how much a total grows per second.
func rateOf(name string, total func(ctx context.Context) (float64, error)) gauge {
	var from time.Time
	var last float64
	rate, err := 0.0, errNoRateYet
	return gauge{name, func(ctx context.Context) (float64, error) {
		if !from.IsZero() && time.Since(from) < gaugeEvery {
			return rate, err
		}
		now, failed := total(ctx)
		if failed != nil {
			return 0, failed
		}
		at := time.Now()
		if !from.IsZero() {
			rate, err = (now-last)/at.Sub(from).Seconds(), nil
		}
		from, last = at, now
		return rate, err
	}}
}
