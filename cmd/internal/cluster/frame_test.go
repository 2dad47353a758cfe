package cluster

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// FuzzFrames: no frame makes a hub panic.
func FuzzFrames(f *testing.F) {
	h := &head{tick: 7, epoch: 5, prior: 4, cut: 1, first: 1, last: 3, end: true}
	h.filled.add(3)
	h.contents[3] = content{1, 1}
	f.Add(h.append(newFrame(kindHead, ident{1}, 64)))
	f.Add(beat{role: Reading, at: hub.Position{Tick: 3, Index: 4}, name: "n"}.append(newFrame(kindBeat, ident{1}, 64)))
	m := &hub.Message{Position: hub.Position{Tick: 7, Index: 1}, Channel: "c", Payload: []byte("p")}
	f.Add(data{at: h.from(), bucket: 3, bytes: appendMessage(nil, m)}.append(newFrame(kindData, ident{1}, 64)))
	f.Add(appendDraft(newFrame(kindRelay, ident{1}, 64), hub.Draft{Channel: "c"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Cluster{log: logger(t), inbox: newInbox(), peers: map[ident]peer{}, news: make(chan struct{}, 1), beats: make(chan struct{}, 1),
			relayed: make(chan hub.Draft, 1), now: time.Now, draw: rand.N[time.Duration]}
		c.interest.wanted = everything()
		_ = c.takeFrame(b, time.Now())
		for at := range c.inbox.parts {
			c.take(at)
		}
		_, _ = readMessages(nil, b, hub.Position{}, 1000)
	})
}

func everything() (all set) {
	all.addFilter(hub.Pattern(">"))
	return all
}

// TestPatternsWantTheBucketsOfAllTheirChannels: all channels that a filter matches are in the filter's buckets, and a pattern that begins with a
// word needs only 16 buckets.
func TestPatternsWantTheBucketsOfAllTheirChannels(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(rand.Uint64(), 1))
	words := []string{"a", "b", "orders", "7", ""}
	for range 20000 {
		channel := words[r.IntN(len(words))]
		for range r.IntN(3) {
			channel += "." + words[r.IntN(len(words))]
		}
		pattern := []string{"*", ">", "a", "orders", "b"}[r.IntN(5)]
		if pattern != ">" {
			pattern += []string{"", ".*", ".>", ".*.7", ".a.>"}[r.IntN(5)]
		}
		filter, err := hub.ParseFilter(pattern)
		if err != nil {
			t.Fatal(err)
		}
		var of set
		of.addFilter(filter)
		if filter.Match(channel) && !of.has(bucketOf(channel)) {
			t.Fatalf("%q matches %q, which is in bucket %d", pattern, channel, bucketOf(channel))
		}
	}
	var orders set
	orders.addFilter(hub.Pattern("orders.>"))
	n := 0
	orders.each(func(byte) { n++ })
	if n != 16 {
		t.Errorf("orders.> wants %d buckets", n)
	}
}

// TestBucketsAreFilledEvenly: typical channel names are distributed evenly over the buckets.
func TestBucketsAreFilledEvenly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		format string
		spread int
	}{{"user%d", 256}, {"user.%d", 16}, {"%d", 256}, {"tenant%d.orders", 256}} {
		var counts [buckets]int
		const each = 100
		for i := range c.spread * each {
			counts[bucketOf(fmt.Sprintf(c.format, i))]++
		}
		for b, n := range counts {
			if n > 2*each {
				t.Errorf("%s: bucket %d has %d of %d channels", c.format, b, n, c.spread*each)
			}
		}
	}
}
