package hub

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// Log is the source that reads ticks from the database, cuts the next tick if no other hub has, and logs published messages.
type Log struct {
	// ReadOnly is for a role that may only subscribe: it reads the ticks that hubs cut. Set it before the first call.
	ReadOnly bool

	primary *store.Store
	read    *store.Store // of a standby, or the primary

	handed chan *Part // ticks that this process cut while publishing, on their way to Next

	polling   chan polled // result of the poll in progress; nil: none
	polledAt  time.Time   // when it, or the last one, began
	handedAt  time.Time   // when Next last returned a tick from handed
	seen      store.Seen
	published time.Time     // when message ids were last seen to grow
	came      time.Time     // when the last tick arrived
	pace      time.Duration // from then until the next poll

	mu   sync.Mutex
	long map[Position]*reader // of ticks that are read in parts, by the position where each continues
}

const (
	pollCall    = 200 * time.Millisecond // that one poll waits on the server
	pollPause   = 3 * time.Millisecond   // between the server's checks
	flowPause   = time.Millisecond       // the same while messages flow, that is,
	flowFor     = 250 * time.Millisecond // for this long after a tick
	messagePace = 250 * time.Microsecond // from a tick to the next poll, for each of its messages, so that later messages
	maxPace     = 4 * time.Millisecond   // share one tick; but at most this
	handedPace  = 2 * time.Millisecond   // between polls while this process cuts ticks
	maxCut      = 3                      // drafts that publishing cuts a tick for; more are traffic, and left to the polls
	calmChecks  = 16                     // checks before a commit alone ends a poll, once nothing has been published
	calmAfter   = time.Second            // for this long
	rowsRead    = 10000                  // at a time; no tick in the database is longer,
	bytesRead   = 8 << 20                // or larger, except for a single large transaction
	ticksRead   = 32                     // in one round trip
	inlineRows  = 100                    // messages returned together with the tick that a poll cuts
	longKept    = 8                      // ticks read in parts at the same time
	callTimeout = 10 * time.Second       // after which the database counts as unreachable
	readTimeout = time.Minute
	cutAtMost   = 30 * time.Second     // for a log of which nobody has cut ticks for long
	lagPause    = 5 * time.Millisecond // before a lagging standby is asked again
)

// NewLog returns a source on the primary. If read is not nil, it is a standby from which ticks and messages are read.
func NewLog(primary, read *store.Store) *Log {
	if read == nil {
		read = primary
	}
	return &Log{primary: primary, read: read, handed: make(chan *Part, handedTicks), long: map[Position]*reader{}}
}

// Newest implements Source. Messages have a position only once they are in a tick, and while no hub runs, nobody cuts any: so it cuts ticks first.
func (l *Log) Newest(ctx context.Context) (Position, error) {
	newest, err := l.newest(ctx)
	if err == nil && !l.ReadOnly {
		newest, err = l.cutAll(ctx, newest)
	}
	if err != nil {
		return Position{}, fmt.Errorf("find the newest tick: %w", err)
	}
	return Behind(newest), nil
}

// newest returns the newest tick of this cluster's log.
func (l *Log) newest(ctx context.Context) (store.Place, error) {
	newest, err := l.primary.NewestTick(ctx)
	if store.IsMoved(err) && !l.ReadOnly {
		if _, err = l.primary.RebaseMessages(ctx); err == nil {
			newest, err = l.primary.NewestTick(ctx)
		}
	}
	return newest, err
}

// cutAll cuts ticks, or reads those that others cut, until every message that was committed before the call is in one, and returns the last.
func (l *Log) cutAll(ctx context.Context, at store.Place) (store.Place, error) {
	for end := time.Now().Add(cutAtMost); ; {
		ticks, seen, err := l.primary.Ticks(ctx, at, store.Seen{}, store.Poll{Polls: 1, Pause: pollPause, Cut: true})
		if err != nil {
			return at, err
		}
		if n := len(ticks); n > 0 {
			at = store.Place{Tick: ticks[n-1].Seq, Epoch: ticks[n-1].Epoch}
		}
		if seen.All() || time.Now().After(end) {
			return at, nil
		}
	}
}

