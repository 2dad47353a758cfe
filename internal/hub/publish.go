package hub

import (
	"context"
	"errors"
)

// draft is messages to log in one transaction, and whom to tell.
type draft struct {
	messages []Draft
	done     chan error
}

func (d draft) bytes() (n int) {
	for _, m := range d.messages {
		n += len(m.Payload)
	}
	return n
}

// Publish logs a message and returns when it is committed; all hubs will deliver it. What many publish at once is logged together.
func (h *Hub) Publish(ctx context.Context, d Draft) error { return h.PublishAll(ctx, []Draft{d}) }

// PublishAll is Publish of several messages: all are logged, in this order, or none is.
func (h *Hub) PublishAll(ctx context.Context, messages []Draft) error {
	for _, d := range messages {
		if err := CheckChannel(d.Channel); err != nil {
			return err
		}
	}
	if len(messages) == 0 {
		return nil
	}
	one := draft{messages: messages, done: make(chan error, 1)}
	select {
	case h.drafts <- one:
	case <-h.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-one.done:
		return err
	case <-h.done:
		return ErrClosed // it may be logged all the same
	case <-ctx.Done():
		return ctx.Err() // it may be logged all the same
	}
}

// Pass gives a message to the subscribers of this hub, and of those it is clustered with, without logging it: at once, once at
// most, and without a position.
func (h *Hub) Pass(ctx context.Context, d Draft) error {
	if err := CheckChannel(d.Channel); err != nil {
		return err
	}
	h.pass(d)
	if relay, ok := h.source.(Relay); ok {
		return relay.Relay(ctx, d)
	}
	return nil
}

// publishDrafts logs drafts, as many in one transaction as wait for it, until ctx ends.
func (h *Hub) publishDrafts(ctx context.Context) {
	defer h.publishing.Rest()
	for {
		h.publishing.Rest()
		var batch []draft
		select {
		case d := <-h.drafts:
			batch = append(batch, d)
		case <-ctx.Done():
			return
		}
		for n, bytes := len(batch[0].messages), batch[0].bytes(); n < publishAtMost && bytes < publishBytes; {
			select {
			case d := <-h.drafts:
				batch = append(batch, d)
				n += len(d.messages)
				bytes += d.bytes()
				continue
			default:
			}
			break
		}
		h.publishBatch(ctx, batch)
	}
}

// publishBatch logs a batch; where one of its messages is refused, the others go through all the same.
func (h *Hub) publishBatch(ctx context.Context, batch []draft) {
	h.publishing.Beat()
	var drafts []Draft
	for _, d := range batch {
		for _, m := range d.messages {
			m.Keep = true // those who publish are strangers to each other, and identical messages of theirs are not one
			drafts = append(drafts, m)
		}
	}
	err := h.source.Publish(context.WithoutCancel(ctx), drafts) // a hub that closes finishes what it has begun
	var refused *RefusedError
	if len(batch) > 1 && errors.As(err, &refused) {
		for _, d := range batch {
			h.publishBatch(ctx, []draft{d})
		}
		return
	}
	if err == nil {
		h.stats.published.Add(int64(len(drafts)))
	}
	for _, d := range batch {
		d.done <- err
	}
}

// RefusedError is Source.Publish's answer to a message that the database does not take. Nothing of the batch was logged.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }
