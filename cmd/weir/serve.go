package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/weir-pg/weir/cmd/internal/server"
)

type serveCmd struct {
	List string `type:"existingfile" placeholder:"FILE" help:"Serve the databases of a list, a connection string in each line, instead of --database. It is read again every 15 seconds. Clients name one of them: docs/many-databases.md."`

	ReadDatabase string `placeholder:"URL" env:"WEIR_READ_DATABASE" help:"Streaming standby from which to read ticks and messages. Default: the primary."`
	ListenHTTP   string `name:"listen-http" default:"127.0.0.1:8080" empty:"ok" placeholder:"ADDR" help:"Address on which to serve WebSocket, SSE, health and metrics; \"\" disables it (${default})."`
	ListenPG     string `name:"listen-pg" default:"127.0.0.1:6543" empty:"ok" placeholder:"ADDR" help:"Address on which to serve LISTEN over PostgreSQL's wire protocol; \"\" disables it (${default})."`

	ListenAdmin    string `name:"listen-admin" placeholder:"ADDR" help:"Separate address for operators: metrics, which are then served only here, connected clients (GET /clients), and ending a client (DELETE /clients/ID). It has no authentication without --admin-token-file. Default: none."`
	AdminTokenFile string `type:"existingfile" placeholder:"FILE" help:"With --listen-admin: tokens of operators, one per line, of 16 characters or more. Then clients are listed and ended only for those that present one, and users can be disconnected from all hubs and revoked there (POST /users/disconnect, /users/revoke). Read for each request."`

	PGAuth    string `name:"pg-auth" default:"scram" enum:"scram,users-file,trust" help:"How PostgreSQL clients authenticate: scram (the database's roles and passwords), users-file, or trust (loopback addresses only)."`
	UsersFile string `type:"existingfile" placeholder:"FILE" help:"For --pg-auth users-file: one user and password or SCRAM verifier per line, as in PgBouncer's userlist.txt."`

	TLSCert    string `name:"tls-cert" placeholder:"FILE" help:"Certificate chain in PEM, for all listeners but --listen-admin. Reloaded on change."`
	TLSKey     string `name:"tls-key" placeholder:"FILE" help:"The certificate's key in PEM."`
	RequireTLS bool   `name:"require-tls" help:"Refuse PostgreSQL clients that do not use TLS."`

	DurableNotify bool `negatable:"" default:"true" help:"Log the notifications of PostgreSQL clients, and deliver them through all hubs (default). Otherwise they are delivered immediately, without being logged, to clients of this hub and of its cluster only."`

	ChannelsFile string `type:"existingfile" placeholder:"FILE" help:"Policies by channel: who may subscribe and publish, how large, how often, with how much history (docs/channel-policies.md). Read again when it changes."`

	Web webFlags `embed:""`
	UI  uiFlags  `embed:""`

	Jobs          bool          `help:"Let HTTP clients enqueue jobs, look them up, cancel them and work them. The database's user needs the role weir_work for it."`
	JobsLease     time.Duration `default:"30s" placeholder:"DURATION" help:"How long the hub waits to hear of a job that an HTTP client works, before others get it, 1s to 5m (${default})."`
	PushFile      string        `name:"push-file" type:"existingfile" placeholder:"FILE" help:"With --jobs: HTTP endpoints to which jobs are pushed (see docs/push.md). Read every second."`
	StatementRate float64       `default:"20000" placeholder:"N" help:"Statements per second of one PostgreSQL client, and ten times as many at once, beyond which they wait; 0: no limit (${default})."`

	MaxSubscribers int `default:"200000" placeholder:"N" help:"Maximum number of subscribers that one channel or pattern may have at this hub, over all protocols; 0: no limit. The channels file may allow fewer (${default})."`

	QueueBytes int           `default:"1048576" placeholder:"BYTES" help:"Limit of the queue of a client that reads slowly, beyond which it is disconnected (${default})."`
	Doctor     bool          `help:"Run weir doctor continuously, and export its findings in /metrics. One hub per database is enough."`
	Drain      time.Duration `default:"5s" help:"How long clients have to disconnect when the server stops (${default})."`
	Name       string        `placeholder:"NAME" help:"This hub's name in weir.hubs(). Default: host name and process id."`
	Verbose    bool          `short:"v" help:"Log more."`

	Cluster clusterFlags `embed:""`
}

func (serveCmd) Help() string {
	return `A hub reads messages from the database and delivers them to subscribers over PostgreSQL's own protocol (LISTEN), WebSocket and Server-Sent Events. It stores nothing, so any number of hubs can serve one database, behind any load balancer.

Examples:

    weir serve --anonymous
    weir serve --list databases.txt --jwks-file keys.json
    weir ui-password ada --role admin >users.txt && weir serve --ui-users users.txt     # then open http://127.0.0.1:8080/ui/
    weir serve --listen-http :8080 --listen-pg :6543 --tls-cert cert.pem --tls-key key.pem --jwks-file keys.json`
}

func (c *serveCmd) Run(ctx context.Context, s *streams, db *database) error {
	if err := c.checkList(); err != nil {
		return err
	}
	level := slog.LevelInfo
	if c.Verbose {
		level = slog.LevelDebug
	}
	log := newLogger(s.err, level)
	start := c.one
	if c.List != "" {
		start = func(ctx context.Context, config server.Config, log *slog.Logger, _ *database) (hubs, error) {
			return c.many(ctx, config, log)
		}
	}
	config, err := c.config(log)
	if err != nil {
		return err
	}
	srv, err := start(ctx, config, log, db)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	c.announce(log, srv)
	select {
	case <-ctx.Done():
		err = nil
	case err = <-srv.Failed():
	}
	log.Info("stopping", "drain", c.Drain)
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Drain+10*time.Second)
	defer cancel()
	if stopErr := srv.Stop(bounded); err == nil {
		err = stopErr
	}
	return err
}

