package hub

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// looked is what a look for ticks behind a position found.
type looked struct {
	after Position
	ticks []store.Tick
	seen  store.Seen
	err   error
}

// handedMost is how many ticks may be on their way from Publish to Next. What is more, or out of turn, the next look brings.
const handedMost = 64

// Next implements Source. What this process itself has published comes straight from there, a look in the database is under way meanwhile.
func (l *Log) Next(ctx context.Context, after Position) ([]*Part, error) {
	if after.Index > 0 {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return l.readFrom(ctx, after)
	}
	for {
		if l.looking == nil {
			l.look(ctx, after)
		}
		select {
		case p := <-l.handed:
			if p.Before() == after {
				l.came = time.Now()
				l.handedAt, l.pace = l.came, 0
				return []*Part{p}, nil
			}
		case found := <-l.looking:
			l.looking = nil
			return l.take(ctx, after, found)
		case <-ctx.Done():
			<-l.looking // it ends with ctx, too
			l.looking = nil
			return nil, ctx.Err()
		}
	}
}

// look starts a look behind the position. It ends by itself, in a fifth of a second if nothing comes, and with ctx.
func (l *Log) look(ctx context.Context, after Position) {
	look := store.Look{Pause: tickPause, Cut: !l.ReadOnly}
	if l.read == l.primary {
		look.Messages = broughtMost
	}
	if time.Since(l.came) < flowFor {
		look.Pause = flowPause
	}
	look.Looks = int(tickCall / look.Pause)
	if time.Since(l.published) > tickFresh {
		look.Patience = tickCalm
	}
	wait := l.pace - time.Since(l.came)
	if wait < time.Millisecond { // a sleep takes no less
		wait = 0
	}
	if time.Since(l.handedAt) < lookPace { // this process cuts, what others publish too: a look at each of its ticks would only be in its way
		wait = max(wait, lookPace-time.Since(l.looked))
	}
	seen, result := l.seen, make(chan looked, 1)
	l.looking, l.looked = result, time.Now().Add(max(wait, 0))
	go func() {
		found := looked{after: after}
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if wait > 0 && !sleep.For(ctx, wait) {
			found.err = ctx.Err()
		}
		if found.err == nil {
			found.ticks, found.seen, found.err = l.primary.Ticks(ctx, after.reached(), seen, look)
		}
		result <- found
	}()
}

// take reads what a look has found. The position may have moved on meanwhile, by what was handed over.
func (l *Log) take(ctx context.Context, after Position, found looked) ([]*Part, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	before := l.seen
	l.seen = store.Seen{} // unless all is well: then the position is looked at again, too
	if store.IsMoved(found.err) {
		_, err := l.Newest(ctx) // which starts the log anew
		return nil, err
	}
	if found.err != nil {
		return nil, l.explain("look for ticks", found.err)
	}
	ticks, at := found.ticks, found.after
	for len(ticks) > 0 && ticks[0].Seq < after.Tick {
		at, ticks = behind(store.Place{Tick: ticks[0].Seq, Epoch: ticks[0].Epoch}), ticks[1:]
	}
	if len(ticks) > 0 && at != after || after.Before(at) {
		return nil, nil // it was another position, or another log
	}
	if found.seen.Published(before) {
		l.published = time.Now()
	}
	l.seen = found.seen
	if len(ticks) == 0 {
		return nil, nil
	}
	l.came = time.Now()
	l.published = l.came // also where the ids were drawn long ago
	l.pace = min(tickPace, time.Duration(ticks[len(ticks)-1].Count)*messagePace)
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
	// Traffic is left to the looks, which put what comes from everywhere into ticks of some milliseconds.
	tick, prior, err := l.primary.PublishDrafts(ctx, channels, payloads, binaries, len(drafts) <= cutsMost)
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

// hand hands a tick to Next, with the messages that make it up.
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
