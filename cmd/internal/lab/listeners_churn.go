package lab

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// listenOps are the operations that clients repeat.
var listenOps = []struct {
	name, what string
	notifies   bool
	run        func(ctx context.Context, p post, conn, notifier *pgx.Conn, channel string) error
}{
	{"LISTEN", "each client repeats LISTEN", false, func(ctx context.Context, _ post, conn, _ *pgx.Conn, channel string) error {
		_, err := conn.Exec(ctx, `LISTEN `+channel)
		return err
	}},
	{"LISTEN, NOTIFY", "each client repeats LISTEN and notifies the channel", true, func(ctx context.Context, p post, conn, notifier *pgx.Conn, channel string) error {
		if _, err := conn.Exec(ctx, `LISTEN `+channel); err != nil {
			return err
		}
		_, err := notifier.Exec(ctx, p.send, channel, "")
		return err
	}},
	{"LISTEN, UNLISTEN", "each client repeats LISTEN and UNLISTEN", false, func(ctx context.Context, _ post, conn, _ *pgx.Conn, channel string) error {
		if _, err := conn.Exec(ctx, `LISTEN `+channel); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, `UNLISTEN `+channel)
		return err
	}},
}

// Where clients listen.
const (
	commonChannel = "one common channel"
	ownChannels   = "one channel each"
)

func listeningName(post, op, channels string, clients int) string {
	return fmt.Sprintf("%s: %s, %s, clients: %d", post, op, channels, clients)
}

// runListening measures the operations for each number of clients.
func runListening(ctx context.Context, r *run, posts []post, point time.Duration) error {
	charts := make([]Chart, len(listenOps))
	for i, op := range listenOps {
		charts[i] = Chart{Title: op.name + " against clients", Kind: Lines, X: Axis{Label: "clients", Steps: true}, Y: Axis{Label: "operations per second", Log: true}}
	}
	for _, p := range posts {
		c := &crowd{run: r, post: p, point: point}
		err := func() error {
			defer c.close()
			for i := range listenOps {
				for _, channels := range []string{commonChannel, ownChannels} {
					line, err := c.sweep(ctx, i, channels)
					if err != nil {
						return err
					}
					charts[i].Lines = append(charts[i].Lines, line)
				}
			}
			return nil
		}()
		if err != nil {
			return err
		}
	}
	for _, c := range charts {
		r.chart(c)
	}
	return nil
}

// crowd is a growing number of clients of one post, which all its measurements use.
type crowd struct {
	*run
	post
	point                time.Duration
	listeners, notifiers *sessions // the same, unless they must be separate
}

// grow opens sessions until there are n.
func (c *crowd) grow(ctx context.Context, n int) error {
	if c.listeners == nil {
		c.listeners = &sessions{}
		c.notifiers = c.listeners
		if c.post.notify != c.post.listen {
			c.notifiers = &sessions{}
		}
	}
	if err := c.listeners.add(ctx, c.post.listen, n); err != nil || c.notifiers == c.listeners {
		return err
	}
	return c.notifiers.add(ctx, c.post.notify, n)
}

func (c *crowd) close() {
	if c.listeners == nil {
		return
	}
	c.listeners.close()
	if c.notifiers != c.listeners {
		c.notifiers.close()
	}
	c.listeners, c.notifiers = nil, nil
}

const manyClients = 500

// sweep measures one operation for each number of clients.
func (c *crowd) sweep(ctx context.Context, op int, channels string) (Line, error) {
	kind := c.kind
	if kind == Collapse { // nothing collapses here: PostgreSQL is the baseline for the hub
		kind = Baseline
	}
	line := Line{Name: c.name + ", " + channels, Kind: kind}
	clients := c.Listeners.Clients
	for _, n := range clients {
		way := &Way{Name: listeningName(c.name, listenOps[op].name, channels, n), Kind: kind, Unit: "times", What: listenOps[op].what + " on " + channels}
		point := c.point
		if n >= manyClients && listenOps[op].notifies {
			point *= 3 // in which each has time for few
		}
		t := newTrack(way, point)
		if err := c.grow(ctx, n); err != nil {
			return line, err
		}
		cut, err := c.repeat(ctx, t, point, op, channels, n)
		if err != nil {
			return line, err
		}
		if cut {
			c.close()
		} else if err := (&sessions{c.listeners.conns[:n]}).exec(ctx, `UNLISTEN *`); err != nil {
			return line, err
		}
		w := t.sum()
		line.X, line.Y = append(line.X, float64(n)), append(line.Y, w.Rate)
		if n == clients[0] || n == clients[len(clients)-1] {
			r := c.result
			r.Ways = append(r.Ways, w) // the rest is in the chart
		}
	}
	return line, nil
}

// repeat measures an operation of n clients. It reports whether the clients had to be cut off: a thousand that notify a thousand take so long for one
// operation each that the end can't wait for all of them.
func (c *crowd) repeat(ctx context.Context, t *track, point time.Duration, op int, channels string, n int) (cut bool, err error) {
	var ended atomic.Bool
	err = c.measure(ctx, t, point, nil, nil, func(until context.Context, m *load.Tally) error {
		finished := make(chan struct{})
		cutting := make(chan error, 1)
		go func() { // ends with the work; waited for below
			select {
			case <-finished:
				cutting <- nil
				return
			case <-until.Done():
			}
			select {
			case <-finished:
				cutting <- nil
			case <-time.After(time.Second):
				ended.Store(true)
				_, err := c.site.guard.Exec(ctx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
					WHERE datname = current_database() AND usename = current_user AND application_name = $1 AND pid <> pg_backend_pid()`, appName)
				cutting <- err
			}
		}()
		err := (&sessions{c.listeners.conns[:n]}).work(ctx, until, m, func(ctx context.Context, conn *pgx.Conn, i int) error {
			channel := "weir_lab_common"
			if channels == ownChannels {
				channel += strconv.Itoa(i)
			}
			err := listenOps[op].run(ctx, c.post, conn, c.notifiers.conns[i], channel)
			if ended.Load() {
				return nil // this one came too late to count
			}
			return err
		})
		close(finished)
		return errors.Join(err, <-cutting)
	})
	return ended.Load(), err
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
