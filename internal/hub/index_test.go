package hub

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestIndexFindsWhoMatches: whatever filters come and go, a channel's subscribers are those that have a filter that matches it.
func TestIndexFindsWhoMatches(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	words := []string{"a", "b", "", "*", ">", "longer"}
	name := func(wild bool) string {
		var all []string
		for range 1 + rng.IntN(4) {
			w := words[rng.IntN(len(words))]
			if !wild && (w == "*" || w == ">") && rng.IntN(3) > 0 {
				w = "a" // a channel may have such words too
			}
			all = append(all, w)
		}
		return strings.Join(all, ".")
	}
	x := index{channels: map[string]*members{}}
	subscribers := make([]*Subscriber, 40)
	has := make([]map[Filter]bool, len(subscribers))
	for i := range subscribers {
		subscribers[i], has[i] = &Subscriber{}, map[Filter]bool{}
	}
	for range 20_000 {
		i := rng.IntN(len(subscribers))
		s := subscribers[i]
		f, err := ParseFilter(name(true))
		if err != nil {
			f = Filter{Name: name(false)}
		}
		if f.Name == "" {
			continue
		}
		switch rng.IntN(5) {
		case 0, 1:
			if x.add(s, f) == has[i][f] {
				t.Fatalf("add %v: it was there: %t", f, has[i][f])
			}
			has[i][f] = true
		case 2:
			if x.remove(s, f) != has[i][f] {
				t.Fatalf("remove %v: it was there: %t", f, has[i][f])
			}
			delete(has[i], f)
		case 3:
			for f := range has[i] { // any
				if !x.remove(s, f) {
					t.Fatalf("remove %v: it was not there", f)
				}
				delete(has[i], f)
				break
			}
		case 4:
			if rng.IntN(20) == 0 { // it leaves
				for m := range s.places {
					x.leave(s, m)
				}
				clear(has[i])
			}
		}
		if rng.IntN(4) > 0 {
			continue
		}
		channel := name(false)
		got := map[*Subscriber]int{}
		x.each(channel, func(m *members) {
			for _, s := range m.list {
				got[s]++
			}
		})
		for i, s := range subscribers {
			want := 0
			for f := range has[i] {
				if f.Match(channel) && channel != "" {
					want++
				}
			}
			if channel != "" && got[s] != want {
				t.Fatalf("channel %q: subscriber %d is found %d times, %d of its filters match: %v", channel, i, got[s], want, has[i])
			}
		}
	}
	for i, s := range subscribers {
		for f := range has[i] {
			x.remove(s, f)
		}
	}
	if len(x.channels) > 0 || len(x.patterns.words) > 0 {
		t.Errorf("an empty index keeps %d channels, and patterns %v", len(x.channels), x.patterns.words)
	}
}

// TestFilterContainsWhatItCovers: Contains agrees with Match on every channel.
func TestFilterContainsWhatItCovers(t *testing.T) {
	words := []string{"a", "b", "c"}
	var channels, filters []string
	var grow func(prefix []string)
	grow = func(prefix []string) {
		if len(prefix) > 0 {
			text := strings.Join(prefix, ".")
			if !slices.ContainsFunc(prefix, func(w string) bool { return w == "*" || w == ">" }) {
				channels = append(channels, text)
			}
			if len(prefix) < 4 {
				filters = append(filters, text)
			}
		}
		if len(prefix) == 4 {
			return
		}
		for _, w := range append([]string{"*", ">"}, words...) {
			if len(prefix) > 0 && prefix[len(prefix)-1] == ">" {
				return
			}
			grow(append(slices.Clone(prefix), w))
		}
	}
	grow(nil)
	parsed := parse(t, filters)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 4000 {
		f, g := parsed[rng.IntN(len(parsed))], parsed[rng.IntN(len(parsed))]
		covers := true
		for _, c := range channels {
			if g.Match(c) && !f.Match(c) {
				covers = false
				break
			}
		}
		if f.Contains(g) != covers {
			t.Fatalf("%s contains %s: %t, but by their channels %t", f.Name, g.Name, f.Contains(g), covers)
		}
	}
}
