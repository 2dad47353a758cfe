package hub

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// blocked is a sink whose client does not read until it is released.
type blocked struct {
	*box
	began chan struct{} // a Deliver has started
	free  chan struct{} // closed: the client reads again
	ended chan struct{} // closed by Close, which makes Deliver return
}

func newBlocked() *blocked {
	return &blocked{newBox(), make(chan struct{}, 1), make(chan struct{}), make(chan struct{})}
}

func (s *blocked) Deliver(events []Event) error {
	select {
	case s.began <- struct{}{}:
	default:
	}
	select {
	case <-s.free:
		return s.box.Deliver(events)
	case <-s.ended:
		return errors.New("the connection was closed")
	}
}

func (s *blocked) Close(err error) {
	s.box.Close(err)
	close(s.ended)
}

// TestSlowSubscriberIsCutOffAlone: a subscriber that does not read is ended once its limit is reached, and its position is that of the messages it
// received, so that it misses nothing when it resumes; all others receive everything in the meantime.
func TestSlowSubscriberIsCutOffAlone(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h := start(t, url)
	_, other := join(t, h, "a")
	sink := newBlocked()
	s, err := h.Join(sink, Options{MaxBytes: 5000})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Subscribe(t.Context(), parse(t, []string{"a", "*"})...); err != nil {
		t.Fatal(err)
	}
	before := s.Position()
	exec(t, pool, `SELECT weir.publish('a', 'first')`)
	pgtest.Receive(t, sink.began, "the subscriber is given something")
	exec(t, pool, `SELECT weir.publish_many(array_fill('a'::text, ARRAY[500]), array_agg(n::text ORDER BY n)) FROM generate_series(1, 500) n`)
	select {
	case <-sink.ended:
	case <-time.After(patience):
		t.Fatal("it was not disconnected")
	}
	want := other.texts(t, 501)
	if !errors.Is(s.Err(), ErrSlow) || !errors.Is(sink.closed, ErrSlow) {
		t.Errorf("ended with %v, closed with %v", s.Err(), sink.closed)
	}
	if n := h.Stats().Slow; n != 1 {
		t.Errorf("%d subscribers were counted as slow", n)
	}
	exec(t, pool, `SELECT weir.publish('a', 'last')`)
	want = append(want, other.texts(t, 502)[501])
	if got := sink.snapshot(); len(got) != 0 {
		t.Errorf("got %q", texts(got))
	}
	if at := s.Position(); at != before {
		t.Errorf("its position is %s, but it received nothing after %s", at, before)
	}
	r := resume(t, h, s.Position(), "a")
	if got := r.texts(t, 502); !slices.Equal(got, want) {
		t.Errorf("it resumed and received %d events: %s", len(got), firstDifference(want, got))
	}
}

// TestSlowSubscriberSkipsAhead: with that policy it receives one gap for everything dropped, and continues after it.
func TestSlowSubscriberSkipsAhead(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h := start(t, url)
	_, other := join(t, h, "a")
	sink := newBlocked()
	s, err := h.Join(sink, Options{MaxBytes: 3000, Slow: SkipAhead})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Subscribe(t.Context(), Channel("a")); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `SELECT weir.publish('a', 'first')`)
	pgtest.Receive(t, sink.began, "the subscriber is given something")
	for i := range 10 {
		exec(t, pool, `SELECT weir.publish_many(array_fill('a'::text, ARRAY[100]), array_agg($1 || '-' || n ORDER BY n)) FROM generate_series(1, 100) n`, fmt.Sprint(i))
	}
	other.texts(t, 1001)
	close(sink.free)
	exec(t, pool, `SELECT weir.publish('a', 'last')`)
	all := other.until(t, "last")
	got := sink.until(t, "last")
	var gap *Gap
	at := 0
	for _, e := range got {
		if e.Message == nil {
			if gap != nil {
				t.Fatalf("two gaps: %q", texts(got))
			}
			gap = e.Gap
			for at < len(all) && !gap.To.Before(all[at].Position()) {
				if !gap.From.Before(all[at].Position()) {
					t.Errorf("%s was received before the gap %v, or is missing without one", all[at].Position(), *gap)
				}
				at++
			}
			continue
		}
		if !same(e, all[at]) {
			t.Fatalf("got %s, want %s", texts([]Event{e}), texts(all[at:at+1]))
		}
		at++
	}
	if gap == nil || gap.Reason != Slow || at != len(all) || s.Err() != nil || h.Stats().Skipped == 0 {
		t.Errorf("gap %v, %d of %d events accounted for, %v", gap, at, len(all), s.Err())
	}
	until(t, "its position is that of the hub", func() bool { return s.Position() == h.Position() })
}

// TestPauseHoldsBack: nothing is delivered while a subscriber is paused, live or catching up, and everything after it continues.
func TestPauseHoldsBack(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h := start(t, url)
	s, b := join(t, h, "a")
	_, other := join(t, h, "a")
	begin := h.Position()
	s.Pause()
	s.Pause()
	for i := range 30 {
		exec(t, pool, `SELECT weir.publish('a', $1)`, fmt.Sprint(i))
	}
	want := other.texts(t, 30)
	if got := b.snapshot(); len(got) > 0 {
		t.Errorf("got %q while it was paused", texts(got))
	}
	if at := s.Position(); begin.Before(at) {
		t.Errorf("its position moved from %s to %s while it was paused", begin, at)
	}
	s.Continue()
	s.Continue()
	if got := b.texts(t, 30); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	r := newBox()
	paused, err := h.Join(r, Options{MaxBytes: 1000}) // too little to queue all of it
	if err != nil {
		t.Fatal(err)
	}
	paused.Pause()
	if err := paused.Resume(t.Context(), begin, Channel("a")); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `SELECT weir.publish('a', 'end')`)
	other.until(t, "end")
	if got := r.snapshot(); len(got) > 0 {
		t.Errorf("got %q of history while it was paused", texts(got))
	}
	paused.Continue()
	if got := texts(r.until(t, "end")); !slices.Equal(got, texts(other.snapshot())) {
		t.Errorf("got %q", got)
	}

	leaves, err := h.Join(newBox(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	leaves.Pause()
	if err := leaves.Resume(t.Context(), begin, Channel("a")); err != nil {
		t.Fatal(err)
	}
	leaves.Leave() // and its goroutine ends: Run waits for it
}

// TestUnsubscribeEndsDelivery: messages on a channel that was unsubscribed are not delivered any more; those on other channels are.
func TestUnsubscribeEndsDelivery(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h := start(t, url)
	s, b := join(t, h, "a", "b", "c.*")
	exec(t, pool, `SELECT weir.publish('a', '1'), weir.publish('c.x', '1')`)
	b.texts(t, 2)
	s.Unsubscribe(parse(t, []string{"a", "c.*", "never"})...)
	exec(t, pool, `SELECT weir.publish('a', '2'), weir.publish('c.x', '2'), weir.publish('b', '2')`)
	b.until(t, "2")
	if got, want := b.texts(t, 3), []string{"a=1", "c.x=1", "b=2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if st := h.Stats(); st.Channels != 1 {
		t.Errorf("%d channels have subscribers, want 1", st.Channels)
	}
}
