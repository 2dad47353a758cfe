package hub

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// Log is the source that reads ticks from the database, cuts the next when it is the first to look, and logs what is published.
type Log struct {
	primary *store.Store
	read    *store.Store // of a standby, or the primary

	known     store.Tick // the newest that Next has brought
	doubt     bool       // a call has failed: perhaps the database is not what it was
	seen      store.Seen
	published time.Time // when ids were last seen to move
	last      time.Time // when the last tick came that was traffic

	mu   sync.Mutex
	long map[Position]*reader // of ticks that are read in parts, by where each goes on
}

const (
	tickLooks   = 66                   // in one call, a fifth of a second
	tickPause   = 3 * time.Millisecond // between looks
	tickPace    = 4 * time.Millisecond // between ticks under traffic: what comes meanwhile shares one
	paceFrom    = 2                    // messages in a tick are traffic; a lone message, and its answer, are not to wait
	tickCalm    = 16                   // looks before a commit alone counts, when nothing has been published for
	tickFresh   = time.Second          // so long
	rowsRead    = 10000                // at a time; the database's ticks are no longer,
	bytesRead   = 8 << 20              // and no larger, but for single transactions
	ticksRead   = 32                   // in one round trip
	longKept    = 8                    // ticks being read in parts, at once
	callTimeout = 10 * time.Second     // a database that does not answer for so long is not there
	readTimeout = time.Minute
	lagPause    = 5 * time.Millisecond // until a standby that lags is asked again
)

// NewLog returns a source on the primary. read, where not nil, is a standby of it to read ticks and messages from.
func NewLog(primary, read *store.Store) *Log {
	if read == nil {
		read = primary
	}
	return &Log{primary: primary, read: read, long: map[Position]*reader{}}
}

// Newest implements Source.
func (l *Log) Newest(ctx context.Context) (Position, error) {
	seq, err := l.primary.NewestTick(ctx)
	if store.IsMoved(err) {
		if _, err = l.primary.RebaseMessages(ctx); err == nil {
			seq, err = l.primary.NewestTick(ctx)
		}
	}
	if err != nil {
		return Position{}, fmt.Errorf("find the newest tick: %w", err)
	}
	return Position{Tick: seq + 1}, nil
}

// Next implements Source.
func (l *Log) Next(ctx context.Context, after Position) (parts []*Part, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if l.doubt {
		if err := l.recognise(ctx, after); err != nil {
			return nil, err
		}
	}
	defer func() { l.doubt = err != nil }()
	if after.Index > 0 {
		return l.readLong(ctx, after)
	}
	if wait := tickPace - time.Since(l.last); wait > 0 {
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
	look := store.Look{Looks: tickLooks, Pause: tickPause, Cut: true}
	if time.Since(l.published) > tickFresh {
		look.Patience = tickCalm
	}
	ticks, seen, err := l.primary.Ticks(ctx, after.Tick-1, l.seen, look)
	if err != nil {
		l.seen = store.Seen{}
		return nil, l.explain("look for ticks", err)
	}
	if seen.Published(l.seen) {
		l.published = time.Now()
	}
	l.seen = seen
	if len(ticks) == 0 {
		return nil, nil
	}
	l.known = ticks[len(ticks)-1]
	if l.known.Count >= paceFrom {
		l.last = time.Now()
	}
	return l.readTicks(ctx, ticks)
}

// recognise looks whether the database is what it was, after a call that failed: after a failover, other ticks may have taken the place
// of those that this hub has dispatched.
func (l *Log) recognise(ctx context.Context, after Position) error {
	newest, err := l.Newest(ctx) // which starts the log anew where it came from another cluster
	if err != nil || l.known.Seq == 0 || l.known.Seq >= after.Tick || newest.Before(after) {
		return err // a log that ends before the position is noticed by whoever looks behind it
	}
	ticks, _, err := l.primary.Ticks(ctx, l.known.Seq-1, store.Seen{}, store.Look{Looks: 1})
	if _, truncated := store.TruncatedUpTo(err); truncated {
		return nil
	}
	if err != nil {
		return l.explain("look for ticks", err)
	}
	if len(ticks) == 0 || ticks[0].Seq != l.known.Seq || !ticks[0].At.Equal(l.known.At) {
		l.known = store.Tick{}
		return &AheadError{End: newest}
	}
	return nil
}

// Read implements Source.
func (l *Log) Read(ctx context.Context, after Position) ([]*Part, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if after.Index > 0 {
		return l.readLong(ctx, after)
	}
	ticks, _, err := l.read.Ticks(ctx, max(after.Tick-1, 0), store.Seen{}, store.Look{Looks: 1})
	if err != nil {
		return nil, l.explain("look for ticks", err)
	}
	if len(ticks) == 0 {
		return nil, nil
	}
	return l.readTicks(ctx, ticks)
}

// readTicks reads ticks in order, as many as make a stretch of bounded size; at least a part of the first.
func (l *Log) readTicks(ctx context.Context, ticks []store.Tick) ([]*Part, error) {
	n, count, bytes := 0, 0, int64(0)
	for n < len(ticks) && n < ticksRead && count+int(ticks[n].Count) <= rowsRead && bytes+ticks[n].Bytes <= bytesRead {
		count += int(ticks[n].Count)
		bytes += ticks[n].Bytes
		n++
	}
	if n == 0 {
		return l.readLong(ctx, Position{Tick: ticks[0].Seq})
	}
	all, err := l.read.ReadTicks(ctx, ticks[:n], rowsRead)
	if err != nil && l.lags(err) {
		return nil, sleep(ctx, lagPause)
	}
	if err != nil {
		return nil, l.explain("read ticks", err)
	}
	parts := make([]*Part, n)
	for i, t := range ticks[:n] {
		if len(all[i]) != int(t.Count) {
			return nil, damaged(t, int32(len(all[i])))
		}
		parts[i] = &Part{Tick: t.Seq, At: t.At, First: 1, End: true}
		new(reader).add(parts[i], all[i])
	}
	return parts, nil
}

// readLong reads a stretch of a tick from the position on. Where it does not go on from a stretch before, it begins with the first
// message, for what was published before decides what repeats.
func (l *Log) readLong(ctx context.Context, after Position) ([]*Part, error) {
	ticks, _, err := l.read.Ticks(ctx, max(after.Tick-1, 0), store.Seen{}, store.Look{Looks: 1})
	if err != nil {
		return nil, l.explain("look for ticks", err)
	}
	if len(ticks) == 0 || ticks[0].Seq != after.Tick {
		return nil, sleep(ctx, lagPause)
	}
	r := l.takeLong(after)
	part := &Part{Tick: after.Tick, At: ticks[0].At, First: r.index + 1}
	for !part.End {
		messages, err := l.read.ReadTick(ctx, after.Tick, r.lastID, rowsRead)
		if err != nil {
			return nil, l.explain("read tick", err)
		}
		if len(messages) == 0 && r.index < ticks[0].Count {
			return nil, damaged(ticks[0], r.index)
		}
		if r.index <= after.Index {
			part.Messages, part.First = nil, r.index+1
		}
		r.add(part, messages)
		part.End = r.index >= ticks[0].Count
		if r.index > after.Index {
			break
		}
	}
	if !part.End {
		l.keepLong(part.after(), r)
	}
	return []*Part{part}, nil
}

func damaged(t store.Tick, read int32) error {
	return fmt.Errorf("read tick %d: it has %d messages, and %d could be read: the log is damaged", t.Seq, t.Count, read)
}

func (l *Log) takeLong(at Position) *reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.long[at]; r != nil {
		delete(l.long, at)
		return r
	}
	return &reader{had: map[identity]struct{}{}}
}

