package hub

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// polled is the result of a poll for ticks after a position.
type polled struct {
	after Position
	ticks []store.Tick
	seen  store.Seen
	err   error
}

// handedTicks is how many ticks may wait between Publish and Next. The next poll returns those beyond it, and those out of order.
const handedTicks = 64

// Next implements Source. Ticks cut by this process come straight from Publish, while a poll of the database is in progress.
func (l *Log) Next(ctx context.Context, after Position) ([]*Part, error) {
	if after.Index > 0 {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return l.readFrom(ctx, after)
	}
	for {
		if l.polling == nil {
			l.poll(ctx, after)
		}
		select {
		case p := <-l.handed:
			if p.Before() == after {
				l.came = time.Now()
				l.handedAt, l.pace = l.came, 0
				return []*Part{p}, nil
			}
		case found := <-l.polling:
			l.polling = nil
			return l.take(ctx, after, found)
		case <-ctx.Done():
			<-l.polling // it ends with ctx, too
			l.polling = nil
			return nil, ctx.Err()
		}
	}
}

// poll starts a poll for ticks after the position. It ends after pollCall if no tick arrives, and with ctx.
func (l *Log) poll(ctx context.Context, after Position) {
	poll := store.Poll{Pause: pollPause, Cut: !l.ReadOnly}
	if l.read == l.primary {
		poll.Messages = inlineRows
	}
	if time.Since(l.came) < flowFor {
		poll.Pause = flowPause
	}
	poll.Polls = int(pollCall / poll.Pause)
	if time.Since(l.published) > calmAfter {
		poll.Patience = calmChecks
	}
	wait := l.pace - time.Since(l.came)
	if wait < time.Millisecond { // no sleep is shorter
		wait = 0
	}
	if time.Since(l.handedAt) < handedPace { // this process cuts ticks, with others' messages too: polling after each of them would only slow it down
		wait = max(wait, handedPace-time.Since(l.polledAt))
	}
	seen, result := l.seen, make(chan polled, 1)
	l.polling, l.polledAt = result, time.Now().Add(max(wait, 0))
	go func() {
		found := polled{after: after}
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if wait > 0 && !sleep.For(ctx, wait) {
			found.err = ctx.Err()
		}
		if found.err == nil {
			found.ticks, found.seen, found.err = l.primary.Ticks(ctx, after.Reached(), seen, poll)
		}
		result <- found
	}()
}

// take reads the ticks that a poll has found. The position may have advanced in the meantime, with ticks from Publish.
func (l *Log) take(ctx context.Context, after Position, found polled) ([]*Part, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	before := l.seen
	l.seen = store.Seen{} // makes the next poll check the position again, unless this one succeeds
	if store.IsMoved(found.err) {
		_, err := l.newest(ctx) // which rebases the log
		return nil, err
	}
	if found.err != nil {
		return nil, l.explain("poll for ticks", found.err)
	}
	ticks, at := found.ticks, found.after
	for len(ticks) > 0 && ticks[0].Seq < after.Tick {
		at, ticks = Behind(store.Place{Tick: ticks[0].Seq, Epoch: ticks[0].Epoch}), ticks[1:]
	}
	if len(ticks) > 0 && at != after || after.Before(at) {
		return nil, nil // the poll was for another position, or another log
	}
	if found.seen.Published(before) {
		l.published = time.Now()
	}
	l.seen = found.seen
	if len(ticks) == 0 {
		return nil, nil
	}
	l.came = time.Now()
	l.published = l.came // even if the ids were assigned long ago
	l.pace = min(maxPace, time.Duration(ticks[len(ticks)-1].Count)*messagePace)
	return l.readTicks(ctx, after.Epoch, ticks)
}

// Publish implements Source.
func (l *Log) Publish(ctx context.Context, drafts []Draft) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	channels, payloads, binaries := make([]string, len(drafts)), make([][]byte, len(drafts)), make([]bool, len(drafts))
	for i, d := range drafts {
		channels[i], payloads[i], binaries[i] = d.Channel, d.Payload, d.Binary
		if payloads[i] == nil {
			payloads[i] = []byte{}
		}
	}
	// Heavier traffic is left to the polls, which collect everybody's messages into ticks of a few milliseconds.
	tick, prior, err := l.primary.PublishDrafts(ctx, channels, payloads, binaries, len(drafts) <= maxCut)
	if store.IsRefused(err) {
		return &RefusedError{Err: err}
	}
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if tick.Seq > 0 {
		l.hand(tick, prior, channels, payloads, binaries)
	}
	return nil
}

// hand passes a tick to Next, with its messages.
func (l *Log) hand(tick store.Tick, prior int64, channels []string, payloads [][]byte, binaries []bool) {
	p := &Part{Tick: tick.Seq, Epoch: tick.Epoch, Prior: prior, At: tick.At, First: 1, Last: int32(len(channels)), End: true}
	for i := range channels {
		p.Messages = append(p.Messages, &Message{
			Position: Position{Epoch: tick.Epoch, Tick: tick.Seq, Index: int32(i) + 1}, Channel: channels[i], Payload: payloads[i], Binary: binaries[i],
		})
	}
	select {
	case l.handed <- p:
	default:
	}
}
