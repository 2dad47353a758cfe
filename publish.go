package weir

import (
	"context"
	"fmt"

	"github.com/weir-pg/weir/internal/store"
)

// PublishOptions specify how to publish a message. The zero value, or nil, means the defaults.
type PublishOptions struct {
	// Binary marks the payload as bytes. Without it, the payload must be UTF-8 text without NUL characters.
	Binary bool
	// Keep delivers the message even if the same transaction has already published an identical one.
	Keep bool
}

// Publish publishes a message in a transaction of its own. A channel has 1 to 255 bytes, by convention words separated by dots. A payload
// is limited by the setting message_bytes, 1 MiB by default. A value that is out of bounds is refused with an error that names it (SQLSTATE
// 22023).
func (c *Client) Publish(ctx context.Context, channel string, payload []byte, o *PublishOptions) error {
	return c.store.Direct(ctx, func(q store.Querier) error { return c.PublishTx(ctx, q, channel, payload, o) })
}

// PublishTx publishes a message in your transaction. Subscribers receive it after the commit, and can then read what the transaction wrote;
// after a rollback they never receive it.
func (c *Client) PublishTx(ctx context.Context, tx Tx, channel string, payload []byte, o *PublishOptions) error {
	if o == nil {
		o = &PublishOptions{}
	}
	var err error
	if o.Binary {
		err = store.PublishBytes(ctx, tx, channel, payload, o.Keep)
	} else {
		err = store.Publish(ctx, tx, channel, string(payload), o.Keep)
	}
	if err != nil {
		return fmt.Errorf("weir: publish: %w", explain(err, "weir_publish"))
	}
	return nil
}
