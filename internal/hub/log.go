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

// Log is the source that reads ticks from the database, cuts the next when it is the first to look, and logs what is published.
type Log struct {
	// ReadOnly is for a role that may subscribe and no more: ticks are those that hubs cut. Set it before the first call.
	ReadOnly bool

	primary *store.Store
	read    *store.Store // of a standby, or the primary

	handed chan *Part // ticks cut by what this process published, on their way to Next

	looking   chan looked // of the look that is under way; nil: none
	looked    time.Time   // when it, or the last, began
	handedAt  time.Time   // when Next last took what was handed over
	seen      store.Seen
	published time.Time     // when ids were last seen to move
	came      time.Time     // when the last tick came
	pace      time.Duration // until another is looked for, from then

	mu   sync.Mutex
	long map[Position]*reader // of ticks that are read in parts, by where each goes on
}

const (
	tickCall    = 200 * time.Millisecond // that one call looks for
	tickPause   = 3 * time.Millisecond   // between looks,
	flowPause   = time.Millisecond       // and while messages flow, which they do
	flowFor     = 250 * time.Millisecond // so long after a tick
	messagePace = 250 * time.Microsecond // between a tick and the next look, for each of its messages, so that few wait for nothing;
	tickPace    = 4 * time.Millisecond   // at most: what comes meanwhile shares one tick
	lookPace    = 2 * time.Millisecond   // between looks while ticks are handed over
	cutsMost    = 3                      // drafts that are cut with their publishing; more are traffic, and left to the looks
	tickCalm    = 16                     // looks before a commit alone counts, when nothing has been published for
	tickFresh   = time.Second            // so long
	rowsRead    = 10000                  // at a time; the database's ticks are no longer,
	bytesRead   = 8 << 20                // and no larger, but for single transactions
	ticksRead   = 32                     // in one round trip
	broughtMost = 100                    // messages that a tick brings along
	longKept    = 8                      // ticks being read in parts, at once
	callTimeout = 10 * time.Second       // a database that does not answer for so long is not there
	readTimeout = time.Minute
	lagPause    = 5 * time.Millisecond // until a standby that lags is asked again
)

// NewLog returns a source on the primary. read, where not nil, is a standby of it to read ticks and messages from.
func NewLog(primary, read *store.Store) *Log {
	if read == nil {
		read = primary
	}
	return &Log{primary: primary, read: read, handed: make(chan *Part, handedMost), long: map[Position]*reader{}}
}

// Newest implements Source.
func (l *Log) Newest(ctx context.Context) (Position, error) {
	newest, err := l.primary.NewestTick(ctx)
	if store.IsMoved(err) && !l.ReadOnly {
		if _, err = l.primary.RebaseMessages(ctx); err == nil {
			newest, err = l.primary.NewestTick(ctx)
		}
	}
	if err != nil {
		return Position{}, fmt.Errorf("find the newest tick: %w", err)
	}
	return behind(newest), nil
}

// Read implements Source.
func (l *Log) Read(ctx context.Context, after Position) ([]*Part, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return l.readFrom(ctx, after)
}

// readFrom reads a stretch of what is behind the position.
func (l *Log) readFrom(ctx context.Context, after Position) ([]*Part, error) {
	ticks, err := l.from(ctx, l.read, after)
	if _, elsewhere := store.NotOfThisLog(err); l.read != l.primary && (elsewhere || err == nil && len(ticks) == 0) {
		// A standby may lag, or follow another primary: it is the primary that says what is of this log.
		if _, err := l.from(ctx, l.primary, after); err != nil {
			return nil, l.explain("look for ticks", err)
		}
		if elsewhere {
			return nil, fmt.Errorf("the standby's log of messages is not the primary's: %w", err)
		}
	}
	switch {
	case err != nil:
		return nil, l.explain("look for ticks", err)
	case len(ticks) == 0:
		return nil, nil
	case after.Index > 0:
		return l.readLong(ctx, after, ticks[0])
	}
	return l.readTicks(ctx, after.Epoch, ticks)
}

// from returns the ticks in which what is behind the position lies, after a look whether it is of this log.
func (l *Log) from(ctx context.Context, s *store.Store, after Position) ([]store.Tick, error) {
	once := store.Look{Looks: 1}
	if after.Index > 0 {
		ticks, _, err := s.Ticks(ctx, store.Place{Tick: after.Tick - 1, Epoch: anyEpoch}, store.Seen{}, once)
		if err != nil || len(ticks) > 0 && ticks[0].Seq == after.Tick && ticks[0].Epoch == after.Epoch {
			return ticks, err
		}
	}
	ticks, _, err := s.Ticks(ctx, after.reached(), store.Seen{}, once)
	if err == nil && after.Index > 0 && len(ticks) > 0 {
		return nil, fmt.Errorf("tick %d has come while it was looked for", after.Tick)
	}
	return ticks, err
}

// readTicks reads ticks in order, as many as make a stretch of bounded size; at least a part of the first. prior is the epoch of the tick
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

// readLong reads a stretch of a tick from the position on. Where it does not go on from a stretch before, it begins with the first
// message, for what was published before decides what repeats.
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
	part.Messages = slices.Grow(part.Messages, len(rows))
	var room []byte
	for _, m := range rows {
		r.index++
		r.lastID = m.ID
		if !m.Keep && (r.had != nil || rowsOf[m.XID] > 1) {
			var id identity
			id, room = identify(m, room)
			if _, ok := r.had[id]; ok {
				continue
			}
			if r.had == nil {
				r.had = make(map[identity]struct{}, len(rows))
			}
			r.had[id] = struct{}{}
		}
		part.Messages = append(part.Messages, &Message{
			Position: Position{Epoch: part.Epoch, Tick: part.Tick, Index: r.index}, Channel: m.Channel, Payload: m.Payload, Binary: m.Binary,
		})
	}
	part.Last = r.index
}

// identify gives the identity of a message. What it makes of it lies in room, which it returns to be used again.
func identify(m store.Message, room []byte) (identity, []byte) {
	room = strconv.AppendInt(room[:0], m.XID, 10)
	room = strconv.AppendInt(append(room, ' '), int64(len(m.Channel)), 10)
	room = strconv.AppendBool(append(room, ' '), m.Binary)
	room = append(append(room, ' '), m.Channel...)
	room = append(room, m.Payload...)
	return sha256.Sum256(room), room
}

// lags tells whether a standby has not got a tick yet that the primary has.
func (l *Log) lags(err error) bool { return l.read != l.primary && store.IsBadArgument(err) }

// unread explains why a tick could not be read. That it is of another epoch than when it was looked for says nothing of the position
// yet: the next look does.
func (l *Log) unread(err error) error {
	if _, elsewhere := store.NotOfThisLog(err); elsewhere {
		return fmt.Errorf("read ticks: the log has changed since they were looked for: %w", err)
	}
	return l.explain("read ticks", err)
}

// explain turns the database's words for history that is gone, or not this one, into ours.
func (l *Log) explain(what string, err error) error {
	if last, ok := store.TruncatedUpTo(err); ok {
		return &TruncatedError{From: behind(last)}
	}
	if from, ok := store.NotOfThisLog(err); ok {
		return &SetBackError{To: behind(from)}
	}
	return fmt.Errorf("%s: %w", what, err)
}