// Read implements Source.
func (l *Log) Read(ctx context.Context, after Position) ([]*Part, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return l.readFrom(ctx, after)
}

// readFrom reads ticks after the position.
func (l *Log) readFrom(ctx context.Context, after Position) ([]*Part, error) {
	ticks, err := l.from(ctx, l.read, after)
	if _, elsewhere := store.NotOfThisLog(err); l.read != l.primary && (elsewhere || err == nil && len(ticks) == 0) {
		// A standby may lag, or follow another primary: the primary decides what belongs to this log.
		if _, err := l.from(ctx, l.primary, after); err != nil {
			return nil, l.explain("poll for ticks", err)
		}
		if elsewhere {
			return nil, fmt.Errorf("the standby's log of messages is not the primary's: %w", err)
		}
	}
	switch {
	case err != nil:
		return nil, l.explain("poll for ticks", err)
	case len(ticks) == 0:
		return nil, nil
	case after.Index > 0:
		return l.readLong(ctx, after, ticks[0])
	}
	return l.readTicks(ctx, after.Epoch, ticks)
}

// from returns the ticks that hold the messages after the position. The position must be of this log.
func (l *Log) from(ctx context.Context, s *store.Store, after Position) ([]store.Tick, error) {
	once := store.Poll{Polls: 1}
	if after.Index > 0 {
		ticks, _, err := s.Ticks(ctx, store.Place{Tick: after.Tick - 1, Epoch: anyEpoch}, store.Seen{}, once)
		// Where a log that was set back parted from the position's is said below, by its epoch.
		if _, elsewhere := store.NotOfThisLog(err); err != nil && !elsewhere || len(ticks) > 0 && ticks[0].Seq == after.Tick && ticks[0].Epoch == after.Epoch {
			return ticks, err
		}
	}
	ticks, _, err := s.Ticks(ctx, after.Reached(), store.Seen{}, once)
	if err == nil && after.Index > 0 && len(ticks) > 0 {
		return nil, fmt.Errorf("tick %d arrived while it was read: try again", after.Tick)
	}
	return ticks, err
}

// readTicks reads ticks in order, up to a bounded size, and at least a part of the first. prior is the epoch of the tick
// before.
func (l *Log) readTicks(ctx context.Context, prior int64, ticks []store.Tick) ([]*Part, error) {
	n, count, bytes := 0, 0, int64(0)
	for n < len(ticks) && n < ticksRead && count+int(ticks[n].Count) <= rowsRead && bytes+ticks[n].Bytes <= bytesRead {
		count += int(ticks[n].Count)
		bytes += ticks[n].Bytes
		n++
	}
	if n == 0 {
		return l.readLong(ctx, Position{Epoch: prior, Tick: ticks[0].Seq}, ticks[0])
	}
	all := [][]store.Message{ticks[0].Messages}
	var err error
	if all[0] == nil {
		all, err = l.read.ReadTicks(ctx, ticks[:n], rowsRead)
	}
	if err != nil && l.lags(err) {
		sleep.For(ctx, lagPause)
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, l.unread(err)
	}
	parts := make([]*Part, n)
	for i, t := range ticks[:n] {
		if len(all[i]) != int(t.Count) {
			return nil, damaged(t, int32(len(all[i])))
		}
		parts[i] = &Part{Tick: t.Seq, Epoch: t.Epoch, Prior: prior, At: t.At, First: 1, End: true}
		new(reader).add(parts[i], all[i])
		prior = t.Epoch
	}
	return parts, nil
}

