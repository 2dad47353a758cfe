package weirrelay

import (
	"context"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
)

// Since when the oldest message waits that may still have to be passed on. While the relay keeps up with the log, that is when the first message was read that the target does not have.
// Otherwise it is when the tick was cut that comes next, for which the database is asked now and then: so it is not known to the second there. A target that refuses changes neither.
const (
	lookEvery   = recordEvery     // between looks at the log, and
	lookBehind  = time.Second     // while the relay does not keep up with it
	keepsUpWith = 2 * time.Second // a tick that is no older is about to be read
)

// waitFrom notes that messages may wait from a time on, and from an earlier one if that was noted.
func (h *holder) waitFrom(at time.Time) {
	if h.waiting.IsZero() || at.Before(h.waiting) {
		h.waiting = at
	}
}

// mayWait notes what is recorded of a relay that is about to begin. It may take long until it knows what is left to pass on: the target may be away.
func (r *relay) mayWait(ctx context.Context, recorded weir.Position) {
	r.waitFrom(time.Now())
	if at, ok := r.oldest(ctx, recorded); ok && !at.IsZero() {
		r.waitFrom(at)
	}
	r.Observe(Progress{Active: true})
}

// oldest returns when the first tick was cut that has not been passed on in whole; zero: there is none. It does not know if the database does not say.
func (r *relay) oldest(ctx context.Context, at weir.Position) (cut time.Time, ok bool) {
	p, err := hub.ParsePosition(string(at))
	if err != nil {
		return time.Time{}, false
	}
	after := store.Place{Tick: max(p.Tick-1, 0), Epoch: anyEpoch}
	ticks, _, err := r.store.Ticks(ctx, after, store.Seen{}, store.Poll{Polls: 1})
	if last, truncated := store.TruncatedUpTo(err); truncated {
		ticks, _, err = r.store.Ticks(ctx, store.Place{Tick: last.Tick, Epoch: anyEpoch}, store.Seen{}, store.Poll{Polls: 1})
	}
	if err != nil {
		return time.Time{}, false
	}
	if len(ticks) > 0 && ticks[0].Seq == p.Tick && p.Index >= ticks[0].Count {
		ticks = ticks[1:]
	}
	if len(ticks) == 0 {
		return time.Time{}, true
	}
	return ticks[0].At, true
}

const anyEpoch = -1

// look looks, if it is time, whether the relay keeps up with the log.
func (b *batch) look(ctx context.Context) {
	age := time.Since(b.lookedAt)
	if b.at == "" || b.at == b.looked && b.behind.IsZero() || age < lookBehind || age < lookEvery && b.behind.IsZero() {
		return
	}
	b.lookAt(ctx, b.at)
	if b.behind.IsZero() && len(b.ahead.items) == 0 {
		b.note(time.Time{})
	}
}

// lookAt looks whether a relay that has come to a position keeps up with the log.
func (b *batch) lookAt(ctx context.Context, at weir.Position) {
	cut, ok := b.oldest(ctx, at)
	b.lookedAt = time.Now()
	if !ok {
		return
	}
	b.looked, b.behind = at, time.Time{}
	if time.Since(cut) > keepsUpWith && !cut.IsZero() {
		b.behind = cut
		b.note(cut)
	}
}

// note notes since when the oldest message waits; zero: none does.
func (b *batch) note(since time.Time) {
	if !b.waiting.Equal(since) {
		b.waiting = since
		b.Observe(Progress{Active: true})
	}
}
