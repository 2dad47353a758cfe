package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/weir-pg/weir/cmd/internal/server"
)

type serveCmd struct {
	ReadDatabase string `placeholder:"URL" env:"WEIR_READ_DATABASE" help:"Streaming standby to read ticks and messages from. Default: the database itself."`
	ListenHTTP   string `name:"listen-http" default:"127.0.0.1:8080" placeholder:"ADDR" help:"Where to serve WebSocket, SSE, health and metrics; \"\" for nowhere (${default})."`
	ListenPG     string `name:"listen-pg" default:"127.0.0.1:6543" placeholder:"ADDR" help:"Where to serve LISTEN in PostgreSQL's wire protocol; \"\" for nowhere (${default})."`

	ListenAdmin string `name:"listen-admin" placeholder:"ADDR" help:"Where operators, and nobody else, get metrics, see who is connected (GET /clients), and end clients (DELETE /clients/ID). The metrics are there alone then. Default: nowhere."`

	PGAuth    string `name:"pg-auth" default:"scram" enum:"scram,users-file,trust" help:"How PostgreSQL clients log in: scram (the database's roles and passwords), users-file, or trust (loopback addresses only)."`
	UsersFile string `type:"existingfile" placeholder:"FILE" help:"For --pg-auth users-file: a user and a password or SCRAM verifier on each line, as in PgBouncer's userlist.txt."`

	TLSCert    string `name:"tls-cert" placeholder:"FILE" help:"Certificate chain in PEM, for both listeners. Read anew when it changes."`
	TLSKey     string `name:"tls-key" placeholder:"FILE" help:"Its key in PEM."`
	RequireTLS bool   `name:"require-tls" help:"Refuse PostgreSQL clients that do not use TLS."`

	DurableNotify bool `negatable:"" default:"true" help:"Log what PostgreSQL clients NOTIFY before it is delivered, by all hubs (default). Without it, it is passed on at once, to this hub's clients and those of its cluster."`

	Web webFlags `embed:""`

	QueueBytes int           `default:"1048576" placeholder:"BYTES" help:"What may be queued for a client that reads slowly, before it is cut off (${default})."`
	Doctor     bool          `help:"Keep looking at the database as weir doctor does, and export what it finds in /metrics. One of several hubs is enough."`
	Drain      time.Duration `default:"5s" help:"How long clients have to leave when the server stops (${default})."`
	Name       string        `placeholder:"NAME" help:"Of this hub, in weir.hubs(). Default: host name and process id."`
	Verbose    bool          `short:"v" help:"Log more."`

	Cluster clusterFlags `embed:""`
}

func (serveCmd) Help() string {
	return `Runs a hub: it reads messages from the database and gives them to whoever subscribes, over PostgreSQL's own protocol (LISTEN), WebSocket and Server-Sent Events. It keeps nothing, so any number of hubs may run on one database, behind any load balancer.

Examples:

    weir serve --anonymous
    weir serve --listen-http :8080 --listen-pg :6543 --tls-cert cert.pem --tls-key key.pem --jwks-file keys.json`
}

func (c *serveCmd) Run(ctx context.Context, s *streams, db *database) error {
	url, _, err := db.find()
	if err != nil {
		return err
	}
	pool, err := db.pool(ctx) // says what is wrong with it
	if err != nil {
		return err
	}
	pool.Close()
	config, err := c.config(url)
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if c.Verbose {
		level = slog.LevelDebug
	}
	config.Logger = newLogger(s.err, level)
	srv, err := server.Start(ctx, config)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("start the hub: %w", err)
	}
	c.announce(config.Logger, srv)
	select {
	case <-ctx.Done():
		err = nil
	case err = <-srv.Failed():
	}
	config.Logger.Info("stopping", "drain", c.Drain)
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Drain+10*time.Second)
	defer cancel()
	if stopErr := srv.Stop(bounded); err == nil {
		err = stopErr
	}
	return err
}

func (c *serveCmd) config(url string) (server.Config, error) {
	config := server.Config{
		Database: url, ReadDatabase: c.ReadDatabase, ListenPG: c.ListenPG, ListenHTTP: c.ListenHTTP, ListenAdmin: c.ListenAdmin,
		PGAuth: server.PGAuth(c.PGAuth), UsersFile: c.UsersFile, TLSCert: c.TLSCert, TLSKey: c.TLSKey, RequireTLS: c.RequireTLS,
		DurableNotify: c.DurableNotify, QueueBytes: c.QueueBytes, Drain: c.Drain, Name: c.Name, Doctor: c.Doctor,
	}
	switch {
	case c.ListenHTTP == "" && c.ListenPG == "":
		return config, usagef("there is nothing to serve: give --listen-http or --listen-pg an address")
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return config, usagef("--tls-cert and --tls-key go together")
	case c.PGAuth == "users-file" && c.UsersFile == "" && c.ListenPG != "":
		return config, usagef("--pg-auth users-file needs --users-file")
	case c.UsersFile != "" && c.PGAuth != "users-file":
		return config, usagef("--users-file needs --pg-auth users-file: with %s the file would not be read", c.PGAuth)
	case c.QueueBytes < 1024:
		return config, usagef("--queue-bytes must be at least 1024, got %d", c.QueueBytes)
	}
	if len(config.Name) > 128 {
		return config, usagef("--name has %d bytes, at most 128 are allowed", len(config.Name))
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

// announce says where the hub listens.
func (c *serveCmd) announce(log *slog.Logger, s *server.Server) {
	attrs := []any{}
	if a := s.PGAddr(); a != nil {
		attrs = append(attrs, "pg", a.String(), "pg_auth", c.PGAuth)
	}
	if a := s.HTTPAddr(); a != nil {
		attrs = append(attrs, "http", a.String(), "http_auth", c.Web.kind())
	}
	if a := s.AdminAddr(); a != nil {
		attrs = append(attrs, "admin", a.String())
	}
	log.Info("the hub serves", attrs...)
}