func (l *Log) keepLong(at Position, r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.long) >= longKept {
		clear(l.long) // whoever misses his begins anew
	}
	l.long[at] = r
}

// reader makes messages of a tick's rows, leaving out what repeats within a transaction.
type reader struct {
	index  int32 // of the last row
	lastID int64
	had    map[identity]struct{} // nil: not needed so far
}

// identity stands for a message's transaction, channel and payload.
type identity [sha256.Size]byte

// add adds rows' messages to a part.
func (r *reader) add(part *Part, rows []store.Message) {
	rowsOf := map[int64]int{}
	if r.had == nil {
		for _, m := range rows {
			rowsOf[m.XID]++
		}
	}
	for _, m := range rows {
		r.index++
		r.lastID = m.ID
		if !m.Keep && (r.had != nil || rowsOf[m.XID] > 1) {
			id := identify(m)
			if _, ok := r.had[id]; ok {
				continue
			}
			if r.had == nil {
				r.had = map[identity]struct{}{}
			}
			r.had[id] = struct{}{}
		}
		part.Messages = append(part.Messages, &Message{
			Position: Position{Tick: part.Tick, Index: r.index}, Channel: m.Channel, Payload: m.Payload, Binary: m.Binary,
		})
	}
	part.Last = r.index
}

func identify(m store.Message) (id identity) {
	h := sha256.New()
	fmt.Fprintf(h, "%d %d %t %s", m.XID, len(m.Channel), m.Binary, m.Channel)
	h.Write(m.Payload)
	h.Sum(id[:0])
	return id
}

// lags tells whether a standby has not got a tick yet that the primary has.
func (l *Log) lags(err error) bool { return l.read != l.primary && store.IsBadArgument(err) }

// explain turns the database's word for truncated history into ours.
func (l *Log) explain(what string, err error) error {
	if upTo, ok := store.TruncatedUpTo(err); ok {
		return &TruncatedError{From: Position{Tick: upTo + 1}}
	}
	if newest, ok := store.LogEndsAt(err); ok {
		return &AheadError{End: Position{Tick: newest + 1}}
	}
	return fmt.Errorf("%s: %w", what, err)
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
	err := l.primary.PublishDrafts(ctx, channels, payloads, binaries)
	if store.IsRefused(err) {
		return &RefusedError{Err: err}
	}
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}
