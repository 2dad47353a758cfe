package cluster

import (
	"encoding/binary"
	"flag"
	"fmt"
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
