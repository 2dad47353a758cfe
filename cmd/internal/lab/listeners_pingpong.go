package lab

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// runPingPong measures round trips for each number of idle listeners.
func runPingPong(ctx context.Context, r *run, posts []post, point time.Duration) error {
	x := Axis{Label: "idle listeners", Steps: true}
	trips := Chart{Title: "Round trips against idle listeners", Kind: Lines, X: x, Y: Axis{Label: "round trips per second", Log: true}}
	slow := Chart{Title: "Latency of a round trip against idle listeners", Kind: Lines, X: x, Y: Axis{Label: "ms, median", Log: true}}
	var lasts []*track
	sampler, _, err := r.watchers(ctx)
	if err != nil {
		return err
	}
	for _, p := range posts {
		tracks, err := pingPongBesideIdle(ctx, r, p, point, sampler)
		if err != nil {
			return err
		}
		rates, medians := Line{Name: p.name, Kind: p.kind}, Line{Name: p.name, Kind: p.kind}
		for i, t := range tracks {
			w := t.way
			n := float64(r.Listeners.Idle[i])
			rates.X, rates.Y = append(rates.X, n), append(rates.Y, w.Rate)
			if w.Latency != nil {
				medians.X, medians.Y = append(medians.X, n), append(medians.Y, w.Latency.P50)
			}
		}
		trips.Lines, slow.Lines = append(trips.Lines, rates), append(slow.Lines, medians)
		lasts = append(lasts, tracks[len(tracks)-1])
	}
	r.chart(trips)
	r.chart(slow)
	for _, t := range lasts {
		r.chartWaits(t, Chart{Title: "What sessions wait for: " + t.way.Name})
	}
	return nil
}

// pingPongBesideIdle plays next to a growing number of idle listeners.
func pingPongBesideIdle(ctx context.Context, r *run, p post, point time.Duration, s sampler) ([]*track, error) {
	idle := &sessions{}
	defer idle.close()
	var tracks []*track
	for i, n := range r.Listeners.Idle {
		if err := grow(ctx, idle, p.listen, n); err != nil {
			return nil, err
		}
		way := &Way{Name: pingPongName(p.name, n), Kind: p.kind, Unit: "round trips", What: fmt.Sprintf("ping-pong next to %d idle listeners", n)}
		if i == 0 && p.kind == Collapse { // the baseline of the others
			way.Kind = Baseline
		}
		t := newTrack(way, point)
		err := playPingPong(ctx, p, func(play func(until context.Context, m *load.Tally) error) error {
			return r.measure(ctx, t, point, s, nil, play)
		})
		if err != nil {
			return nil, err
		}
		r.result.Ways = append(r.result.Ways, t.sum())
		tracks = append(tracks, t)
	}
	return tracks, nil
}

func pingPongName(post string, idle int) string {
	return fmt.Sprintf("%s, %d idle", post, idle)
}

// grow adds idle listeners, each on its own channel, until there are n. Their connections need not be read, because nothing is ever sent to
// them.
func grow(ctx context.Context, idle *sessions, url string, n int) error {
	from := len(idle.conns)
	if err := idle.add(ctx, url, n); err != nil {
		return err
	}
	return eachOf(len(idle.conns)-from, 8, func(i int) error {
		_, err := idle.conns[from+i].Exec(ctx, `LISTEN `+idleChannel(from+i))
		return err
	})
}

func idleChannel(i int) string { return "weir_lab_idle_" + strconv.Itoa(i) }

// playPingPong opens two sessions that listen and two that notify, and calls during with the game.
func playPingPong(ctx context.Context, p post, during func(play func(until context.Context, m *load.Tally) error) error) error {
	listeners, err := openSessions(ctx, p.listen, 2, nil)
	if err != nil {
		return err
	}
	defer listeners.close()
	notifiers := listeners
	if p.notify != p.listen {
		if notifiers, err = openSessions(ctx, p.notify, 2, nil); err != nil {
			return err
		}
		defer notifiers.close()
	}
	names := [2]string{"weir_lab_ping", "weir_lab_pong"}
	for i, name := range names {
		if _, err := listeners.conns[i].Exec(ctx, `LISTEN `+name); err != nil {
			return err
		}
	}
	return during(func(until context.Context, m *load.Tally) error {
		// One player answers each ping with pong. It ends with the game, and is waited for.
		playing, stop := context.WithCancel(ctx)
		defer stop()
		answered := make(chan error, 1)
		go func() {
			for {
				if _, err := listeners.conns[0].WaitForNotification(playing); err != nil {
					answered <- err
					return
				}
				if _, err := notifiers.conns[0].Exec(ctx, p.send, names[1], "pong"); err != nil {
					answered <- err
					return
				}
			}
		}()
		err := func() error {
			for until.Err() == nil {
				begun := time.Now()
				if _, err := notifiers.conns[1].Exec(ctx, p.send, names[0], "ping"); err != nil {
					return err
				}
				// Without a timeout, the game would wait forever for a lost message.
				patient, cancel := context.WithTimeout(ctx, 30*time.Second)
				_, err := listeners.conns[1].WaitForNotification(patient)
				cancel()
				if err != nil {
					return fmt.Errorf("wait for the answer: %w", err)
				}
				m.Did(1, time.Since(begun))
			}
			return nil
		}()
		stop()
		other := <-answered
		if ctx.Err() == nil && !errors.Is(other, context.Canceled) {
			err = errors.Join(other, err) // the first is the cause of the second
		}
		return err
	})
}
