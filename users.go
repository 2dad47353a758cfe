package weir

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// defaultRevocation is how long tokens are refused by default, as in weir.revoke.
const defaultRevocation = 30 * 24 * time.Hour

// Disconnect ends all connections of a user at all hubs, whatever the protocol: the subject of a token, the user that an authorization callback names, or a role. The user
// may connect again, if allowed.
func (c *Client) Disconnect(ctx context.Context, user string) error {
	return c.store.Direct(ctx, func(q store.Querier) error { return c.DisconnectTx(ctx, q, user) })
}

// DisconnectTx is Disconnect after your transaction's commit, and not at all after a rollback.
func (c *Client) DisconnectTx(ctx context.Context, tx Tx, user string) error {
	return wrap("disconnect a user", store.Disconnect(ctx, tx, user), "weir_operate")
}

// Revoke disconnects a user, and has all hubs refuse the tokens that were issued to the user before the time that it returns, and those that don't say when (iat). Hubs
// forget it after lasts, up to 400 days: by then these tokens must have expired. 0: 30 days.
func (c *Client) Revoke(ctx context.Context, user string, lasts time.Duration) (before time.Time, err error) {
	err = c.store.Direct(ctx, func(q store.Querier) error {
		before, err = c.RevokeTx(ctx, q, user, lasts)
		return err
	})
	return before, err
}

// RevokeTx is Revoke after your transaction's commit, and not at all after a rollback.
func (c *Client) RevokeTx(ctx context.Context, tx Tx, user string, lasts time.Duration) (before time.Time, err error) {
	if lasts == 0 {
		lasts = defaultRevocation
	}
	before, err = store.Revoke(ctx, tx, user, lasts)
	return before, wrap("revoke a user's tokens", err, "weir_operate")
}
