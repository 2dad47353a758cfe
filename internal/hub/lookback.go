package hub

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Looking back finds the newest messages of some channels: first in the ring, then in the log, backwards. The log has no index by channel, because
// every publisher would pay for it. So a look back is bounded, and shared: whoever asks while one is in progress waits, and the next one serves all
// of them at once. A thousand clients that connect again cost two, not a thousand.

// Bounds of looking back in the log, beyond the ring.
const (
	lookTicks = ticksRead   // read at a time
	lookFor   = time.Second // for all that share it
	lookBytes = 64 << 20    // read from the database
	lookQueue = 20000       // asks that wait
)

// ask is a question for the newest messages of some filters.
type ask struct {
	wants    []*want
	open     int           // wants that are not satisfied
	bytes    int           // still allowed
	passed   chan struct{} // closed when a pass is over
	done     chan struct{} // closed when the ask is
	over     bool
	tooLarge bool // it ended because of bytes

	at     Position // everything was found up to here
	gaps   int      // the hub's gaps then
	before Position // only messages up to here are still to be found
}

// want is one filter of an ask.
type want struct {
	ask    *ask
	filter Filter
	n      int
	found  []*Message // the newest first
	whole  bool       // the log has no older ones
}

func newAsk(ns []int, filters []Filter, bytes int) *ask {
	a := &ask{wants: make([]*want, len(filters)), bytes: bytes, done: make(chan struct{})}
	for i, f := range filters {
		a.wants[i] = &want{ask: a, filter: f, n: ns[i]}
		if ns[i] > 0 {
			a.open++
		}
	}
	return a
}

// end ends the ask. whole means that the log has been read to its beginning.
func (a *ask) end(whole bool) {
	if a.over {
		return
	}
	a.over = true
	for _, w := range a.wants {
		w.whole = whole
	}
	close(a.done)
}

func (w *want) satisfied() bool { return w.ask.over || len(w.found) == w.n }

// add adds an older message.
func (w *want) add(m *Message) {
	a := w.ask
	if w.satisfied() || a.before.Before(m.Position) {
		return
	}
	if a.bytes -= m.size(); a.bytes < 0 {
		a.tooLarge = true
		a.end(false)
		return
	}
	if w.found = append(w.found, m); len(w.found) < w.n {
		return
	}
	if a.open--; a.open == 0 {
		a.end(false)
	}
}

// of returns the want for a filter.
func (a *ask) of(f Filter) *want {
	i := slices.IndexFunc(a.wants, func(w *want) bool { return w.filter == f })
	return a.wants[i]
}

func (a *ask) filters() []Filter {
	all := make([]Filter, len(a.wants))
	for i, w := range a.wants {
		all[i] = w.filter
	}
	return all
}

// with returns the filter's newest messages in order: those that were found, and those since. complete reports whether there are as many as were
// asked for, or no older ones exist.
func (a *ask) with(f Filter, since []*Part, connects bool) (all []*Message, complete bool) {
	if a == nil || !connects {
		return nil, false
	}
	w := a.of(f)
	all = slices.Clone(w.found)
	slices.Reverse(all)
	for _, p := range since {
		for _, m := range p.Messages {
			if a.at.Before(m.Position) && f.Match(m.Channel) {
				all = append(all, m)
			}
		}
	}
	return all[max(0, len(all)-w.n):], w.whole || len(all) >= w.n
}

// reached reports whether the log has no older messages of the filter than those that with returns.
func (a *ask) reached(f Filter, since []*Part) bool {
	all, complete := a.with(f, since, true)
	return complete && len(all) < a.of(f).n
}

// search is a pass for several asks. It is given messages from the newest to the oldest.
type search struct {
	asks     []*ask
	channels map[string][]*want
	patterns []*want
}

func newSearch(asks []*ask) *search {
	s := &search{asks: slices.Clone(asks), channels: map[string][]*want{}}
	for _, a := range asks {
		for _, w := range a.wants {
			if c, ok := w.filter.(Channel); ok {
				s.channels[string(c)] = append(s.channels[string(c)], w)
			} else {
				s.patterns = append(s.patterns, w)
			}
		}
	}
	return s
}

// over reports whether all asks have ended.
func (s *search) over() bool {
	s.asks = slices.DeleteFunc(s.asks, func(a *ask) bool { return a.over })
	return len(s.asks) == 0
}

// wanted reports whether the message may be part of an answer.
func (s *search) wanted(m *Message) bool {
	if len(s.channels[m.Channel]) > 0 {
		return true
	}
	return slices.ContainsFunc(s.patterns, func(w *want) bool { return w.filter.Match(m.Channel) })
}

func (s *search) message(m *Message) {
	if all := s.channels[m.Channel]; len(all) > 0 {
		for _, w := range all {
			w.add(m)
		}
		if all[0].satisfied() { // then the others often are, too
			s.channels[m.Channel] = slices.DeleteFunc(all, (*want).satisfied)
		}
	}
	for _, w := range s.patterns {
		if !w.satisfied() && w.filter.Match(m.Channel) {
			w.add(m)
		}
	}
}

