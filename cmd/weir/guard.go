package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-pg/weir/cmd/internal/guard"
	"github.com/weir-pg/weir/cmd/internal/horizon"
)

type guardCmd struct {
	List        string   `placeholder:"FILE" help:"Guard each database of a list, a connection string in each line; the file is read again every 15 seconds."`
	Standby     []string `sep:"none" placeholder:"URL" help:"Standby to watch as well. May be repeated."`
	Policy      string   `type:"existingfile" placeholder:"FILE" help:"What to protect, and which sessions to end when."`
	PrintPolicy bool     `help:"Print a policy file with all settings, and exit."`
	Act         bool     `help:"Cancel and terminate sessions; without it, only report what would be done."`
	Once        bool     `help:"Check once, print the result, and exit."`
	ListenHTTP  string   `name:"listen-http" placeholder:"ADDRESS" help:"Serve Prometheus /metrics, and /readyz and /healthz for probes, for example on :9187 (loopback)."`
	jsonFlag
}

func (guardCmd) Help() string {
	return `Watches what holds back the vacuum horizon, on the primary and its standbys. If that harms protected tables or lasts too long, it reports, cancels or terminates the sessions responsible, in this order and as far as the policy allows. By default it is a dry run. Its role needs pg_monitor, and with --act also pg_signal_backend.

With --once it prints tables, or one JSON value with --json. Otherwise it logs to standard error until Ctrl-C, as lines of JSON with --json.

Example:

    weir guard --once --standby postgres://replica/shop
    weir guard --print-policy >guard.toml
    weir guard --act --policy guard.toml --listen-http :9187
    weir guard --act --policy guard.toml --list databases.txt`
}

func (c *guardCmd) Run(ctx context.Context, s *streams, db *database) error {
	if c.PrintPolicy {
		_, err := fmt.Fprint(s.out, guard.Example)
		return err
	}
	if c.List != "" && len(c.Standby) > 0 {
		return usagef("--standby is about one primary: guard that with --database, without --list")
	}
	config := guard.Config{Policy: guard.DefaultPolicy(), Act: c.Act, Logger: c.logger(s)}
	if c.Policy != "" {
		text, err := os.ReadFile(c.Policy)
		if err != nil {
			return err
		}
		if config.Policy, err = guard.ParsePolicy(string(text)); err != nil {
			return usagef("policy %s: %w", c.Policy, err)
		}
	}
	if c.List != "" {
		c.warn(s, config.Logger, config.Policy.Shadowed()) // what one of its servers lacks, another may have
		return c.guardList(ctx, s, config)
	}
	url, dev, err := db.find()
	if err != nil {
		return err
	}
	var closePool func()
	if config.Primary, closePool, err = guarded(ctx, url, dev); err != nil {
		return err
	}
	defer closePool()
	if dev {
		fmt.Fprintln(s.err, "weir: using the database of weir dev in "+devURLPath)
	}
	for _, url := range c.Standby {
		standby, closePool, err := guarded(ctx, url, false)
		if err != nil {
			return err
		}
		defer closePool()
		config.Standbys = append(config.Standbys, standby)
	}
	registry := prometheus.NewRegistry()
	config.Registerer = registry
	g, err := guard.New(config)
	if err != nil {
		return err
	}
	if err := g.Check(ctx); err != nil {
		return err
	}
	unreached, err := g.Unreached(ctx)
	if err != nil {
		return err
	}
	c.warn(s, config.Logger, unreached)
	if c.ListenHTTP != "" {
		mux := probes(g.Stuck, g.Ready)
		mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		stop, err := serveHTTP("--listen-http", loopback(c.ListenHTTP), mux, "metrics and probes", "/metrics", config.Logger)
		if err != nil {
			return err
		}
		defer stop()
	}
	if c.Once {
		found, err := g.Once(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return printJSON(s.out, found)
		}
		return printFindings(s, found)
	}
	mode := "dry run: pass --act to end sessions"
	if c.Act {
		mode = "sessions will be ended"
	}
	config.Logger.Info("guarding", "primary", config.Primary.Name, "standbys", len(config.Standbys), "mode", mode, "interval", config.Policy.Interval)
	return g.Run(ctx)
}

// warn says which rules of the policy never apply.
func (c *guardCmd) warn(s *streams, log *slog.Logger, rules []guard.Unreached) {
	for _, u := range rules {
		if c.Once {
			fmt.Fprintf(s.err, "weir: policy %s: %s\n", c.Policy, printable(u.String()))
			continue
		}
		log.Warn("a rule of the policy does not apply as it is meant to", "rule", u.Rule, "line", u.Line, "why", u.Why)
	}
}

// logger discards logs if the findings are printed.
func (c *guardCmd) logger(s *streams) *slog.Logger {
	switch {
	case c.Once:
		return slog.New(slog.DiscardHandler)
	case c.JSON:
		return slog.New(slog.NewJSONHandler(s.err, nil))
	}
	return newLogger(s.err, slog.LevelInfo)
}

// guarded connects to a server under the guard's application name, so that the guard does not judge itself.
func guarded(ctx context.Context, url string, dev bool) (guard.Server, func(), error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return guard.Server{}, nil, notValid(err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = guard.ApplicationName
	horizon.Unconverted(config.ConnConfig)
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return guard.Server{}, nil, fmt.Errorf("open a pool of connections: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := pool.Ping(bounded); err != nil {
		pool.Close()
		if ctx.Err() != nil {
			return guard.Server{}, nil, ctx.Err()
		}
		return guard.Server{}, nil, unreachable(config.ConnConfig, dev, err)
	}
	name := net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port)))
	return guard.Server{Name: name, DB: pool}, pool.Close, nil
}
