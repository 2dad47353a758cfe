package weirrelay

import (
	"context"
	"errors"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
)

// markEvery is the pause between marks; markUntil that of a relay which ends somewhere.
const (
	markEvery = recordEvery / 2
	markUntil = time.Second
)

// item is an event, or a mark: the position behind all events before it, also of those that are not for this relay.
type item struct {
	weir.Event
	mark weir.Position
	read time.Time
}

// pass passes on what is subscribed to, from a position on, until ctx ends or the subscription does, with an error; or everything was passed on that is to be.
func (r *relay) pass(ctx context.Context, sub *weir.Subscription, from weir.Position) (weir.Position, error) {
	ctx, stop := context.WithCancel(ctx)
	read, ended := r.read(ctx, sub)
	defer func() {
		stop()
		for range read.items { //nolint:revive // until it is closed
		}
	}()
	b := batch{relay: r, ahead: read, sender: sender{target: r.Target, what: "sending to the target", outage: r.outage, sure: r.sure}, recordedAt: time.Now()}
	defer b.last(ctx)
	b.lookAt(ctx, from)
	if b.behind.IsZero() {
		b.note(time.Time{})
	}
	for i := range read.items {
		for more := true; more; {
			b.add(i)
			if b.full() {
				break
			}
			select {
			case i, more = <-read.items:
			default:
				more = false
			}
		}
		if err := b.send(ctx); err != nil {
			return "", err
		}
		if r.isReached(b.at) {
			return b.at, nil
		}
		if err := b.record(ctx); err != nil {
			return "", err
		}
		b.look(ctx)
	}
	return "", <-ended
}

// read reads the subscription. The items are closed when the subscription or ctx has ended, and then ended has the error.
func (r *relay) read(ctx context.Context, sub *weir.Subscription) (read *ahead, ended chan error) {
	read, ended = newAhead(r.MaxRecords, r.MaxBytes), make(chan error, 1)
	// until reads until it is time for a mark, or ctx ends.
	until := func(soon context.Context) error {
		for {
			e, err := sub.Next(soon)
			if err != nil {
				return err
			}
			if !read.put(ctx, item{Event: e, read: time.Now()}) {
				return ctx.Err()
			}
		}
	}
	every := markEvery
	if r.Until != "" {
		every = markUntil
	}
	go func() { // ends with ctx, or with the subscription
		defer close(read.items)
		for {
			soon, cancel := context.WithTimeout(ctx, every)
			err := until(soon)
			cancel()
			// Nobody else calls Next, so everything up to its position has been given.
			if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) || !read.put(ctx, item{mark: sub.Position()}) {
				ended <- err
				return
			}
		}
	}()
	return read, ended
}

// batch is what is sent next, and how far the relay has come.
type batch struct {
	*relay
	ahead      *ahead
	sender     sender
	records    []Record
	bytes      int
	first      time.Time     // when the oldest record was read
	read       time.Time     // when the newest was
	next       weir.Position // behind everything that was added
	at         weir.Position // behind everything that was sent
	then       weir.Position // what was recorded last
	since      int           // messages since
	recordedAt time.Time
	setBack    error         // nothing more is added
	behind     time.Time     // when the tick was cut that comes next, while the relay does not keep up
	looked     weir.Position // where the log was looked at last
	lookedAt   time.Time
}

func (b *batch) full() bool { return len(b.records) >= b.MaxRecords || b.bytes >= b.MaxBytes }

func (b *batch) add(i item) {
	b.ahead.took(i)
	e := i.Event
	switch {
	case b.setBack != nil:
		return
	case e.Gap != nil && e.Gap.Reason == string(hub.Unknown) && !b.anew:
		b.anew, b.setBack = true, errSetBack
		return
	}
	b.anew = false
	switch {
	case e == (weir.Event{}):
		if i.mark != b.astray {
			b.reach(i.mark)
		}
		return
	case e.Gap != nil:
		b.gap(*e.Gap)
		b.reach(e.Gap.To)
		return
	case e.Message.Position == "":
		return // it is not in the log: a hub has passed it on without logging it
	}
	if !b.reach(e.Message.Position) {
		return
	}
	if record, ok := b.router.message(b.Name, e.Message); ok {
		if len(b.records) == 0 {
			b.first = i.read
		}
		b.records = append(b.records, record)
		b.bytes += len(record.Payload)
		b.read = time.Now()
	}
}

// reach notes that everything up to a position has been added. It returns false if that lies behind where the relay ends.
func (b *batch) reach(at weir.Position) bool {
	if b.Until != "" && before(b.Until, at) {
		b.next = b.Until
		return false
	}
	b.next = at
	return true
}

// send sends the batch.
func (b *batch) send(ctx context.Context) error {
	all := len(b.records)
	if all > 0 && b.behind.IsZero() {
		b.note(b.first)
	}
	sent, err := b.sender.send(ctx, b.records, func(i int, why error) error { return b.bury(ctx, &b.records[i], why) })
	if err != nil {
		return err
	}
	if n := len(sent); n > 0 {
		b.had = sent[n-1].Position // not that of one which was refused: the target does not know it
	}
	if b.behind.IsZero() && len(b.ahead.items) == 0 {
		b.note(time.Time{})
	}
	if all > 0 {
		b.Observe(Progress{Active: true, Sent: len(sent), Dead: all - len(sent), Lag: time.Since(b.read)})
	}
	b.records, b.bytes, b.at, b.since = b.records[:0], 0, b.next, b.since+all
	b.passed.reach(b.at)
	return b.setBack
}

// bury keeps a record that the target refuses, as a job.
func (b *batch) bury(ctx context.Context, record *Record, why error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	letter := DeadLetter{Relay: b.Name, Position: record.Position, Channel: record.Channel, Subject: legible(record.Subject, maxSubject), Error: legible(why.Error(), maxError)}
	letter.keep(record.Payload, record.Binary)
	job, err := b.client.Enqueue(ctx, letter, &weir.Options{Queue: b.DeadLetters})
	if store.IsBadData(err) { // escaped, its text is larger
		job, err = b.client.Enqueue(ctx, letter.bare(len(record.Payload)), &weir.Options{Queue: b.DeadLetters})
	}
	if err == nil {
		b.Logger.Error("weir: the target refuses a message, which is kept as a job", "channel", record.Channel, "position", record.Position, "error", why, "queue", b.DeadLetters, "job", job.ID)
	}
	return err
}

// record records how far the relay has come, if it is time.
func (b *batch) record(ctx context.Context) error {
	age := time.Since(b.recordedAt)
	if b.at == "" || b.at == b.then && age < recordIdle || age < recordEvery && b.since < recordMost {
		return nil
	}
	if err := b.relay.record(ctx, b.at, b.had); err != nil {
		return err
	}
	b.then, b.since, b.recordedAt = b.at, 0, time.Now()
	return nil
}

// last records how far the relay has come when it ends, so that the next one sends nothing again.
func (b *batch) last(ctx context.Context) {
	if b.at != "" && b.at != b.then {
		if err := b.relay.record(context.WithoutCancel(ctx), b.at, b.had); err != nil {
			b.Logger.Warn("weir: how far the relay has come is not recorded: some messages may be sent again", "error", err)
		}
	}
}
