package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/simulation"
	"github.com/weir-pg/weir/internal/hub"
)

var (
	seedFlag    = flag.String("seed", "1,2,3", "seeds of the fleets; random: a new one")
	longFlag    = flag.Duration("long", 0, "how long fleets are simulated, after those of the given seeds with those that follow the last; 0: only these")
	hubsFlag    = flag.Int("hubs", 20, "how many hubs are simulated")
	minutesFlag = flag.Float64("minutes", 2, "for how long by their own clocks, while everything fails")
)

// rule is one without which a promise is broken: a run may leave it out.
type rule string

const (
	ruleFallBack rule = "a hub reads from the database what NATS has not delivered"
	ruleFlight   rule = "a subscriber waits for the parts that were taken without its channels"
	ruleCovers   rule = "a part says which channels it has"
	ruleSilence  rule = "a hub that hears no reader reads for itself"
	ruleStuck    rule = "a reader whose database does not answer falls silent"
	ruleSubject  rule = "a hub that counts a channel gets its messages, or reads them"
)

// fleet is a database, a NATS, and hubs on both.
type fleet struct {
	*simulation.World
	without  rule
	log      []*hub.Part
	of       map[string][]hub.Position // of each channel's messages
	waiting  []func()                  // calls that wait for the next tick
	nodes    []*simHub
	split    time.Duration // until when NATS is in two parts
	lossy    time.Duration // until when it loses much
	calm     bool
	frames   int64 // delivered
	channels int
}

// simHub is a hub: a Cluster, whose functions are called by events, and what package hub does with it.
type simHub struct {
	f     *fleet
	n     int
	clock simulation.Clock
	nats  simulation.Link
	base  simulation.Link

	up     bool
	life   int
	asleep time.Duration
	hangs  bool          // a database that is cut off does not answer; else it refuses
	well   time.Duration // since when nothing was the matter
	out    time.Duration // when the newest frame that it has sent is at NATS: they keep their order
	back   time.Duration // when the newest frame for it arrives

	c       *Cluster
	a       *announcer
	at      hub.Position
	known   bool // at is
	turns   turns
	waits   int64 // the wait under way
	waiting bool
	buckets set // that NATS passes on to it
	ring    []*hub.Part
	subs    []*sub
	landing []func() // what is to be done when the parts under way are dispatched
}

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

func (f *fleet) off(r rule) bool { return f.without == r }

const epochOfLog = 4711

func newFleet(seed uint64, hubs int, without rule) *fleet {
	f := &fleet{World: simulation.New(seed), without: without, of: map[string][]hub.Position{}, channels: 20 + hubs}
	for n := range hubs {
		d := &simHub{f: f, n: n, clock: f.Clock()}
		d.nats = simulation.Link{Delay: f.Between(50*time.Microsecond, time.Millisecond), Spread: 200 * time.Microsecond}
		d.base = simulation.Link{Delay: f.Between(100*time.Microsecond, time.Millisecond), Spread: 300 * time.Microsecond}
		f.nodes = append(f.nodes, d)
		d.start()
	}
	for n := range hubs * 3 {
		s := &sub{n: n, last: map[string]int{}}
		for range 1 + f.IntN(2) {
			s.filters = append(s.filters, hub.Channel(f.channel()))
		}
		if f.Chance(0.02) {
			s.filters = []hub.Filter{hub.Pattern("c.>")}
		}
		f.After(f.Between(0, 20*time.Second), func() { f.moves(s) })
	}
	f.After(time.Second, f.publishes)
	f.After(time.Second, f.checks)
	f.fails()
	return f
}

func (f *fleet) channel() string { return fmt.Sprintf("c.%d", f.IntN(f.channels)) }

