package lab

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// listenOps are the operations that clients repeat.
var listenOps = []struct {
	name, what string
	run        func(ctx context.Context, p post, conn, notifier *pgx.Conn, channel string) error
}{
	{"LISTEN", "each client repeats LISTEN", func(ctx context.Context, _ post, conn, _ *pgx.Conn, channel string) error {
		_, err := conn.Exec(ctx, `LISTEN `+channel)
		return err
	}},
	{"LISTEN, NOTIFY", "each client repeats LISTEN and notifies the channel", func(ctx context.Context, p post, conn, notifier *pgx.Conn, channel string) error {
		if _, err := conn.Exec(ctx, `LISTEN `+channel); err != nil {
			return err
		}
		_, err := notifier.Exec(ctx, p.send, channel, "")
		return err
	}},
	{"LISTEN, UNLISTEN", "each client repeats LISTEN and UNLISTEN", func(ctx context.Context, _ post, conn, _ *pgx.Conn, channel string) error {
		if _, err := conn.Exec(ctx, `LISTEN `+channel); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, `UNLISTEN `+channel)
		return err
	}},
}

// runListening measures the operations for each number of clients.
func runListening(ctx context.Context, r *run, posts []post, point time.Duration) error {
	clients := r.Listeners.Clients
	for _, op := range listenOps {
		chart := Chart{Title: op.name + " against clients", Kind: Lines, X: Axis{Label: "clients", Steps: true}, Y: Axis{Label: "operations per second", Log: true}}
		for _, p := range posts {
			kind := p.kind
			if kind == Collapse { // nothing collapses here: PostgreSQL is the baseline for the hub
				kind = Baseline
			}
			for _, common := range []bool{true, false} {
				channels := "one channel each"
				if common {
					channels = "one common channel"
				}
				line := Line{Name: p.name + ", " + channels, Kind: kind}
				for _, n := range clients {
					way := &Way{
						Name: fmt.Sprintf("%s: %s, %s, clients: %d", p.name, op.name, channels, n), Kind: kind, Unit: "times",
						What: op.what + " on " + channels,
					}
					t := newTrack(way, point)
					err := withListeners(ctx, p, n, func(listeners, notifiers *sessions) error {
						return r.measure(ctx, t, point, nil, nil, func(until context.Context, m *load.Tally) error {
							return listeners.work(ctx, until, m, func(ctx context.Context, conn *pgx.Conn, i int) error {
								channel := "weir_lab_common"
								if !common {
									channel += strconv.Itoa(i)
								}
								return op.run(ctx, p, conn, notifiers.conns[i], channel)
							})
						})
					})
					if err != nil {
						return err
					}
					w := t.sum()
					line.X, line.Y = append(line.X, float64(n)), append(line.Y, w.Rate)
					if n == clients[0] || n == clients[len(clients)-1] {
						r.result.Ways = append(r.result.Ways, w) // the rest is in the chart
					}
				}
				chart.Lines = append(chart.Lines, line)
			}
		}
		r.chart(chart)
	}
	return nil
}

// withListeners opens n sessions that listen, and n that notify if those must be separate.
func withListeners(ctx context.Context, p post, n int, f func(listeners, notifiers *sessions) error) error {
	listeners, err := openSessions(ctx, p.listen, n, nil)
	if err != nil {
		return err
	}
	defer listeners.close()
	notifiers := listeners
	if p.notify != p.listen {
		if notifiers, err = openSessions(ctx, p.notify, n, nil); err != nil {
			return err
		}
		defer notifiers.close()
	}
	return f(listeners, notifiers)
}
