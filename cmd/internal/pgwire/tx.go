package pgwire

import (
	"context"
	"fmt"
	"slices"

	"github.com/weir-pg/weir/internal/hub"
)

// The status byte of ReadyForQuery.
const (
	idle   = 'I'
	inTx   = 'T'
	failed = 'E'
)

// transaction collects what takes effect at commit: as in PostgreSQL, LISTEN, UNLISTEN and NOTIFY do nothing before.
// Statements outside BEGIN … COMMIT form an implicit transaction, which ends with the query or at Sync.
type transaction struct {
	status     byte
	implicit   bool // a statement has been executed since the last transaction ended
	before     settings
	pending    []action
	bytes      int // of pending
	savepoints []savepoint
}

type savepoint struct {
	name     string
	pending  int
	bytes    int
	settings settings
}

// action is a pending LISTEN, UNLISTEN or NOTIFY.
type action struct {
	kind    actionKind
	logged  bool
	keep    bool
	channel string
	payload string
}

type actionKind uint8

const (
	listenAction actionKind = iota
	unlistenAction
	unlistenAllAction
	notifyAction
)

// Limits of a transaction.
const (
	maxPending      = 100_000
	maxSavepoints   = 1_000
	maxPendingBytes = 64 << 20
)

// pend defers an action until commit.
func (c *conn) pend(a action) error {
	if a.kind != unlistenAllAction {
		if err := hub.CheckChannel(a.channel); err != nil {
			return errorf(badValue, "%v", err)
		}
	}
	if limit := c.server.config.MaxPayload; len(a.payload) > limit {
		return errorf(badValue, "payload too long: %d bytes, at most %d are allowed", len(a.payload), limit)
	}
	size := len(a.channel) + len(a.payload)
	if len(c.tx.pending) >= maxPending || c.tx.bytes+size > maxPendingBytes {
		return errorf(tooLarge, "too much in one transaction: at most %d notifications of %d MiB together", maxPending, maxPendingBytes>>20).
			hint("Commit more often.")
	}
	c.tx.pending = append(c.tx.pending, a)
	if c.server.pending.Add(int64(size)) > int64(c.server.config.MaxPending) {
		c.server.pending.Add(-int64(size))
		return errorf(outOfMemory, "out of memory: open transactions hold %d MiB of notifications together", c.server.config.MaxPending>>20).
			hint("Try again in a while.")
	}
	c.tx.bytes += size
	return nil
}

// notify implements NOTIFY and pg_notify.
func (c *conn) notify(args []value, logged, keep bool) error {
	a := action{kind: notifyAction, logged: logged || c.server.config.DurableNotify, keep: keep}
	if args[0] != nil {
		a.channel = *args[0]
	}
	if len(args) > 1 && args[1] != nil {
		a.payload = *args[1]
	}
	if err := c.may("NOTIFY", c.rights.Load().notify, a.channel); err != nil {
		return err
	}
	policies := c.server.config.Policies.Set()
	if limit := policies.Payload(a.channel, c.server.config.MaxPayload); len(a.payload) > limit {
		return errorf(badValue, "payload too long: %d bytes, at most %d are allowed on this channel", len(a.payload), limit)
	}
	if err := policies.Publish("user "+c.user, []string{a.channel}); err != nil {
		return errorf(overLimit, "%v", err).hint("Send notifications more slowly.")
	}
	return c.pend(a)
}

// open begins the implicit transaction, unless a transaction is open.
func (c *conn) open() {
	if c.tx.status == idle && !c.tx.implicit {
		c.tx.implicit = true
		c.tx.before = c.settings
	}
}

// begin makes the transaction explicit. It includes what the implicit one has done.
func (c *conn) begin() {
	c.tx.status, c.tx.implicit = inTx, false
}

// finish ends the implicit transaction, if one is open.
func (c *conn) finish(ctx context.Context) error {
	if c.tx.status != idle || !c.tx.implicit {
		return nil
	}
	return c.commit(ctx)
}

// abort handles an error in the transaction.
func (c *conn) abort() {
	if c.tx.status == idle {
		c.rollback()
		return
	}
	c.tx.status = failed
}

func (c *conn) rollback() {
	if c.tx.status != idle || c.tx.implicit {
		c.restore(c.tx.before)
	}
	c.endTx()
}

// restore restores earlier settings.
func (c *conn) restore(before settings) {
	if c.settings.version != before.version {
		before.version = c.settings.version + 1
		c.settings = before
	}
}

func (c *conn) endTx() {
	c.server.pending.Add(-int64(c.tx.bytes))
	c.tx = transaction{status: idle}
	clear(c.portals)
}

// commit executes the pending actions. It listens first, so that a transaction receives its own notifications, then it notifies; if that fails, it undoes the
// listening.
func (c *conn) commit(ctx context.Context) error {
	pending := c.tx.pending
	before := c.tx.before
	held := int64(c.tx.bytes) // until everything is done
	c.server.pending.Add(held)
	defer c.server.pending.Add(-held)
	if c.settings.local != nil {
		c.settings.local = nil
		c.settings.version++
	}
	c.endTx()
	if len(pending) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	add, remove := c.changes(pending)
	err := c.listen(ctx, add)
	if err == nil {
		if err = c.publish(ctx, pending); err != nil {
			c.unlisten(add)
		}
	}
	if err != nil {
		c.restore(before)
		return err
	}
	c.unlisten(remove)
	return nil
}

// changes returns the channels on which the commit starts and stops listening.
func (c *conn) changes(pending []action) (add, remove []string) {
	if !slices.ContainsFunc(pending, func(a action) bool { return a.kind != notifyAction }) {
		return nil, nil
	}
	after := map[string]bool{}
	for _, a := range pending {
		switch a.kind {
		case listenAction:
			after[a.channel] = true
		case unlistenAction:
			after[a.channel] = false
		case unlistenAllAction:
			clear(after)
			for channel := range c.listens { // only this goroutine writes it
				after[channel] = false
			}
		}
	}
	for channel, listens := range after {
		switch _, now := c.listens[channel]; {
		case listens && !now:
			add = append(add, channel)
		case !listens && now:
			remove = append(remove, channel)
		}
	}
	return add, remove
}

// publish sends the notifications in order, without duplicates. Durable ones are logged together, before the others:
// if that fails, none is sent.
func (c *conn) publish(ctx context.Context, pending []action) error {
	type pair struct{ channel, payload string }
	var seen map[pair]bool
	var log, pass []hub.Draft
	for i, a := range pending {
		if a.kind != notifyAction {
			continue
		}
		if len(pending) > 1 && !a.keep {
			if seen == nil {
				seen = make(map[pair]bool, len(pending)-i)
			}
			if seen[pair{a.channel, a.payload}] {
				continue
			}
			seen[pair{a.channel, a.payload}] = true
		}
		draft := hub.Draft{Channel: a.channel, Payload: []byte(a.payload)}
		if a.logged {
			log = append(log, draft)
		} else {
			pass = append(pass, draft)
		}
	}
	h := c.server.config.Hub
	if err := h.PublishAll(ctx, log); err != nil {
		return c.hubError(fmt.Errorf("notify: %w", err))
	}
	for _, d := range pass {
		if err := h.Pass(ctx, d); err != nil {
			return c.hubError(fmt.Errorf("notify: %w", err))
		}
	}
	c.server.stats.notified.Add(int64(len(log) + len(pass)))
	return nil
}
