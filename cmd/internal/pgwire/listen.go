package pgwire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"unicode/utf8"

	"github.com/weir-pg/weir/internal/hub"
)

// listen subscribes to channels.
func (c *conn) listen(ctx context.Context, channels []string) error {
	if len(channels) == 0 {
		return nil
	}
	if limit := c.server.config.MaxChannels; len(c.listens)+len(channels) > limit {
		return errorf(overLimit, "too many channels: a connection may listen on at most %d here", limit)
	}
	if c.subscriber == nil {
		s, err := c.server.config.Hub.Join(c, hub.Options{MaxBytes: c.server.config.MaxBytes})
		if err != nil {
			return c.hubError(err)
		}
		s.Pause() // until ready
		c.subscriber = s
	}
	filters := make([]hub.Filter, len(channels))
	c.out.Lock()
	if c.listens == nil {
		c.listens = make(map[string]struct{}, len(channels))
	}
	for i, channel := range channels {
		if err := c.may("LISTEN", c.rights.Load().listen, channel); err != nil { // it has been revoked since the command
			c.out.Unlock()
			return err
		}
		filters[i] = hub.Channel(channel)
	}
	for _, channel := range channels {
		c.listens[channel] = struct{}{}
	}
	c.out.Unlock()
	if err := c.subscriber.Subscribe(ctx, filters...); err != nil {
		c.unlisten(channels)
		return c.hubError(err)
	}
	return nil
}

// unlisten ends subscriptions. Their queued messages are not delivered: Deliver checks listens.
func (c *conn) unlisten(channels []string) {
	if len(channels) == 0 {
		return
	}
	filters := make([]hub.Filter, len(channels))
	c.out.Lock()
	c.unlistened = true
	for i, channel := range channels {
		filters[i] = hub.Channel(channel)
		delete(c.listens, channel)
	}
	c.out.Unlock()
	c.subscriber.Unsubscribe(filters...)
}

func (c *conn) hubError(err error) error {
	var refused *hub.RefusedError
	var limit *hub.LimitError
	switch {
	case errors.As(err, &limit):
		return errorf(overLimit, "%v", limit)
	case errors.As(err, &refused):
		return errorf(badValue, "%v", err)
	case errors.Is(err, hub.ErrClosed), errors.Is(err, context.Canceled): // Serve's drain time is over
		return errorf(shuttingDown, "the hub is stopping").hint("Connect again: another hub may take over.")
	case errors.Is(err, hub.ErrSlow):
		return errSlow
	case errors.Is(err, context.DeadlineExceeded):
		return errorf(cannotConnect, "the hub can't reach its database: %v", err).hint("Try again in a while.")
	}
	return errorf(ioError, "%v", err).hint("Try again in a while.")
}

var (
	errSlow = errorf(overLimit, "terminating connection: it did not read its notifications").
		hint("More was waiting for it than the hub keeps for one connection. Read notifications all the time, and keep transactions short.")
	errGap = errorf(overLimit, "terminating connection: notifications were lost").
		hint("The hub was behind for longer than the log of messages goes back. Connect again, listen, and reload your tables.")
	errRevoked = errorf(badAuthorization, "terminating connection: the user may not log in, or not listen on these channels, any more").
			hint("The role, its memberships or its channels were changed since it logged in.")
	errEnded    = errorf(shuttingDown, "terminating connection due to administrator command")
	errStopping = errorf(shuttingDown, "terminating connection due to administrator command").hint("The hub is stopping, or no longer serves this database: connect again.")
)

// notifier is the process id in all notifications, so that their bytes are the same for all clients. No
// connection has it.
const notifier = 1

// encode encodes a message as a NotificationResponse. A binary payload is written in PostgreSQL's hex format of bytea.
func encode(m *hub.Message) []byte {
	payload := m.Payload
	if m.Binary || !utf8.Valid(payload) || bytes.IndexByte(payload, 0) >= 0 {
		payload = hexadecimal(payload)
	}
	size := 4 + 4 + len(m.Channel) + 1 + len(payload) + 1
	b := append(make([]byte, 0, 1+size), 'A')
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	b = binary.BigEndian.AppendUint32(b, notifier)
	b = append(append(b, m.Channel...), 0)
	return append(append(b, payload...), 0)
}

func hexadecimal(b []byte) []byte {
	const digits = "0123456789abcdef"
	s := make([]byte, 2, 2+2*len(b))
	copy(s, `\x`)
	for _, x := range b {
		s = append(s, digits[x>>4], digits[x&15])
	}
	return s
}

// chunk is the size up to which notifications are copied together for one write; a larger one is written separately.
const chunk = 32 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, 0, chunk); return &b }}

// Deliver implements hub.Sink. It runs in one of the hub's goroutines.
func (c *conn) Deliver(events []hub.Event) error {
	c.out.Lock()
	defer c.out.Unlock()
	if len(events) == 1 && events[0].Message != nil { // the common case: nothing is copied
		if m := events[0].Message; c.wants(m.Channel) {
			return c.deliver(m.Encoded(hub.FormatPG, encode))
		}
		return nil
	}
	p := chunks.Get().(*[]byte)
	buf := (*p)[:0]
	defer chunks.Put(p)
	channel, wants := "", false
	for _, e := range events {
		if e.Message == nil {
			return errGap
		}
		if e.Message.Channel != channel { // messages of a channel come in runs
			channel = e.Message.Channel
			wants = c.wants(channel)
		}
		if !wants {
			continue
		}
		b := e.Message.Encoded(hub.FormatPG, encode)
		if len(buf)+len(b) > chunk && len(buf) > 0 {
			if err := c.deliver(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
		if len(b) > chunk/2 {
			if err := c.deliver(b); err != nil {
				return err
			}
			continue
		}
		buf = append(buf, b...)
	}
	if len(buf) == 0 {
		return nil
	}
	return c.deliver(buf)
}

// wants reports whether the connection still listens to a channel.
func (c *conn) wants(channel string) bool {
	if !c.unlistened { // the common case: nothing is looked up
		return true
	}
	_, ok := c.listens[channel]
	return ok
}

// deliver writes notifications, or keeps those of a Deliver that began before hold. The caller holds out.
func (c *conn) deliver(b []byte) error {
	if c.holding {
		c.held = append(c.held, b...)
		return nil
	}
	return c.write(b)
}

// hold stops notifications until ready resumes them: as with PostgreSQL, none arrive within an answer or a transaction.
func (c *conn) hold() {
	c.out.Lock()
	c.holding = true
	c.out.Unlock()
	if c.subscriber != nil {
		c.subscriber.Pause()
	}
}

// Close implements hub.Sink: it sends the client the reason and ends the connection.
func (c *conn) Close(err error) {
	switch {
	case errors.Is(err, hub.ErrSlow), errors.Is(err, os.ErrDeadlineExceeded) && !c.closing.Load():
		c.server.stats.slow.Add(1)
		c.server.log.Warn("weir: a client did not read its notifications and was disconnected", "client", c.remote(), "user", c.user)
		c.cutOff(errSlow)
	case errors.Is(err, hub.ErrClosed):
		c.cutOff(errStopping)
	case errors.Is(err, errGap):
		c.cutOff(errGap)
	default: // writing failed
		c.cutOff(nil)
	}
}
