package cluster

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// sub is a subscriber, which resumes at any hub.
type sub struct {
	n       int
	filters []hub.Filter
	at      hub.Position
	started bool // its position is known
	node    *simHub
	wants   bool // it is counted there
	joined  bool
	last    map[string]int // messages of each channel that it has got, or that were before it
}

// deliver passes a part's messages to a subscriber, which must get each of its channels' once, in order.
func (s *sub) deliver(d *simHub, p *hub.Part) {
	for _, m := range p.Messages {
		if !slices.ContainsFunc(s.filters, func(f hub.Filter) bool { return f.Match(m.Channel) }) || !s.at.Before(m.Position) {
			continue
		}
		got := int(binary.BigEndian.Uint64(m.Payload))
		if want := s.last[m.Channel] + 1; got != want {
			d.f.Break([]int64{d.about(), int64(s.n + 1)}, "subscriber %d at hub %d gets message %d of channel %s, and message %d was to come", s.n, d.n, got, m.Channel, want)
			return
		}
		s.last[m.Channel] = got
		s.at = m.Position
	}
	if s.at.Before(p.After()) {
		s.at = p.After()
	}
}

// leaves takes a subscriber from its hub, and lets it resume at another.
func (f *fleet) leaves(s *sub) {
	if s.wants {
		s.node.c.Unwant(s.filters)
	}
	s.node, s.joined, s.wants = nil, false, false
	f.After(f.Between(0, 2*time.Second), func() { f.moves(s) })
}

// moves lets a subscriber subscribe, or resume, at a hub.
func (f *fleet) moves(s *sub) {
	d := f.nodes[f.IntN(len(f.nodes))]
	if !d.up || !d.known || s.node != nil {
		f.After(f.Between(100*time.Millisecond, time.Second), func() {
			if s.node == nil {
				f.moves(s)
			}
		})
		return
	}
	s.node = d
	d.subs = append(d.subs, s)
	d.run(d.life, func() {
		if s.node != d {
			return
		}
		of, landing, _ := d.c.wants(s.filters)
		s.wants = true
		if f.off(ruleFlight) {
			landing = nil
		}
		subscribed := func() {
			of.each(d.buckets.add)
			join := func() { f.resumes(s, d) }
			if landing == nil {
				join()
				return
			}
			select {
			case <-landing.landed:
				join()
			default:
				d.landing = append(d.landing, join)
			}
		}
		if f.off(ruleSubject) {
			d.c.Unwant(s.filters) // it asks NATS, but counts nothing
			s.wants = false
		}
		wait := time.Duration(0)
		if d.connected() {
			wait = min(2*d.nats.Takes(f.World), subscribeAtMost)
		}
		d.later(wait, subscribed)
	})
}

// resumes is Subscriber.Resume: from memory, if it has all of its channels, or from the database, until it has caught up with its hub.
func (f *fleet) resumes(s *sub, d *simHub) {
	if s.node != d {
		return
	}
	if !s.started {
		s.started, s.at = true, d.at
		for channel, all := range f.of {
			for _, p := range all {
				if p.Before(d.at) {
					s.last[channel]++
				}
			}
		}
	}
	if !s.at.Before(d.at) {
		s.joined = true
		f.Note(int64(s.n+1), "subscriber %d joins hub %d at %s, which is at %s", s.n, d.n, s.at, d.at)
		return
	}
	behind := slices.IndexFunc(d.ring, func(p *hub.Part) bool { return s.at.Before(p.After()) })
	if behind >= 0 && !s.at.Before(d.ring[behind].Before()) && !slices.ContainsFunc(d.ring[behind:], func(p *hub.Part) bool {
		return p.Covers != nil && !p.Covers.Covers(s.filters) && !f.off(ruleCovers)
	}) {
		for _, p := range slices.Clone(d.ring[behind:]) {
			s.deliver(d, p)
		}
		f.resumes(s, d)
		return
	}
	var parts []*hub.Part
	d.ask(func(answer func()) { parts = f.read(s.at); answer() }, func(err error) {
		if s.node != d {
			return
		}
		if err != nil || len(parts) == 0 {
			d.later(retry, func() { f.resumes(s, d) })
			return
		}
		for _, p := range parts {
			s.deliver(d, p)
		}
		f.resumes(s, d)
	})
}