// readLong reads a part of a tick from the position on. Unless it continues an earlier part, it starts with the tick's first
// message, because earlier messages decide which later ones are duplicates.
func (l *Log) readLong(ctx context.Context, after Position, tick store.Tick) ([]*Part, error) {
	r := l.takeLong(after)
	part := &Part{Tick: tick.Seq, Epoch: tick.Epoch, Prior: after.Epoch, At: tick.At, First: r.index + 1}
	for !part.End {
		messages, err := l.read.ReadTick(ctx, tick, r.lastID, rowsRead)
		if err != nil && l.lags(err) {
			sleep.For(ctx, lagPause)
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, l.unread(err)
		}
		if len(messages) == 0 && r.index < tick.Count {
			return nil, damaged(tick, r.index)
		}
		if r.index <= after.Index {
			part.Messages, part.First = nil, r.index+1
		}
		r.add(part, messages)
		part.End = r.index >= tick.Count
		if r.index > after.Index {
			break
		}
	}
	if !part.End {
		l.keepLong(part.After(), r)
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
	return &reader{seen: map[identity]struct{}{}}
}

func (l *Log) keepLong(at Position, r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.long) >= longKept {
		clear(l.long) // those readers start over
	}
	l.long[at] = r
}

// reader turns a tick's rows into messages and drops duplicates within a transaction.
type reader struct {
	index  int32 // of the last row
	lastID int64
	seen   map[identity]struct{} // nil: not needed so far
}

// identity is a hash of a message's transaction, channel and payload.
type identity [sha256.Size]byte

// add appends the rows' messages to a part.
func (r *reader) add(part *Part, rows []store.Message) {
	rowsOf := map[int64]int{}
	if r.seen == nil {
		for _, m := range rows {
			rowsOf[m.XID]++
		}
	}
	part.Messages = slices.Grow(part.Messages, len(rows))
	var buffer []byte
	for _, m := range rows {
		r.index++
		r.lastID = m.ID
		if !m.Keep && (r.seen != nil || rowsOf[m.XID] > 1) {
			var id identity
			id, buffer = identify(m, buffer)
			if _, ok := r.seen[id]; ok {
				continue
			}
			if r.seen == nil {
				r.seen = make(map[identity]struct{}, len(rows))
			}
			r.seen[id] = struct{}{}
		}
		part.Messages = append(part.Messages, &Message{
			Position: Position{Epoch: part.Epoch, Tick: part.Tick, Index: r.index}, Channel: m.Channel, Payload: m.Payload, Binary: m.Binary,
		})
	}
	part.Last = r.index
}

// identify returns a message's identity, and the buffer that it used, for the next call.
func identify(m store.Message, buffer []byte) (identity, []byte) {
	buffer = strconv.AppendInt(buffer[:0], m.XID, 10)
	buffer = strconv.AppendInt(append(buffer, ' '), int64(len(m.Channel)), 10)
	buffer = strconv.AppendBool(append(buffer, ' '), m.Binary)
	buffer = append(append(buffer, ' '), m.Channel...)
	buffer = append(buffer, m.Payload...)
	return sha256.Sum256(buffer), buffer
}

// lags reports whether the error means that a standby lacks a tick which the primary has.
func (l *Log) lags(err error) bool { return l.read != l.primary && store.IsBadArgument(err) }

// unread explains why a tick could not be read. If the tick's epoch has changed since it was found, that says nothing about the position
// yet: the next poll does.
func (l *Log) unread(err error) error {
	if _, elsewhere := store.NotOfThisLog(err); elsewhere {
		return fmt.Errorf("read ticks: the log has changed since they were found: %w", err)
	}
	return l.explain("read ticks", err)
}

// explain converts the database's errors for truncated or foreign history into TruncatedError and SetBackError.
func (l *Log) explain(what string, err error) error {
	if last, ok := store.TruncatedUpTo(err); ok {
		return &TruncatedError{From: Behind(last)}
	}
	if from, ok := store.NotOfThisLog(err); ok {
		return &SetBackError{To: Behind(from)}
	}
	return fmt.Errorf("%s: %w", what, err)
}