// publishes cuts a tick.
func (f *fleet) publishes() {
	tick := int64(len(f.log) + 1)
	p := &hub.Part{Tick: tick, Epoch: epochOfLog, Prior: epochOfLog, At: time.UnixMicro(int64(f.Now() / time.Microsecond)), First: 1, End: true}
	for i := range int32(1 + f.IntN(6)) {
		m := &hub.Message{Position: hub.Position{Epoch: epochOfLog, Tick: tick, Index: i + 1}, Channel: f.channel()}
		f.of[m.Channel] = append(f.of[m.Channel], m.Position)
		m.Payload = binary.BigEndian.AppendUint64(nil, uint64(len(f.of[m.Channel])))
		p.Messages = append(p.Messages, m)
		p.Last = i + 1
	}
	f.log = append(f.log, p)
	f.Mark(tick)
	waiting := f.waiting
	f.waiting = nil
	for _, do := range waiting {
		do()
	}
	if !f.calm {
		f.After(f.Between(20*time.Millisecond, 300*time.Millisecond), f.publishes)
	}
}

// read returns what the log has after a position; every caller gets parts of its own.
func (f *fleet) read(after hub.Position) (parts []*hub.Part) {
	for i := max(after.Tick-1, 0); i < int64(len(f.log)) && len(parts) < 100; i++ {
		p := *f.log[i]
		parts = append(parts, &p)
	}
	return parts
}

func (f *fleet) newest() hub.Position {
	if len(f.log) == 0 {
		return hub.Position{Epoch: epochOfLog, Tick: 1}
	}
	return f.log[len(f.log)-1].After()
}

// about names the hub in notes.
func (d *simHub) about() int64 { return 1e9 + int64(d.n) }

func (d *simHub) now() time.Time { return d.clock.Read(d.f.Now()) }

// start begins another life of the hub.
func (d *simHub) start() {
	f := d.f
	d.life++
	d.up, d.asleep, d.known, d.waiting, d.ring, d.subs, d.landing, d.buckets, d.well = true, 0, false, false, nil, nil, nil, set{}, max(d.well, f.Now())
	c := &Cluster{
		log: slog.New(slog.DiscardHandler), name: fmt.Sprint("hub ", d.n), subjects: subjectsOf("simulated"), now: d.now, largest: func() int64 { return 0 },
		outbox: make(chan *hub.Part, outboxQueue), beats: make(chan struct{}, 1), news: make(chan struct{}, 1), relayed: make(chan hub.Draft, 1), closing: make(chan struct{}),
		peers: map[ident]peer{}, inbox: newInbox(), candidate: d.now().Add(silence + candidacy),
	}
	c.draw = func(below time.Duration) time.Duration { return time.Duration(f.Int64N(int64(below))) }
	c.publish = func(subject string, frame []byte) error { d.sends(subject, frame); return nil }
	binary.BigEndian.PutUint64(c.id[:], f.Uint64())
	d.c, d.a = c, &announcer{Cluster: c}
	d.later(f.Between(0, 500*time.Millisecond), func() { c.setConnected(true) })
	d.later(f.Between(0, 100*time.Millisecond), d.ticks)
	d.later(time.Millisecond, d.begin)
}

// kill ends the hub; its subscribers go to others.
func (d *simHub) kill() {
	d.f.Note(d.about(), "hub %d is killed", d.n)
	d.up = false
	d.life++
	for _, s := range d.subs {
		d.f.leaves(s)
	}
	d.subs = nil
}

func (d *simHub) receive(at time.Duration, do func()) {
	life := d.life
	d.f.At(at, func() { d.run(life, do) })
}

func (d *simHub) run(life int, do func()) {
	switch {
	case d.life != life:
	case d.f.Now() < d.asleep:
		d.f.At(d.asleep, func() { d.run(life, do) })
	default:
		do()
		d.after()
	}
}

func (d *simHub) later(w time.Duration, do func()) { d.receive(d.f.Now()+d.clock.Lasts(w), do) }

// after is what goroutines of the hub would be woken for.
func (d *simHub) after() {
	for len(d.c.outbox) > 0 {
		d.a.sendPart(<-d.c.outbox)
	}
	if len(d.c.beats) > 0 {
		<-d.c.beats
		d.a.beat()
	}
	if d.waiting && len(d.c.news) > 0 {
		<-d.c.news
		d.waiting = false
		d.turn()
	}
}

// ticks is the announcer's and the receiver's ticker.
func (d *simHub) ticks() {
	if d.a.due(d.now()) || d.f.off(ruleStuck) && d.c.role == Reading {
		d.a.beat()
	}
	if d.f.IntN(10) == 0 {
		d.c.forget(d.now())
	}
	d.later(beatEvery, d.ticks)
}

// connected reports whether frames pass between the hub and NATS.
func (d *simHub) connected() bool { return d.up && !d.nats.IsCut(d.f.Now()) && d.c.connected }

// sends passes a frame to the hubs that have subscribed to its subject. NATS loses some of them.
func (d *simHub) sends(subject string, frame []byte) {
	f := d.f
	if !d.connected() {
		return
	}
	bucket := -1
	if _, number, found := strings.Cut(subject, ".bucket."); found {
		_, _ = fmt.Sscan(number, &bucket)
	}
	d.out = max(f.Now()+d.nats.Takes(f.World), d.out+1)
	for _, to := range f.nodes {
		if to == d || !to.connected() || bucket >= 0 && !to.buckets.has(byte(bucket)) || f.Now() < f.split && (to.n+d.n)%2 == 1 {
			continue
		}
		if f.Chance(0.0003) || f.Now() < f.lossy && f.Chance(0.1) {
			continue
		}
		f.frames++
		to.back = max(d.out+to.nats.Takes(f.World), to.back+1)
		to.receive(to.back, func() {
			if !to.nats.IsCut(f.Now()) {
				_ = to.c.takeFrame(frame, to.now())
			}
		})
	}
}

var errSimulated = errors.New("the database can't be reached")

// ask has the database do something, which calls its argument with the answer when it has one.
func (d *simHub) ask(do func(answer func()), then func(err error)) {
	f, over := d.f, false
	end := func(err error) {
		if !over {
			over = true
			then(err)
		}
	}
	if d.base.IsCut(f.Now()) {
		wait := 10 * time.Millisecond
		if d.hangs {
			wait = 5 * time.Second
		}
		d.later(wait, func() { end(errSimulated) })
		return
	}
	life := d.life
	f.At(f.Arrives(&d.base), func() {
		do(func() {
			switch {
			case d.life != life:
			case d.base.IsCut(f.Now()):
				d.later(5*time.Second, func() { end(errSimulated) })
			default:
				d.receive(f.Arrives(&d.base), func() { end(nil) })
			}
		})
	})
}

// begin is the beginning of hub.Run.
func (d *simHub) begin() {
	var newest hub.Position
	d.ask(func(answer func()) { newest = d.f.newest(); answer() }, func(err error) {
		if err != nil {
			d.later(retry, d.begin)
			return
		}
		d.at, d.known = newest, true
		d.next()
	})
}

const retry = 200 * time.Millisecond

// next is a call of Next.
func (d *simHub) next() {
	d.c.enter(context.Background(), d.at)
	landing := d.landing
	d.landing = nil
	for _, do := range landing {
		do()
	}
	d.turns = turns{after: d.at, until: d.now().Add(nextAtMost)}
	d.turn()
}

func (d *simHub) turn() {
	if d.f.off(ruleSilence) && d.c.role == Following {
		d.c.heard = d.now()
	}
	switch do, parts, wait := d.c.turn(&d.turns); do {
	case returns:
		d.got(parts)
	case polls:
		d.poll()
	case fallsBack:
		if d.f.off(ruleFallBack) {
			d.rests(missing)
			return
		}
		d.fallsBack()
	case waits:
		d.rests(wait)
	}
}

func (d *simHub) rests(wait time.Duration) {
	d.waits++
	id := d.waits
	d.waiting = true
	d.later(wait, func() {
		if d.waiting && d.waits == id {
			d.waiting = false
			d.turn()
		}
	})
}

// poll is Cluster.poll: the database waits for a tick for a short time.
func (d *simHub) poll() {
	var parts []*hub.Part
	d.ask(func(answer func()) {
		over := false
		look := func() {
			if !over {
				over = true
				parts = d.f.read(d.at)
				answer()
			}
		}
		if d.f.read(d.at) != nil {
			look()
			return
		}
		d.f.waiting = append(d.f.waiting, look)
		d.f.After(200*time.Millisecond, look)
	}, func(err error) {
		parts, err := d.c.polled(parts, err)
		if err != nil {
			d.later(retry, d.next)
			return
		}
		d.got(parts)
	})
}

// fallsBack is Cluster.fallBack.
func (d *simHub) fallsBack() {
	var parts []*hub.Part
	d.ask(func(answer func()) { parts = d.f.read(d.at); answer() }, func(err error) {
		if err != nil {
			d.c.fellBack(nil)
			d.later(retry, d.next)
			return
		}
		d.c.fellBack(parts)
		if len(parts) > 0 {
			d.got(parts)
			return
		}
		d.turns.expected = d.now()
		d.turn()
	})
}

// got dispatches parts a moment after Next has returned them.
func (d *simHub) got(parts []*hub.Part) {
	d.later(d.f.Between(0, 20*time.Millisecond), func() {
		for _, p := range parts {
			d.dispatch(p)
		}
		d.next()
	})
}

