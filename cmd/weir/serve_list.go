package main

import (
	"context"
	"log/slog"

	"github.com/weir-pg/weir/cmd/internal/server"
)

// hubs are those of a process: a server.Server or a server.Many.
type hubs interface {
	served
	Failed() <-chan error
	Stop(context.Context) error
}

// many serves the databases of the list.
func (c *serveCmd) many(ctx context.Context, config server.Config, log *slog.Logger) (hubs, error) {
	list := func() ([]string, error) { return readList(nil, c.List) }
	if _, err := list(); err != nil {
		return nil, err
	}
	var err error
	if config.UI, err = c.UI.config(ctx, "", list, config.Web.ClientAddress, log); err != nil {
		return nil, err
	}
	m, err := server.StartMany(ctx, server.ManyConfig{Config: config, List: list})
	if err != nil {
		return nil, err // not a *server.Many that is nil
	}
	return m, nil
}

// checkList refuses flags that belong to one database.
func (c *serveCmd) checkList() error {
	switch {
	case c.List == "":
		return nil
	case c.List == "-":
		return usagef("--list - can be read only once, and the list is read again and again: write it to a file")
	case c.ReadDatabase != "":
		return usagef("--read-database is a standby of one database: serve that by a hub of its own, not by --list")
	case c.PGAuth == "users-file":
		return usagef("--pg-auth users-file would let its users into all databases of --list: use scram, so that each database decides for itself")
	case c.PushFile != "":
		return usagef("--push-file has the endpoints of one database: serve that by a hub of its own, not by --list")
	case c.Doctor:
		return usagef("--doctor examines one database: run weir doctor --list %s --listen-metrics ADDR beside this", c.List)
	case c.Cluster.Cluster == "embedded":
		return usagef("--cluster embedded is for the hubs of one database: with --list, give the URL of a NATS server")
	case c.UI.UIList != "" || len(c.UI.UIDatabase) > 0:
		return usagef("--ui-list and --ui-database are not needed with --list, whose databases the web UI shows")
	}
	return nil
}
