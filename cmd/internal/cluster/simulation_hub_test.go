package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/simulation"
	"github.com/weir-pg/weir/internal/hub"
)

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
