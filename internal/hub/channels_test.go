package hub

import (
	"fmt"
	"slices"
	"testing"
)

// TestChannelsAreListedInPages: whatever the size of a page, the pages list each channel and each pattern once, by name, with its subscribers.
func TestChannelsAreListedInPages(t *testing.T) {
	t.Parallel()
	h := New(Config{})
	close(h.ready)
	want := []Subscribed{{"*.created", 1}, {"a.*", 3}, {"a.>", 1}}
	subscribe := func(filters ...Filter) *Subscriber {
		s, err := h.Join(nil, Options{})
		if err == nil {
			err = s.Subscribe(t.Context(), filters...)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	subscribe(Pattern("*.created"), Pattern("a.*"), Pattern("a.>"))
	subscribe(Pattern("a.*"), Channel("a.*")) // a channel of the pattern's name
	gone := subscribe(Channel("gone"), Pattern("gone.*"))
	for i := range 25 {
		want = append(want, Subscribed{fmt.Sprintf("c%02d", i), 1 + i%3})
		for range 1 + i%3 {
			subscribe(Channel(want[len(want)-1].Name))
		}
	}
	h.drop(gone)
	for _, most := range []int{1, 2, 7, 100} {
		var got []Subscribed
		for after := ""; ; after = got[len(got)-1].Name {
			page := h.Channels(after, most)
			if len(page) > most {
				t.Fatalf("a page of at most %d has %d", most, len(page))
			}
			if len(page) == 0 {
				break
			}
			got = append(got, page...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %v, want %v", most, got, want)
		}
	}
	if page := h.Channels("", 0); len(page) != 0 {
		t.Errorf("no channels are wanted, and listed are %v", page)
	}
}
