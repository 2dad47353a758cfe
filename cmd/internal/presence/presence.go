package presence

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/sleep"
)

// Config configures a Presence. Hub, Secret and On are required.
type Config struct {
	Hub    *hub.Hub
	Secret []byte                    // shared by all hubs of the database, and known to nobody else
	On     func(channel string) bool // whether a channel has presence
	Active func() bool               // whether any channel may have; nil: yes
	Logger *slog.Logger              // nil: slog.Default()

	Every time.Duration // how often changes are announced; 0: 250 ms
	Beat  time.Duration // how often the hub says that it lives; 0: 5 s
	Grace time.Duration // how long a user whose last connection has ended remains; 0: 2 s
}

const (
	channel    = hub.Internal + "presence"
	events     = hub.Internal + "members."
	maxUser    = 255    // bytes of a name
	maxRoom    = 10000  // users of this hub that are listed on one channel
	maxLocal   = 200000 // on all channels; others are counted
	maxHubs    = 1000
	askEvery   = time.Second // at most; the same for answers
	maxSilent  = 3           // own beats without one of the other hub
	queueBytes = 32 << 20    // of frames that have not been taken in
	publishFor = 10 * time.Second
)

// Presence knows who is on which channel. Create it with New, and call Run.
type Presence struct {
	Config
	id string // of this life of the hub

	mu      sync.Mutex
	rooms   rooms
	remotes map[string]*remote
	dirty   map[string]struct{} // channels with changes that no event has told
	told    uint64              // times that subscribers were told of changes
	emptied uint64              // the same when the last member of any channel had left, of which nothing is known since
	local   map[place]*here
	sizes   map[string]int // users listed of each channel
	more    map[string]int // users that are counted, and not listed
	counted map[place]int  // their connections; not more than there are
	leaving map[place]time.Time
	out     frame // changes to announce
	seq     int64
	number  int64 // of the last frame
	fresh   freshness
	reset   bool // all members are to be announced
	asked   bool // by another hub
	asks    bool // others are to announce theirs

	askedAt, resetAt time.Time // when this was last done
}

// here is a user on a channel at this hub.
type here struct {
	connections int
	info        json.RawMessage
}

// New returns a Presence.
func New(c Config) *Presence {
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{{&c.Every, 250 * time.Millisecond}, {&c.Beat, 5 * time.Second}, {&c.Grace, 2 * time.Second}} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &Presence{
		Config: c, id: rand.Text(), rooms: rooms{}, remotes: map[string]*remote{}, dirty: map[string]struct{}{}, local: map[place]*here{}, sizes: map[string]int{},
		more: map[string]int{}, counted: map[place]int{}, leaving: map[place]time.Time{}, reset: true, asks: true,
	}
}

// EventsOf returns the channel on which subscribers of this hub receive the events of a channel. Their payloads are whole objects for clients.
func EventsOf(of string) hub.Channel { return hub.Channel(events + of) }

// Of is the opposite of EventsOf.
func Of(filter hub.Filter) string { return strings.TrimPrefix(filter.String(), events) }

// Enter notes that a connection of a user has subscribed to a channel. It reports whether the channel has presence; then Leave must follow.
func (p *Presence) Enter(on, user string, info json.RawMessage) bool {
	if p == nil || user == "" || len(user) > maxUser || !p.On(on) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := place{on, user}
	if h := p.local[at]; h != nil {
		h.connections++
		delete(p.leaving, at)
		if !bytes.Equal(h.info, info) { // of a newer token
			h.info = info
			p.announce(entry{Channel: on, User: user, Info: info}, p.rooms.update)
		}
		return true
	}
	before := p.counted[at]
	if p.sizes[on] >= maxRoom || len(p.local) >= maxLocal {
		if p.counted[at] = before + 1; before == 0 {
			p.count(on, 1)
		}
		return true
	}
	if before > 0 { // there is room for the user now
		delete(p.counted, at)
		p.count(on, -1)
	}
	p.local[at] = &here{before + 1, info}
	p.sizes[on]++
	p.announce(entry{Channel: on, User: user, Info: info}, p.rooms.join)
	return true
}

