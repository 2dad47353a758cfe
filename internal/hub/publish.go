package hub

import (
	"context"
	"errors"
)

// draft is a set of messages to log in one transaction, and where to report the result.
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

// Publish logs a message and returns once it is committed; all hubs will deliver it. Concurrent calls share a transaction.
func (h *Hub) Publish(ctx context.Context, d Draft) error { return h.PublishAll(ctx, []Draft{d}) }

// PublishAll publishes several messages: either all are logged, in this order, or none.
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
		return ErrClosed // it may be logged nevertheless
	case <-ctx.Done():
		return ctx.Err() // it may be logged nevertheless
	}
}

// Pass delivers a message to the subscribers of this hub and of the hubs clustered with it, without logging it: immediately, at
// most once, and without a position.
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

// Local delivers a message to the subscribers of this hub alone: immediately, at most once, and without a position.
func (h *Hub) Local(d Draft) { h.pass(d) }

// Wanted reports whether a channel has subscribers at this hub by its name; patterns don't count.
func (h *Hub) Wanted(channel string) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.index.channels[Channel(channel)] != nil
}

// publishDrafts logs drafts until ctx ends, all that wait in one transaction.
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

// publishBatch logs a batch. If one of its drafts is refused, it logs the others separately.
func (h *Hub) publishBatch(ctx context.Context, batch []draft) {
	h.publishing.Beat()
	var drafts []Draft
	for _, d := range batch {
		for _, m := range d.messages {
			m.Keep = true // the drafts are from different clients, so identical messages are not duplicates
			drafts = append(drafts, m)
		}
	}
	err := h.source.Publish(context.WithoutCancel(ctx), drafts) // a closing hub finishes the batch
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

// RefusedError is returned by Source.Publish if the database refuses a message. Nothing of the batch was logged.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }
