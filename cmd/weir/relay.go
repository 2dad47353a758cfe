package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-pg/weir/cmd/internal/relay"
	"github.com/weir-pg/weir/internal/store"
)

type relayCmd struct {
	Start  relayRunCmd    `cmd:"" name:"run" default:"withargs" help:"Run the relays of a file."`
	List   relayListCmd   `cmd:"" help:"List relays, and how far they have come."`
	Replay relayReplayCmd `cmd:"" help:"Pass messages on again, from a time or a position."`
	Forget relayForgetCmd `cmd:"" help:"Forget a relay that no longer runs: messages are not kept for it any more."`
}

func (relayCmd) Help() string {
	return `A relay reads the log of messages as a hub does, and passes messages on, each once and in order. Run it in several processes: one passes on, and the others stand by.

Example:

    weir relay --print-file >relay.toml
    weir relay --file relay.toml`
}

type relayRunCmd struct {
	File       string `type:"existingfile" placeholder:"FILE" help:"What is passed on, and where to."`
	PrintFile  bool   `help:"Print a file with all settings, and exit."`
	ListenHTTP string `name:"listen-http" placeholder:"ADDRESS" help:"Serve Prometheus /metrics, for example on :9188 (loopback)."`
}

func (relayRunCmd) Help() string {
	return `Runs until Ctrl-C, and waits out outages of the database and of the targets. Its user needs the role weir_hub, and weir_enqueue for dead letters.

Example:

    weir relay run --file relay.toml --listen-http :9188`
}

func (c *relayRunCmd) Run(ctx context.Context, s *streams, db *database) error {
	switch {
	case c.PrintFile:
		_, err := fmt.Fprint(s.out, relay.Example)
		return err
	case c.File == "":
		return usagef("no file given: pass --file; --print-file prints one with all settings")
	}
	log := newLogger(s.err, slog.LevelInfo)
	registry := prometheus.NewRegistry()
	relays, err := relay.Open(ctx, relay.Config{Path: c.File, Log: log, Registerer: registry})
	if err != nil {
		return usagef("%s: %w", c.File, err)
	}
	defer relays.Close()
	pool, err := db.poolOf(ctx, relay.Connections*relays.Len())
	if err != nil {
		return err
	}
	defer pool.Close()
	if c.ListenHTTP != "" {
		stop, err := serveHTTP("--listen-http", loopback(c.ListenHTTP), promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), "metrics", "/metrics", log)
		if err != nil {
			return err
		}
		defer stop()
	}
	return relays.Run(ctx, pool)
}

type relayReplayCmd struct {
	Name    string `arg:"" help:"The relay in the file."`
	File    string `required:"" type:"existingfile" placeholder:"FILE" help:"The file with the relay."`
	As      string `required:"" placeholder:"NAME" help:"The name of this replay: called again with it, it goes on where it was."`
	Since   string `required:"" placeholder:"WHEN" help:"Where it begins: oldest, how long ago as in 2h, a time as in 2026-11-26T08:00:00Z, or a position."`
	Subject string `placeholder:"TEMPLATE" help:"Another subject than that of the routes, as in replay.{channel}."`
}

func (relayReplayCmd) Help() string {
	return `Passes on what the relay would have, up to where the log ends now, and ends. The relay itself may run in the meantime. Targets get the messages once more: they know the replay by its own name.

A time finds the first tick that was cut after it: a message that was committed later is in a later tick, whatever its publisher's clock said. What is not kept any more is a gap, which is logged, and the command fails with exit code 1 when it has passed on the rest. A position that is not in the log of the database is exit code 2.

Example:

    weir relay replay orders --file relay.toml --since 2h --as orders-again`
}

func (c *relayReplayCmd) Run(ctx context.Context, s *streams, db *database) error {
	progress := newProgress(s.err)
	replay, err := relay.OpenReplay(ctx, relay.ReplayConfig{
		Path: c.File, Relay: c.Name, As: c.As, Since: c.Since, Subject: c.Subject, Log: newLogger(progress, slog.LevelInfo),
		Made: func(r relay.Replayed) { progress.show("%s passed on", plural(r.Sent, "message")) },
	})
	if err != nil {
		return usagef("%w", err)
	}
	defer replay.Close()
	pool, err := db.poolOf(ctx, relay.Connections)
	if err != nil {
		return err
	}
	defer pool.Close()
	done, err := replay.Run(ctx, pool)
	progress.done()
	if done.Again {
		fmt.Fprintf(s.err, "weir: %s has been at %s already, and has gone on from there: to begin anew, use another name\n", c.As, done.From)
	}
	switch {
	case errors.Is(err, relay.ErrSince):
		return usagef("--since: %w", err)
	case err != nil:
		return err
	}
	fmt.Fprintf(s.out, "%s passed on up to %s, %s\n", plural(done.Sent, "message"), done.To, plural(done.Dead, "dead letter"))
	if done.Gaps > 0 {
		return fmt.Errorf("messages may be missing at %s, which the log names: they are not kept any more", plural(done.Gaps, "place"))
	}
	return nil
}

type relayListCmd struct{ jsonFlag }

func (relayListCmd) Help() string {
	return `A relay that has ended, as a replay does, is not listed. POSITION is in the log that the relay reads. BEHIND is for how long the oldest message has waited that it may still have to pass on; what is recorded is up to ten seconds old.

Example:

    weir relay list --json`
}

type relayLine struct {
	Name          string     `json:"name"`
	Position      string     `json:"position"`
	ReachedAt     time.Time  `json:"reached_at"`
	OldestWaiting *time.Time `json:"oldest_waiting,omitempty"`
}

func (c *relayListCmd) Run(ctx context.Context, s *streams, db *database) error {
	pool, err := db.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	all, err := store.New(pool, 0).Relays(ctx)
	if err != nil {
		return store.Explain(err, "weir_operate")
	}
	if c.JSON {
		lines := make([]relayLine, len(all))
		for i, r := range all {
			lines[i] = relayLine{r.Name, r.Position, r.ReachedAt, r.OldestWaiting}
		}
		return printJSON(s.out, lines)
	}
	if len(all) == 0 {
		fmt.Fprintln(s.err, "weir: no relays")
		return nil
	}
	var rows [][]string
	for _, r := range all {
		behind := "-"
		if r.OldestWaiting != nil {
			behind = time.Since(*r.OldestWaiting).Round(time.Second).String()
		}
		rows = append(rows, []string{r.Name, r.Position, ago(&r.ReachedAt), behind})
	}
	return table(s.out, []string{"NAME", "POSITION", "RECORDED", "BEHIND"}, rows)
}

type relayForgetCmd struct {
	Name string `arg:"" help:"The relay's name."`
}

func (relayForgetCmd) Help() string {
	return `A relay of the same name that runs later begins as a new one, unless its target knows better.

Example:

    weir relay forget orders`
}

func (c *relayForgetCmd) Run(ctx context.Context, s *streams, db *database) error {
	pool, err := db.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	known, err := store.New(pool, 0).ForgetRelay(ctx, c.Name)
	if err != nil {
		return store.Explain(err, "weir_operate")
	}
	if !known {
		return notFoundf("relay %q is not known", c.Name)
	}
	fmt.Fprintf(s.out, "relay %s is forgotten\n", c.Name)
	return nil
}
