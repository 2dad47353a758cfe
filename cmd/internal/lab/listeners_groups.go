package lab

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// runGroups measures groups that share a channel: one session pings the channel of its group, each listener of it answers, and when all have
// answered the next round begins. The number of listeners is always the same; they form few large groups or many small ones.
func runGroups(ctx context.Context, r *run, posts []post, point time.Duration) error {
	chart := Chart{Title: "Rounds of groups against listeners of a channel", Note: fmt.Sprintf("%d listeners in all", r.Listeners.Grouped), Kind: Lines,
		X: Axis{Label: "listeners of a channel", Steps: true}, Y: Axis{Label: "rounds per second", Log: true}}
	for _, p := range posts {
		line := Line{Name: p.name, Kind: p.kind}
		for _, n := range r.Listeners.Groups {
			groups := max(r.Listeners.Grouped/n, 1)
			way := &Way{Name: groupsName(p.name, n), Kind: p.kind, Unit: "rounds", What: fmt.Sprintf("%d groups at the same time: one session notifies the channel, and all %d listeners of it answer", groups, n)}
			t := newTrack(way, point)
			t.latencyOf = "from a notification to the last answer"
			err := withListeners(ctx, p, groups*(n+1), func(listeners, notifiers *sessions) error {
				return r.measure(ctx, t, point, nil, nil, func(until context.Context, m *load.Tally) error {
					return playGroups(ctx, until, p, listeners, notifiers, groups, n, m)
				})
			})
			if err != nil {
				return err
			}
			w := t.sum()
			r.result.Ways = append(r.result.Ways, w)
			line.X, line.Y = append(line.X, float64(n)), append(line.Y, w.Rate)
		}
		chart.Lines = append(chart.Lines, line)
	}
	r.chart(chart)
	return nil
}

func groupsName(post string, n int) string {
	return fmt.Sprintf("%s: groups of %d listeners", post, n)
}

// playGroups plays all groups until `until` ends. The first session of each group is the one that pings.
func playGroups(ctx, until context.Context, p post, listeners, notifiers *sessions, groups, n int, m *load.Tally) error {
	channel := func(g int, what string) string { return "weir_lab_" + what + "_" + strconv.Itoa(g) }
	for i, conn := range listeners.conns {
		what := "call"
		if i%(n+1) == 0 {
			what = "answer"
		}
		if _, err := conn.Exec(ctx, `LISTEN `+channel(i/(n+1), what)); err != nil {
			return err
		}
	}
	playing, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(listeners.conns))
	var answering, calling sync.WaitGroup
	for i, conn := range listeners.conns {
		g, notifier := i/(n+1), notifiers.conns[i]
		if i%(n+1) > 0 {
			answering.Go(func() {
				errs[i] = answer(playing, conn, func(ctx context.Context) error {
					_, err := notifier.Exec(ctx, p.send, channel(g, "answer"), strconv.Itoa(i))
					return err
				})
			})
			continue
		}
		calling.Go(func() {
			for until.Err() == nil && errs[i] == nil {
				begun := time.Now()
				if errs[i] = callOnce(ctx, conn, notifier, p.send, channel(g, "call"), n); errs[i] == nil {
					m.Did(1, time.Since(begun))
				}
			}
		})
	}
	calling.Wait()
	stop()
	answering.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(errs...)
}

// callOnce notifies a channel once and waits for n answers.
func callOnce(ctx context.Context, conn, notifier *pgx.Conn, send, channel string, n int) error {
	if _, err := notifier.Exec(ctx, send, channel, ""); err != nil {
		return err
	}
	// Without a timeout, the round would wait forever for a lost message.
	patient, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for range n {
		if _, err := conn.WaitForNotification(patient); err != nil {
			return fmt.Errorf("wait for the answers: %w", err)
		}
	}
	return nil
}

// answer answers each notification until playing ends.
func answer(playing context.Context, conn *pgx.Conn, reply func(ctx context.Context) error) error {
	for {
		_, err := conn.WaitForNotification(playing)
		if err == nil {
			err = reply(playing)
		}
		switch {
		case playing.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
}

// runNotifiers measures one listener and a growing number of sessions that notify it.
func runNotifiers(ctx context.Context, r *run, posts []post, point time.Duration) error {
	chart := Chart{Title: "One listener against notifiers", Kind: Lines, X: Axis{Label: "notifiers", Steps: true}, Y: Axis{Label: "notifications per second", Log: true}}
	for _, p := range posts {
		sent, got := Line{Name: p.name, Kind: p.kind}, Line{Name: p.name + ", received", Kind: Baseline}
		for _, n := range r.Listeners.Notifiers {
			way := &Way{Name: notifiersName(p.name, n), Kind: p.kind, Unit: "notifications", What: fmt.Sprintf("%d sessions notify one listener, each as fast as it can", n)}
			t := newTrack(way, point)
			received, err := notifyOne(ctx, r, p, t, n, point)
			if err != nil {
				return err
			}
			w := t.sum()
			w.Figures = append(w.Figures, Figure{oneReceived, round(ratio(float64(received), w.Seconds)), "per second"})
			r.result.Ways = append(r.result.Ways, w)
			sent.X, sent.Y = append(sent.X, float64(n)), append(sent.Y, w.Rate)
			got.X, got.Y = append(got.X, float64(n)), append(got.Y, w.Figures[0].Value)
		}
		chart.Lines = append(chart.Lines, sent, got)
	}
	r.chart(chart)
	return nil
}

const oneReceived = "received by the listener"

func notifiersName(post string, n int) string { return fmt.Sprintf("%s: notifiers: %d", post, n) }

// notifyOne measures one number of notifiers, and returns how many notifications the listener has received meanwhile.
func notifyOne(ctx context.Context, r *run, p post, t *track, n int, point time.Duration) (received int, err error) {
	const channel = "weir_lab_one"
	listener, err := openSessions(ctx, p.listen, 1, nil)
	if err != nil {
		return 0, err
	}
	defer listener.close()
	if err := listener.exec(ctx, `LISTEN `+channel); err != nil {
		return 0, err
	}
	notifiers, err := openSessions(ctx, p.notify, n, nil)
	if err != nil {
		return 0, err
	}
	defer notifiers.close()
	err = r.measure(ctx, t, point, nil, nil, func(until context.Context, m *load.Tally) error {
		heard := make(chan error, 1)
		go func() { // ends with until; waited for below
			heard <- answer(until, listener.conns[0], func(context.Context) error { received++; return nil })
		}()
		err := notifiers.work(ctx, until, m, func(ctx context.Context, conn *pgx.Conn, _ int) error {
			_, err := conn.Exec(ctx, p.send, channel, "")
			return err
		})
		return errors.Join(err, <-heard)
	})
	return received, err
}