// one serves the database of --database.
func (c *serveCmd) one(ctx context.Context, config server.Config, log *slog.Logger, db *database) (hubs, error) {
	url, _, err := db.find()
	if err != nil {
		return nil, err
	}
	pool, err := db.pool(ctx) // reports connection errors
	if err != nil {
		return nil, err
	}
	pool.Close()
	config.Database = url
	if config.UI, err = c.UI.config(ctx, url, nil, config.Web.ClientAddress, log); err != nil {
		return nil, err
	}
	srv, err := server.Start(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("start the hub: %w", err)
	}
	return srv, nil
}

func (c *serveCmd) config(log *slog.Logger) (server.Config, error) {
	config := server.Config{
		Logger: log, ReadDatabase: c.ReadDatabase, ListenPG: c.ListenPG, ListenHTTP: c.ListenHTTP, ListenAdmin: c.ListenAdmin,
		PGAuth: server.PGAuth(c.PGAuth), UsersFile: c.UsersFile, TLSCert: c.TLSCert, TLSKey: c.TLSKey, RequireTLS: c.RequireTLS,
		DurableNotify: c.DurableNotify, QueueBytes: c.QueueBytes, MaxSubscribers: c.MaxSubscribers, AdminTokenFile: c.AdminTokenFile, Drain: c.Drain, Name: c.Name, Doctor: c.Doctor, ChannelsFile: c.ChannelsFile, StatementRate: c.StatementRate,
		Jobs: c.Jobs, JobsLease: c.JobsLease, PushFile: c.PushFile,
	}
	switch {
	case c.UI.kind() != "" && c.UI.UIListen == "" && c.ListenHTTP == "":
		return config, usagef("there is no address to serve the web UI at: give --ui-listen or --listen-http one")
	case c.PushFile != "" && !c.Jobs:
		return config, usagef("--push-file requires --jobs")
	case c.Jobs && c.ListenHTTP == "":
		return config, usagef("--jobs serves jobs over HTTP: give --listen-http an address")
	case c.JobsLease < time.Second || c.JobsLease > 5*time.Minute:
		return config, usagef("--jobs-lease must be 1s to 5m, got %s", c.JobsLease)
	case c.ListenHTTP == "" && c.ListenPG == "":
		return config, usagef("nothing to serve: give --listen-http or --listen-pg an address")
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return config, usagef("--tls-cert and --tls-key must be given together")
	case c.PGAuth == "users-file" && c.UsersFile == "" && c.ListenPG != "":
		return config, usagef("--pg-auth users-file requires --users-file")
	case c.UsersFile != "" && c.PGAuth != "users-file":
		return config, usagef("--users-file requires --pg-auth users-file: with %s the file would not be read", c.PGAuth)
	case c.StatementRate < 0:
		return config, usagef("--statement-rate must not be negative, got %g: 0 is no limit", c.StatementRate)
	case c.AdminTokenFile != "" && c.ListenAdmin == "":
		return config, usagef("--admin-token-file requires --listen-admin")
	case c.MaxSubscribers < 0:
		return config, usagef("--max-subscribers must not be negative, got %d: 0 is no limit", c.MaxSubscribers)
	case c.QueueBytes < 1024:
		return config, usagef("--queue-bytes must be at least 1024, got %d", c.QueueBytes)
	}
	if len(config.Name) > 128 {
		return config, usagef("--name must be at most 128 bytes, got %d", len(config.Name))
	}
	if config.Name == "" {
		host, _ := os.Hostname()
		config.Name = fmt.Sprintf("%.100s:%d", host, os.Getpid())
	}
	var err error
	if config.Web, err = c.Web.config(); err != nil {
		return config, err
	}
	config.Cluster, err = c.Cluster.config()
	return config, err
}

// served are the addresses at which hubs serve.
type served interface {
	PGAddr() net.Addr
	HTTPAddr() net.Addr
	AdminAddr() net.Addr
	UIURL() string
	UIExposed() bool
}

// announce logs where the hub listens.
func (c *serveCmd) announce(log *slog.Logger, s served) {
	attrs := []any{}
	if c.List != "" {
		attrs = append(attrs, "list", c.List)
	}
	if a := s.PGAddr(); a != nil {
		attrs = append(attrs, "pg", a.String(), "pg_auth", c.PGAuth)
	}
	if a := s.HTTPAddr(); a != nil {
		attrs = append(attrs, "http", a.String(), "http_auth", c.Web.kind(), "jobs", c.Jobs)
	}
	if a := s.AdminAddr(); a != nil {
		attrs = append(attrs, "admin", a.String())
	}
	if url := s.UIURL(); url != "" {
		attrs = append(attrs, "ui", url, "ui_auth", c.UI.kind())
	}
	log.Info("the hub serves", attrs...)
	if c.UI.kind() == "passwords" && s.UIExposed() {
		log.Warn("passwords of the web UI may travel unencrypted: give --tls-cert and --tls-key, or let browsers reach it only through a proxy with TLS", "ui", s.UIURL())
	}
}