func (d *simHub) dispatch(p *hub.Part) {
	if p.Before() != d.at {
		d.f.Break([]int64{d.about()}, "hub %d is at %s, and gets the part at %s", d.n, d.at, p.Before())
		return
	}
	d.at = p.After()
	d.ring = append(d.ring, p)
	if len(d.ring) > 100 {
		d.ring = slices.Delete(d.ring, 0, 50)
	}
	for _, s := range d.subs {
		if s.joined {
			s.deliver(d, p)
		}
	}
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

// some lets something happen about once in so long to each of the hubs.
func (f *fleet) some(once time.Duration, do func(d *simHub)) {
	every := once / time.Duration(len(f.nodes))
	var again func()
	again = func() {
		if f.calm {
			return
		}
		do(f.nodes[f.IntN(len(f.nodes))])
		f.After(time.Duration(f.ExpFloat64()*float64(every)), again)
	}
	f.After(time.Duration(f.ExpFloat64()*float64(every)), again)
}

// fails plans what fails.
func (f *fleet) fails() {
	kill := func(d *simHub) {
		if d.up {
			d.kill()
			f.After(f.Between(0, 10*time.Second), func() {
				if !d.up {
					d.start()
				}
			})
		}
	}
	f.some(3*time.Minute, kill)
	f.some(4*time.Minute, func(d *simHub) {
		f.Note(d.about(), "hub %d is suspended", d.n)
		d.asleep = f.Now() + f.Between(200*time.Millisecond, 5*time.Second)
		d.well = d.asleep
	})
	f.some(3*time.Minute, func(d *simHub) {
		w := f.Between(time.Second, 20*time.Second)
		f.Note(d.about(), "hub %d is cut off from the database for %s", d.n, w)
		d.hangs = f.Chance(0.5)
		d.base.Cut(f.Now() + w)
		d.well = f.Now() + w
	})
	f.some(2*time.Minute, func(d *simHub) {
		if d.up && !d.nats.IsCut(f.Now()) {
			d.loses(f.Between(100*time.Millisecond, 15*time.Second))
		}
	})
	f.some(2*time.Minute, func(d *simHub) {
		link, what := &d.nats, "NATS"
		if f.Chance(0.5) {
			link, what = &d.base, "the database"
		}
		w := f.Between(time.Second, 20*time.Second)
		f.Note(d.about(), "hub %d has a slow link to %s for %s", d.n, what, w)
		link.Slow(f.Now()+w, f.Between(50*time.Millisecond, 400*time.Millisecond))
		d.well = max(d.well, f.Now()+w)
	})
	f.some(10*time.Second, func(d *simHub) { // subscribers come and go
		if len(d.subs) > 0 {
			s := d.subs[f.IntN(len(d.subs))]
			d.subs = slices.DeleteFunc(d.subs, func(other *sub) bool { return other == s })
			f.leaves(s)
		}
	})
	var whole func()
	whole = func() {
		if f.calm {
			return
		}
		switch f.IntN(4) {
		case 0:
			f.split = f.Now() + f.Between(time.Second, 10*time.Second)
		case 1:
			f.lossy = f.Now() + f.Between(time.Second, 10*time.Second)
		case 2:
			w := f.Between(500*time.Millisecond, 8*time.Second)
			for _, d := range f.nodes {
				if d.up && !d.nats.IsCut(f.Now()) {
					d.loses(w)
				}
			}
		default:
			for _, d := range f.nodes {
				if d.up && d.c.role == Reading {
					kill(d)
				}
			}
		}
		f.After(f.Between(5*time.Second, 25*time.Second), whole)
	}
	f.After(f.Between(5*time.Second, 25*time.Second), whole)
}

// loses cuts a hub off from NATS, which it notices when its pings are not answered, and when it can connect again.
func (d *simHub) loses(w time.Duration) {
	f := d.f
	f.Note(d.about(), "hub %d is cut off from NATS for %s", d.n, w)
	d.nats.Cut(f.Now() + w)
	if f.Chance(0.5) || w > 2*pingEvery {
		d.later(min(w, f.Between(0, 2*pingEvery)), func() {
			d.c.setConnected(false)
			d.receive(f.Now()+w+f.Between(0, 2*redialEvery), func() { d.c.setConnected(true) })
		})
	}
}

// checks looks for hubs that are behind though nothing is the matter with them.
func (f *fleet) checks() {
	const long = 4 * time.Second // at most: a reader that hangs, a hub that becomes the reader, and a pause after an error
	for _, d := range f.nodes {
		if !d.up || d.base.IsCut(f.Now()) || d.well > f.Now()-5*long {
			continue
		}
		if d.at.Tick-1 < int64(len(f.log)) {
			behind := f.Now() - time.Duration(f.log[max(d.at.Tick-1, 0)].At.UnixMicro())*time.Microsecond
			if behind > long {
				f.Break([]int64{d.about()}, "hub %d, which is %s, is behind by %s", d.n, d.c.role, behind.Round(time.Millisecond))
				return
			}
		}
	}
	f.After(time.Second, f.checks)
}

// run lets everything fail for a while, and then nothing: every subscriber must get all.
func (f *fleet) run(fails time.Duration) *simulation.Broken {
	f.Run(fails)
	f.calm, f.split, f.lossy = true, 0, 0
	for _, d := range f.nodes {
		d.base.Heal()
		d.nats.Heal()
		if !d.up {
			d.start()
		}
	}
	f.Run(fails + 40*time.Second)
	if f.Err() != nil {
		return f.Err()
	}
	readers := 0
	for _, d := range f.nodes {
		if d.c.role == Reading {
			readers++
		}
		if d.at != f.newest() {
			f.Break([]int64{d.about()}, "hub %d stays at %s of %s, as %s", d.n, d.at, f.newest(), d.c.role)
		}
		for _, s := range d.subs {
			for n := range f.channels {
				channel := fmt.Sprintf("c.%d", n)
				all := f.of[channel]
				if s.joined && slices.ContainsFunc(s.filters, func(x hub.Filter) bool { return x.Match(channel) }) && s.last[channel] != len(all) {
					f.Break([]int64{d.about(), int64(s.n + 1)}, "subscriber %d at hub %d has got %d messages of %d of channel %s", s.n, d.n, s.last[channel], len(all), channel)
				}
			}
			if !s.joined {
				f.Break([]int64{d.about(), int64(s.n + 1)}, "subscriber %d has not caught up at hub %d", s.n, d.n)
			}
		}
	}
	if readers != 1 {
		f.Break(nil, "%d hubs read for all", readers)
	}
	return f.Err()
}

func explain(seed uint64, hubs int, without rule, fails time.Duration, first *fleet, broken *simulation.Broken) string {
	again := newFleet(seed, hubs, without)
	again.Follow(broken.About)
	if err := again.run(fails); err == nil || err.Text != broken.Text || again.Hash() != first.Hash() {
		return fmt.Sprintf("and the same seed leads to another end: %v", err)
	}
	return again.Trace()
}

// TestHubsWhileEverythingFails simulates hubs that share ticks over NATS, in virtual time: hubs are killed and suspended, NATS loses frames, is split, and goes away, and so does the database for
// some. Each subscriber gets each message once, in order, at whatever hubs it resumes, no hub that can reach the database stays behind, and in the end one hub reads for all.
func TestHubsWhileEverythingFails(t *testing.T) {
	t.Parallel()
	seeds, err := simulation.Seeds(*seedFlag)
	if err != nil {
		t.Fatal(err)
	}
	fails := time.Duration(*minutesFlag * float64(time.Minute))
	for begin := time.Now(); len(seeds) > 0; seeds = seeds[1:] {
		seed := seeds[0]
		t.Logf("reproduce with: go test ./cmd/internal/cluster -run '^%s$' -seed %d -hubs %d -minutes %g", t.Name(), seed, *hubsFlag, *minutesFlag)
		from := time.Now()
		f := newFleet(seed, *hubsFlag, "")
		if broken := f.run(fails); broken != nil {
			t.Fatalf("%v\n%s", broken, explain(seed, *hubsFlag, "", fails, f, broken))
		}
		t.Logf("%d hubs, %.0f s of their time: %d ticks, %d frames delivered, %d events in %.1f s", *hubsFlag, f.Now().Seconds(), len(f.log), f.frames, f.Events(), time.Since(from).Seconds())
		if len(seeds) == 1 && time.Since(begin) < *longFlag {
			seeds = append(seeds, seed+1)
		}
	}
}

// TestASeedReproducesAFleet: what is found can be looked at again.
func TestASeedReproducesAFleet(t *testing.T) {
	t.Parallel()
	run := func() (hash uint64, frames int64) {
		f := newFleet(7, 20, "")
		if broken := f.run(time.Minute); broken != nil {
			t.Error(broken)
		}
		return f.Hash(), f.frames
	}
	hash, frames := run()
	if again, framesAgain := run(); again != hash || framesAgain != frames {
		t.Errorf("%x with %d frames, and %x with %d", hash, frames, again, framesAgain)
	}
}

// TestEachRuleOfHubsIsNeeded: without each of them a promise is broken. It shows how: go test -run EachRule -v.
func TestEachRuleOfHubsIsNeeded(t *testing.T) {
	t.Parallel()
	for without, breaks := range map[rule]string{
		ruleFallBack: "behind",
		ruleFlight:   "was to come",
		ruleCovers:   "was to come",
		ruleSilence:  "behind",
		ruleStuck:    "behind",
		ruleSubject:  "was to come",
	} {
		t.Run(string(without), func(t *testing.T) {
			t.Parallel()
			const hubs, fails = 6, 2 * time.Minute
			for seed := range uint64(60) {
				f := newFleet(seed, hubs, without)
				broken := f.run(fails)
				if broken == nil {
					continue
				}
				trace := ""
				if testing.Verbose() {
					trace = explain(seed, hubs, without, fails, f, broken)
				}
				t.Logf("without the rule that %s, in the fleet of seed %d, %v\n%s", without, seed, broken, trace)
				if !strings.Contains(broken.Text, breaks) || strings.Contains(trace, "another end") {
					t.Errorf("want a promise broken by which %q", breaks)
				}
				return
			}
			t.Error("no promise is broken: either it is not needed, or the simulation does not see what it is for")
		})
	}
}