func (s *search) messages(all []*Message) {
	for _, m := range slices.Backward(all) {
		s.message(m)
	}
}

// lookBack answers an ask, together with those that others ask at the same time.
func (h *Hub) lookBack(ctx context.Context, a *ask) error {
	if err := h.looks[inRing].join(ctx, h, a, h.lookInRing); err != nil || a.over {
		return err
	}
	return h.looks[inLog].join(ctx, h, a, h.lookInLog)
}

const (
	inRing = iota
	inLog
)

// looks are the asks that wait for the same kind of look back. Whoever asks looks for all who wait then, so nobody works for others for longer than one
// pass.
type looks struct {
	slot    chan struct{} // held by who looks
	waiting chan *ask
}

func newLooks() looks {
	return looks{slot: make(chan struct{}, 1), waiting: make(chan *ask, lookQueue)}
}

// join waits until the ask has been answered, or a pass is over.
func (l *looks) join(ctx context.Context, h *Hub, a *ask, pass func([]*ask)) error {
	a.passed = make(chan struct{})
	passed := a.passed
	select {
	case l.waiting <- a:
	default:
		return &LimitError{"too many clients are asking for history: try again later"}
	}
	select {
	case <-a.done:
		return nil
	case <-passed:
		return nil
	case <-h.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case l.slot <- struct{}{}:
	}
	defer func() { <-l.slot }()
	var batch []*ask
	for len(l.waiting) > 0 { // nobody else receives
		batch = append(batch, <-l.waiting)
	}
	if len(batch) > 0 {
		pass(batch)
	}
	for _, one := range batch {
		close(one.passed)
	}
	return nil
}

// lookInRing looks through the newest history, in memory.
func (h *Hub) lookInRing(batch []*ask) {
	h.mu.RLock()
	at, gaps := h.newest, h.gaps
	parts := slices.Clone(h.ring.parts) // they are immutable, but the ring clears what it drops
	h.mu.RUnlock()
	for _, a := range batch {
		a.at, a.before, a.gaps = at, at, gaps
	}
	if len(parts) == 0 || parts[len(parts)-1].After() != at {
		return
	}
	all := newSearch(batch)
	var covers Coverage
	for i, p := range slices.Backward(parts) {
		if i%64 == 0 && all.over() {
			return
		}
		if p.Covers != nil && p.Covers != covers { // whoever wants more than the part holds continues in the log
			covers = p.Covers
			covered := all.asks[:0:0]
			for _, a := range all.asks {
				if a.before = p.After(); covers.Covers(a.filters()) {
					covered = append(covered, a)
				}
			}
			all = newSearch(covered)
		}
		all.messages(p.Messages)
	}
	for _, a := range all.asks {
		a.before = parts[0].Before()
	}
}

// lookInLog continues in the log, backwards, until all have what they asked for, or a bound is reached.
func (h *Hub) lookInLog(batch []*ask) {
	ctx, cancel := context.WithTimeout(context.Background(), h.lookFor)
	defer cancel()
	defer func() {
		for _, a := range batch {
			a.end(false)
		}
	}()
	var top Position
	for _, a := range batch {
		top = later(top, a.before)
	}
	all := newSearch(batch)
	for left := h.lookBytes; !all.over(); {
		from := Position{Epoch: anyEpoch, Tick: max(top.Tick-lookTicks, 1)}
		messages, begins, err := h.readBetween(ctx, from, top, all, &left)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, errLooked) {
				h.log.Warn("weir: looking for history in the log failed: clients receive what is in memory", "error", err)
			}
			return
		}
		all.messages(messages)
		if top = from; begins || top.Tick <= 1 {
			for _, a := range batch {
				a.end(true)
			}
		}
	}
}

// errLooked means that a look back has read as much as it may.
var errLooked = errors.New("the look back has reached its limit")

// readBetween returns the messages between two positions that are wanted, in the log's order. begins reports that the log begins between them.
func (h *Hub) readBetween(ctx context.Context, at, to Position, all *search, left *int) (messages []*Message, begins bool, err error) {
	for at.Before(to) {
		parts, err := h.source.Read(ctx, at)
		var truncated *TruncatedError
		if errors.As(err, &truncated) {
			begins, messages, at = true, nil, truncated.From
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if len(parts) == 0 { // a standby lags
			return nil, false, errLooked
		}
		for _, p := range parts {
			if *left -= p.bytes(); *left < 0 {
				return nil, false, errLooked
			}
			for _, m := range p.Messages {
				if !to.Before(m.Position) && all.wanted(m) {
					messages = append(messages, m)
				}
			}
			at = p.After()
		}
	}
	return messages, begins, nil
}
