package main

import (
	"context"
	"fmt"
	"time"
)

type clientsCmd struct {
	Disconnect clientsDisconnectCmd `cmd:"" help:"End all connections of a user at all hubs."`
	Revoke     clientsRevokeCmd     `cmd:"" help:"Refuse the tokens issued to a user until now, and end the user's connections."`
}

func (clientsCmd) Help() string {
	return `A user is the subject (sub) of a token, the user that an authorization callback names, or a role of the wire protocol. To see who is connected, look at the web UI, or ask a hub: GET /clients on its --listen-admin.

Example:

    weir clients disconnect ada`
}

type clientsDisconnectCmd struct {
	User string `arg:"" help:"User."`
}

func (clientsDisconnectCmd) Help() string {
	return `The user may connect again, if allowed.

Example:

    weir clients disconnect ada`
}

func (c *clientsDisconnectCmd) Run(ctx context.Context, s *streams, db *database) error {
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	if err := client.Disconnect(ctx, c.User); err != nil {
		return err
	}
	fmt.Fprintf(s.err, "weir: %s is disconnected from all hubs\n", printable(c.User))
	return nil
}

type clientsRevokeCmd struct {
	User string        `arg:"" help:"User."`
	For  time.Duration `default:"720h" placeholder:"DURATION" help:"How long the tokens are refused: until all that were issued before now have expired (30 days)."`
}

func (clientsRevokeCmd) Help() string {
	return `Tokens that are issued from now on are accepted: first make sure that the user gets none, or only one with other rights.

Example:

    weir clients revoke ada --for 24h`
}

func (c *clientsRevokeCmd) Run(ctx context.Context, s *streams, db *database) error {
	if c.For <= 0 {
		return usagef("--for must be positive, got %s", c.For)
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	before, err := client.Revoke(ctx, c.User, c.For)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.err, "weir: tokens issued to %s before %s are refused\n", printable(c.User), before.Format(time.RFC3339))
	return nil
}