// announce notes a change at this hub, and tells it to the others.
func (p *Presence) announce(e entry, note func(entry)) {
	note(e)
	p.dirty[e.Channel] = struct{}{}
	p.out.Users = append(p.out.Users, e)
}

// count counts users that are not listed.
func (p *Presence) count(on string, n int) {
	if p.more[on] += n; p.more[on] == 0 {
		delete(p.more, on)
	}
	p.rooms.addMore(on, n)
	p.dirty[on] = struct{}{}
	if p.out.More == nil {
		p.out.More = map[string]int{}
	}
	p.out.More[on] = p.more[on]
}

// Leave notes that a connection for which Enter returned true is no longer subscribed.
func (p *Presence) Leave(on, user string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := place{on, user}
	if n := p.counted[at]; n > 1 {
		p.counted[at] = n - 1
		return
	} else if n == 1 {
		delete(p.counted, at)
		p.count(on, -1)
		return
	}
	h := p.local[at]
	if h == nil || h.connections == 0 {
		return
	}
	if h.connections--; h.connections == 0 {
		p.leaving[at] = time.Now().Add(p.Grace) // a page that is loaded again has not left
	}
}

// List returns up to most members of a channel, by name, from the one after a name on.
func (p *Presence) List(of, after string, most int) Members {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rooms[of].list(of, after, most)
}

// Told returns how often subscribers have been told of changes.
func (p *Presence) Told() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told
}

// ToldSince reports whether subscribers may have been told of changes of a channel since Told had a value: one who began to listen then has missed some.
func (p *Presence) ToldSince(of string, told uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.rooms[of]; r != nil && r.told > 0 {
		return r.told > told
	}
	return p.emptied > told
}

// CountOf returns an event that says only how many members a channel has: whoever receives it asks again who they are.
func (p *Presence) CountOf(channel string) Event {
	return Event{Type: "presence", Channel: channel, Count: p.List(channel, "", 0).Count}
}

// Run announces members, and takes in those of other hubs, until ctx ends.
func (p *Presence) Run(ctx context.Context) {
	for ; ; sleep.For(ctx, p.Every) {
		if ctx.Err() != nil {
			return
		}
		if p.Active != nil && !p.Active() {
			continue
		}
		sub, err := p.Hub.Join(sink{p}, hub.Options{MaxBytes: queueBytes, Slow: hub.SkipAhead, Internal: true})
		if err == nil {
			err = sub.Subscribe(ctx, hub.Channel(channel))
			if err == nil {
				p.turn(ctx, sub.Position)
			}
			sub.Leave()
		}
		if err != nil && ctx.Err() == nil {
			p.Logger.Warn("weir: who is on which channel is not known now", "error", err)
		}
	}
}

// turn announces changes until ctx ends.
func (p *Presence) turn(ctx context.Context, position func() hub.Position) {
	var beat time.Time
	failed := false
	for sleep.For(ctx, p.Every) {
		p.settle()
		due := time.Since(beat) >= p.Beat
		at := position()
		frames := p.frames(due)
		for i := range frames {
			frames[i].At = at.String()
		}
		if len(frames) > 0 {
			err := p.publish(ctx, frames)
			if err != nil && ctx.Err() == nil && !failed {
				p.Logger.Warn("weir: members of channels can't be announced now", "error", err)
			}
			if failed = err != nil; failed {
				p.mu.Lock()
				p.reset = true // it is not known what has arrived
				p.mu.Unlock()
			} else if due {
				beat = time.Now()
			}
		}
		p.tell()
	}
}

// settle lets users leave whose last connection ended a while ago.
func (p *Presence) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for at, when := range p.leaving {
		if now.Before(when) {
			continue
		}
		delete(p.leaving, at)
		delete(p.local, at)
		if p.sizes[at.channel]--; p.sizes[at.channel] == 0 {
			delete(p.sizes, at.channel)
		}
		p.rooms.leave(at.channel, at.user)
		p.dirty[at.channel] = struct{}{}
		p.out.Users = append(p.out.Users, entry{Channel: at.channel, User: at.user, Left: true})
	}
}

