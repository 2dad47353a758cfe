package hub

import (
	"context"
	"slices"
)

// MaxHistory is the largest number of messages that History returns.
const MaxHistory = 10000

// History is what was last published on a subscriber's new channels.
type History struct {
	Messages []*Message // in the log's order, each once
	Complete bool       // there are as many as were asked for, or the log has no older ones
	At       Position   // the subscriber's position: Messages are the new channels' up to there, at least
}

// SubscribeLast adds filters, as Subscribe does, and returns the newest messages of each, ns of them: every later message will be delivered, and none of
// these. When it returns, the subscriber is paused, whether or not there was an error, so that its client can be sent the history first: call Continue.
func (s *Subscriber) SubscribeLast(ctx context.Context, ns []int, filters ...Filter) (History, error) {
	h := s.hub
	s.hub.mu.RLock()
	words := s.words
	s.hub.mu.RUnlock()
	defer s.Pause() // see below
	if err := checkWords(words, filters); err != nil {
		return History{}, err
	}
	if err := h.untilReady(ctx); err != nil {
		return History{}, err
	}
	if err := s.Settle(ctx); err != nil {
		return History{}, err
	}
	if err := h.want(ctx, filters); err != nil {
		return History{}, err
	}
	history, err := s.joinLast(ctx, ns, filters)
	if err != nil {
		h.unwant(filters...)
	}
	return history, err
}

// lookBacks is how often a look back is repeated because the hub has meanwhile dispatched more than its memory holds.
const lookBacks = 3

// joinLast looks back, and then adds the subscriber to the index in the same step in which it completes what was found.
func (s *Subscriber) joinLast(ctx context.Context, ns []int, filters []Filter) (History, error) {
	var found *ask
	bounds := s.hub.bounds(filters)
	for times := 0; ; times++ {
		s.Pause() // what the new filters select must not be delivered before the history
		history, joined, err := s.tryJoinLast(ns, filters, bounds, found, times == s.hub.lookBacks)
		if joined || err != nil {
			return history, err
		}
		s.Continue() // its other channels don't wait for the look back
		found = newAsk(ns, filters, s.limit)
		if err := s.hub.lookBack(ctx, found); err != nil {
			return History{}, err
		}
	}
}

// tryJoinLast joins if everything that was published on the filters' channels is known: what was found earlier, and in memory since then.
// As a last resort it joins with what is known, which is then not complete.
func (s *Subscriber) tryJoinLast(ns []int, filters []Filter, bounds []int, found *ask, lastResort bool) (h History, joined bool, err error) {
	hub := s.hub
	hub.mu.Lock()
	defer hub.mu.Unlock()
	since, connects := hub.since(found, filters)
	lists := make([][]*Message, len(filters))
	looked := make([]bool, len(filters))
	h.Complete = true
	for i, f := range filters {
		if ns[i] == 0 {
			continue
		}
		var ok, complete bool
		if lists[i], complete, ok = hub.index.recall(f, ns[i]); !ok {
			if !connects && !lastResort {
				return h, false, nil
			}
			lists[i], complete = found.with(f, since, connects)
			looked[i] = connects && !found.tooLarge
		}
		h.Complete = h.Complete && complete
	}
	if err := s.attach(filters, bounds); err != nil {
		return h, false, err
	}
	for i, f := range filters {
		if looked[i] {
			hub.index.remember(f, ns[i], lists[i], found.reached(f, since))
		}
	}
	var whole bool
	h.Messages, whole = newest(lists, s.limit)
	h.Complete = h.Complete && whole
	h.At = s.reach(hub.newest)
	return h, true, nil
}

// since returns what was dispatched after a look back, if the hub's memory holds all of it. The caller holds mu.
func (h *Hub) since(found *ask, filters []Filter) (parts []*Part, connects bool) {
	if found == nil || found.gaps != h.gaps {
		return nil, false
	}
	if found.at == h.newest {
		return nil, true
	}
	return h.ring.behind(found.at, filters)
}

// newest merges lists into one, in the log's order, and keeps its newest messages if there are too many, or more than some bytes. whole reports
// that nothing was left out.
func newest(lists [][]*Message, bytes int) (all []*Message, whole bool) {
	for _, list := range lists {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b *Message) int {
		switch {
		case a.Position.Before(b.Position):
			return -1
		case b.Position.Before(a.Position):
			return 1
		}
		return 0
	})
	all = slices.CompactFunc(all, func(a, b *Message) bool { return a.Position == b.Position })
	first := len(all)
	for first > 0 && len(all)-first < MaxHistory {
		if bytes -= all[first-1].size(); bytes < 0 {
			break
		}
		first--
	}
	return all[first:], first == 0
}

// reach returns the subscriber's position. If nothing is queued for it, or being delivered, that is the hub's. The caller holds Hub.mu.
func (s *Subscriber) reach(at Position) Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.busy && len(s.queue) == 0 && !s.cutOff {
		s.delivered = later(s.delivered, later(s.at, at))
	}
	return s.delivered
}
