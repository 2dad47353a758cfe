package weir

import (
	"context"
	"fmt"

	"github.com/weir-pg/weir/internal/store"
)

// PublishOptions say how a message is published. The zero value, or nil, means the defaults.
type PublishOptions struct {
	// Binary says that the payload is not text. Text must be UTF-8 without NUL characters.
	Binary bool
	// Keep delivers the message even where the same transaction has published an identical one.
	Keep bool
}

// Publish publishes a message in a transaction of its own. Channel: 1 to 255 bytes, by convention words with dots between them;
// payload: up to the setting message_bytes, 1 MiB by default. What is out of bounds is refused with an error that has the value (SQLSTATE 22023).
func (c *Client) Publish(ctx context.Context, channel string, payload []byte, o *PublishOptions) error {
	return c.store.Direct(ctx, func(q store.Querier) error { return c.PublishTx(ctx, q, channel, payload, o) })
}

// PublishTx publishes a message with a transaction of yours: subscribers get it after the commit, and can then read what the
// transaction wrote; after a rollback they never get it.
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