// frames returns what is to be announced.
func (p *Presence) frames(beat bool) (all []frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.asks && now.Sub(p.askedAt) > askEvery {
		all = append(all, frame{Hello: true})
		p.asks, p.askedAt = false, now
	}
	out := p.out
	if p.reset || p.asked && now.Sub(p.resetAt) > askEvery {
		p.reset, p.asked, p.resetAt = false, false, now
		out = frame{More: p.more}
		for at, h := range p.local {
			out.Users = append(out.Users, entry{Channel: at.channel, User: at.user, Info: h.info})
		}
		all = append(all, split(out, true)...)
	} else {
		all = append(all, split(out, false)...)
	}
	p.out = frame{}
	for i := range all {
		if !all[i].Hello {
			p.seq++
		}
		all[i].Hub, all[i].Seq = p.id, p.seq
	}
	if beat {
		all = append(all, frame{Hub: p.id, Seq: p.seq, Beat: true})
	}
	for i := range all {
		p.number++
		all[i].N = p.number
	}
	return all
}

// split splits changes into frames, in their order: the same user may have left and joined again.
func split(f frame, reset bool) (all []frame) {
	var one frame
	bytes := 0
	flush := func() {
		all = append(all, one)
		one, bytes = frame{}, 0
	}
	room := func(e entry) {
		if bytes += e.size(); bytes > frameBytes {
			flush()
			bytes = e.size()
		}
	}
	for _, e := range f.Users {
		room(e)
		one.Users = append(one.Users, e)
	}
	for channel, count := range f.More {
		room(entry{Channel: channel})
		if one.More == nil {
			one.More = map[string]int{}
		}
		one.More[channel] = count
	}
	if bytes > 0 || reset {
		flush()
	}
	if reset {
		all[0].Reset, all[len(all)-1].Done = true, true
	}
	return all
}

func (p *Presence) publish(ctx context.Context, frames []frame) error {
	ctx, cancel := context.WithTimeout(ctx, publishFor)
	defer cancel()
	var drafts []hub.Draft
	for _, f := range frames {
		payload, err := sign(f, p.Secret)
		if err != nil {
			return err
		}
		drafts = append(drafts, hub.Draft{Channel: channel, Payload: payload})
	}
	for len(drafts) > 0 { // a reset of many members is several transactions
		n := min(len(drafts), 100)
		if err := p.Hub.PublishAll(ctx, drafts[:n]); err != nil {
			return err
		}
		drafts = drafts[n:]
	}
	return nil
}

// tell sends events to this hub's subscribers who asked for them.
func (p *Presence) tell() {
	type told struct {
		on    string
		event Event
	}
	var all []told
	p.mu.Lock()
	now := p.told + 1
	for on := range p.dirty {
		if r := p.rooms[on]; r != nil {
			if r.changed {
				all = append(all, told{on, r.event(on)})
				p.told, r.told = now, now // before anybody is told
			}
			if len(r.users) == 0 && r.more == 0 {
				delete(p.rooms, on)
				p.emptied = now
			}
		}
	}
	clear(p.dirty)
	p.mu.Unlock()
	for _, t := range all {
		if to := string(EventsOf(t.on)); p.Hub.Wanted(to) {
			if payload, err := json.Marshal(t.event); err == nil {
				p.Hub.Local(hub.Draft{Channel: to, Payload: payload})
			}
		}
	}
}

// sink takes in the frames of all hubs.
type sink struct{ p *Presence }

// Deliver implements hub.Sink.
func (s sink) Deliver(all []hub.Event) error {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range all {
		if e.Gap != nil {
			for _, r := range p.remotes {
				r.synced = false
			}
			p.asks = true
			p.fresh.forget()
			continue
		}
		f, ok := verify(e.Message.Payload, p.Secret)
		switch {
		case !ok:
		case f.Hub != p.id:
			if p.fresh.isNew(f) {
				p.receive(f)
			}
		case f.Beat && p.fresh.heard(f.N, e.Message.Position):
			for id, r := range p.remotes {
				if r.silent++; r.silent > maxSilent {
					p.forget(id)
				}
			}
		}
	}
	return nil
}

// Close implements hub.Sink.
func (sink) Close(error) {}
