package hub

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// TestIndexFindsWhoMatches: as filters come and go, the index returns exactly the subscribers with a filter that selects the channel.
func TestIndexFindsWhoMatches(t *testing.T) {
	t.Parallel()
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
	x := index{channels: map[Channel]*members{}}
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
			f = Channel(name(false))
		}
		if f.String() == "" {
			continue
		}
		switch rng.IntN(5) {
		case 0, 1:
			if x.add(s, f) == has[i][f] {
				t.Fatalf("add %v: already present: %t", f, has[i][f])
			}
			has[i][f] = true
		case 2:
			if x.remove(s, f) != has[i][f] {
				t.Fatalf("remove %v: present: %t", f, has[i][f])
			}
			delete(has[i], f)
		case 3:
			for f := range has[i] { // any
				if !x.remove(s, f) {
					t.Fatalf("remove %v: not present", f)
				}
				delete(has[i], f)
				break
			}
		case 4:
			if rng.IntN(20) == 0 { // the subscriber leaves
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

// TestFilterContainsWhatItCovers: Contains and Overlap agree with Match on every channel.
func TestFilterContainsWhatItCovers(t *testing.T) {
	t.Parallel()
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
			t.Fatalf("%s contains %s: %t, but their channels say %t", f, g, f.Contains(g), covers)
		}
		overlap := slices.ContainsFunc(channels, func(c string) bool { return f.Match(c) && g.Match(c) })
		if Overlap(f, g) != overlap {
			t.Fatalf("%s and %s overlap: %t, but their channels say %t", f, g, Overlap(f, g), overlap)
		}
	}
}

// TestAMessageCostsABoundedWalk: whatever patterns exist, looking up a channel takes at most maxSteps.
func TestAMessageCostsABoundedWalk(t *testing.T) {
	t.Parallel()
	x := index{channels: map[Channel]*members{}}
	attacker := &Subscriber{}
	// Every pattern for a channel of ten words, or for its first words: all of them match.
	for length := 1; length <= MaxWords; length++ {
		for stars := range 1 << length {
			words := make([]string, length)
			for i := range words {
				words[i] = "a"
				if stars>>i&1 == 1 {
					words[i] = "*"
				}
			}
			x.add(attacker, Pattern(strings.Join(words, ".")))
			if length < MaxWords {
				x.add(attacker, Pattern(strings.Join(append(words, ">"), ".")))
			}
		}
	}
	longest := strings.Repeat("a.", 127) + "a"
	for _, channel := range []string{strings.TrimSuffix(strings.Repeat("a.", MaxWords), "."), longest} {
		found := 0
		if steps := x.each(channel, func(*members) { found++ }); steps > maxSteps || found < 1<<(MaxWords-1) {
			t.Errorf("%d steps and %d lists for a channel of %d words, want %d steps at most", steps, found, strings.Count(channel, ".")+1, maxSteps)
		}
	}
	if f, err := ParseFilter(longest[:2*MaxWords] + "a.*"); err == nil {
		t.Errorf("the pattern %s of more than %d words was accepted", f, MaxWords)
	}
}

// TestManyFiltersSelectWhatEachDoes: as few do, of which each is tried.
func TestManyFiltersSelectWhatEachDoes(t *testing.T) {
	t.Parallel()
	few := []Filter{Channel("a.b"), Channel("*.x"), Pattern("c.>"), Pattern("*.d")}
	many := few
	for i := range 2 * fewFilters {
		many = append(many, Channel(fmt.Sprint("other", i)))
	}
	for channel, want := range map[string]bool{"a.b": true, "*.x": true, "y.x": false, "c.e.f": true, "c": false, "z.d": true, "a.c": false} {
		if got := selecting(few).has(channel); got != want {
			t.Errorf("few filters, %s: %t, want %t", channel, got, want)
		}
		if got := selecting(many).has(channel); got != want {
			t.Errorf("many filters, %s: %t, want %t", channel, got, want)
		}
	}
	if !selecting(many).has("other7") || selecting(many).has("other") {
		t.Error("of the others")
	}
}

// TestPatternsOfASubscriberAreBounded: one subscriber's patterns have a limit in the index, and removing some makes room for others.
func TestPatternsOfASubscriberAreBounded(t *testing.T) {
	t.Parallel()
	h, _ := run(t, Config{Source: NewLog(store.New(pgtest.Pool(t, pgtest.Database(t)), 0), nil)})
	s, err := h.Join(new(box), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var limit *LimitError
	pattern := func(i int) Filter { return Pattern(fmt.Sprintf("user.%d.*.>", i)) }
	for i := range MaxPatternWords / 4 {
		if err := s.Subscribe(t.Context(), pattern(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Subscribe(t.Context(), pattern(-1)); !errors.As(err, &limit) {
		t.Errorf("above the limit: %v", err)
	}
	if err := s.Subscribe(t.Context(), Channel("user.1.2.3")); err != nil {
		t.Errorf("a channel counts as a pattern: %v", err)
	}
	s.Unsubscribe(pattern(0))
	if err := s.Subscribe(t.Context(), pattern(-1)); err != nil {
		t.Errorf("after one was removed: %v", err)
	}
	if err := s.Resume(t.Context(), Position{}, slices.Repeat([]Filter{pattern(0)}, MaxPatternWords)...); !errors.As(err, &limit) {
		t.Errorf("resuming above the limit: %v", err)
	}
}

// TestAChannelThatLooksLikeAPatternIsNone: a literal name and a pattern are never confused.
func TestAChannelThatLooksLikeAPatternIsNone(t *testing.T) {
	t.Parallel()
	literal, pattern := Filter(Channel("chat.*")), Filter(Pattern("chat.*"))
	if literal == pattern || literal.Contains(pattern) || literal.Contains(Channel("chat.admin")) || literal.Match("chat.admin") {
		t.Error("the channel chat.* matches other channels")
	}
	if !literal.Contains(Channel("chat.*")) || !pattern.Contains(literal) || !pattern.Match("chat.*") {
		t.Error("the channel chat.* is not found under its own name")
	}
	x := index{channels: map[Channel]*members{}}
	x.add(&Subscriber{}, literal)
	x.each("chat.admin", func(*members) { t.Error("a subscriber of the channel chat.* receives chat.admin") })
}
