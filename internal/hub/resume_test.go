package hub

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// TestResumeAmidTrafficMissesNothing: hundreds of subscribers resume at random positions, with a small ring, while messages
// arrive: each receives everything after its position exactly once, in the same order as a subscriber that never left.
func TestResumeAmidTrafficMissesNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h, _ := run(t, Config{Source: NewLog(store.New(pgtest.Pool(t, url+"&pool_max_conns=8"), 0), nil), RingBytes: 20_000})
	s, reference := join(t, h, ">")
	s.limit = 1 << 30
	stop := traffic(t, pool, 3, "c", nil)
	defer stop()
	rng := rand.New(rand.NewPCG(1, rand.Uint64()))
	type visit struct {
		box *box
		at  Position
	}
	var visits []visit
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && len(visits) < 400; {
		select {
		case <-reference.news:
		case <-time.After(patience):
			t.Fatal("the traffic has stopped")
		}
		known := reference.snapshot()
		// Mostly close to the end, where replay hands over to live delivery.
		back := rng.IntN(30)
		if rng.IntN(4) == 0 {
			back = rng.IntN(len(known))
		}
		v := visit{newBox(), known[max(0, len(known)-1-back)].Position()}
		r, err := h.Join(v.box, Options{MaxBytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Resume(t.Context(), v.at, Pattern(">")); err != nil {
			t.Fatal(err)
		}
		visits = append(visits, v)
	}
	stop()
	exec(t, pool, `SELECT weir.publish('c', 'end')`)
	all := reference.until(t, "end")
	for _, v := range visits {
		got := v.box.until(t, "end")
		i, _ := slices.BinarySearchFunc(all, v.at, func(e Event, p Position) int {
			if p.Before(e.Position()) {
				return 1
			}
			return -1
		})
		if want := all[i:]; !slices.EqualFunc(got, want, same) {
			t.Fatalf("resumed after %s: got %d events, want %d: %s", v.at, len(got), len(want), firstDifference(texts(want), texts(got)))
		}
	}
	t.Logf("%d messages, %d visits", len(all), len(visits))
}

func same(a, b Event) bool {
	return a.Message != nil && b.Message != nil && a.Message.Position == b.Message.Position && string(a.Message.Payload) == string(b.Message.Payload)
}

// snapshot returns the events received so far.
func (b *box) snapshot() []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.events)
}

// until waits for a payload and returns everything up to it.
func (b *box) until(t testing.TB, payload string) []Event {
	t.Helper()
	timeout := time.After(patience)
	for {
		if all := b.snapshot(); len(all) > 0 && all[len(all)-1].Message != nil && string(all[len(all)-1].Message.Payload) == payload {
			return all
		}
		select {
		case <-b.news:
		case <-timeout:
			all := b.snapshot()
			t.Fatalf("waited %v for %s after %d events: %v", patience, payload, len(all), texts(all[max(0, len(all)-3):]))
		}
	}
}

// upTo waits for n events.
func (b *box) upTo(t testing.TB, n int) []Event {
	t.Helper()
	b.texts(t, n)
	return b.snapshot()
}

// TestNothingIsMissingSilently: a position that is too old, past the end of the log, or of another log gives a gap event, and then new messages.
func TestNothingIsMissingSilently(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h := start(t, url)
	_, b := join(t, h, "c")
	exec(t, pool, `SELECT weir.set('message_retention', '0 s')`)
	for i := range 20 {
		exec(t, pool, `SELECT weir.publish('c', $1)`, fmt.Sprint(i))
		b.texts(t, i+1)
	}
	truncate(t, pool)
	exec(t, pool, `SELECT weir.publish('c', 'kept')`)
	b.texts(t, 21)
	floor := scan[int64](t, pool, `SELECT last_value FROM weir.tick_floor`)
	if floor < 20 {
		t.Fatalf("only %d ticks were truncated", floor)
	}
	other, _ := run(t, Config{Source: NewLog(store.New(pool, 0), nil)}) // its ring is empty
	epoch := h.Position().Epoch
	next := Position{Epoch: epoch, Tick: floor + 1}
	for _, at := range []Position{{}, {Tick: 1}, {Epoch: epoch, Tick: 5, Index: 1}, {Epoch: epoch, Tick: floor, Index: 99}} {
		r := resume(t, other, at, "c")
		want := []string{fmt.Sprintf("gap truncated %s %s", at, next), "c=kept"}
		if got := r.texts(t, 2); !slices.Equal(got, want) {
			t.Errorf("after %s: got %q, want %q", at, got, want)
		}
	}
	r := resume(t, other, next, "c") // the first position left
	if got := r.texts(t, 1); !slices.Equal(got, []string{"c=kept"}) {
		t.Errorf("after the floor: got %q", got)
	}
	for _, at := range []Position{{Epoch: epoch, Tick: floor + 1000}, {Epoch: epoch, Tick: 1 << 40, Index: 7}, {Epoch: epoch + 1, Tick: floor + 1}, {Epoch: epoch + 1, Tick: floor + 1, Index: 1}, {Tick: 7}} {
		r := resume(t, other, at, "c")
		got := r.texts(t, 1)
		if want := fmt.Sprintf("gap unknown %s ", at); len(got) != 1 || got[0][:len(want)] != want {
			t.Errorf("after %s: got %q, want %q and the new message", at, got, want)
		}
		text := "after " + at.String()
		exec(t, pool, `SELECT weir.publish('c', $1)`, text)
		if got := r.texts(t, 2); got[1] != "c="+text {
			t.Errorf("after %s and the gap: got %q", at, got)
		}
	}
}

// TestHubThatFallsBehindTellsOfTheGap: ticks are truncated before a hub has read them; the log is set back; the database is replaced: each time the
// hub continues automatically, and its subscribers receive a gap.
func TestHubThatFallsBehindTellsOfTheGap(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	exec(t, pool, `SELECT weir.set('message_retention', '0 s')`)
	source := &heldUp{Log: NewLog(store.New(pool, 0), nil)}
	h, _ := run(t, Config{Source: source})
	s, b := join(t, h, "c")
	exec(t, pool, `SELECT weir.publish('c', 'before')`)
	b.texts(t, 1)

	var at Position
	source.hold(func() {
		at = h.Position()
		for i := range 20 {
			exec(t, pool, `SELECT weir.publish('c', $1)`, fmt.Sprint(i))
			exec(t, pool, `SELECT weir._await_tick(weir.newest_tick())`)
		}
		truncate(t, pool)
	})
	floor := scan[int64](t, pool, `SELECT last_value FROM weir.tick_floor`)
	exec(t, pool, `SELECT weir.publish('c', 'after')`)
	all := b.until(t, "after")
	n := len(all) // the messages read before the hold, the gap, and the messages after it
	if gap := all[n-2].Gap; gap.Reason != Truncated || gap.From.Before(at) || gap.From.Before(all[n-3].Position()) || gap.To != (Position{Epoch: at.Epoch, Tick: floor + 1}) {
		t.Fatalf("got %q, want a gap up to %d.0", texts(all), floor+1)
	}

	// As after a failover to a lagging standby.
	for i := range 5 {
		exec(t, pool, `SELECT weir.publish('c', $1)`, fmt.Sprint(i))
		b.until(t, fmt.Sprint(i))
		n++
	}
	var end Position
	source.hold(func() {
		at = h.Position()
		exec(t, pool, `SELECT setval('weir.tick_seq', newest - 3) FROM (SELECT max(seq) AS newest FROM weir.tick) t`)
		exec(t, pool, `DELETE FROM weir.tick WHERE seq > (SELECT last_value FROM weir.tick_seq)`)
		exec(t, pool, `UPDATE weir.epoch SET started_at = started_at - interval '1 hour'`)
		end = Position{Epoch: at.Epoch, Tick: scan[int64](t, pool, `SELECT weir.newest_tick()`) + 1}
		source.fail = true
	})
	if got, want := texts(b.upTo(t, n+1))[n], fmt.Sprintf("gap unknown %s %s", at, end); got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	exec(t, pool, `SELECT weir.publish('c', 'set back')`)
	all = b.until(t, "set back")
	until(t, "the position is that of the log", func() bool { return all[len(all)-1].Position().Before(s.Position()) && s.Position().Before(at) })

	// As after a restore into another cluster while the hub runs.
	source.hold(func() {
		exec(t, pool, `UPDATE weir.setting SET value = '1' WHERE name = 'message_cluster'`)
		exec(t, pool, `UPDATE weir.epoch SET started_at = started_at - interval '1 hour'`)
		exec(t, pool, `SELECT weir.publish('c', 'restored')`)
		source.fail = true
	})
	all = b.until(t, "restored")
	gaps := 0
	for _, e := range all[n+2:] {
		if e.Message == nil && e.Gap.Reason == Truncated {
			gaps++
		}
	}
	if gaps != 1 {
		t.Errorf("%d gaps before what was published in the other cluster: %q", gaps, texts(all[n:]))
	}
}

// TestHubOnARestoredDatabaseGoesOn: a hub that starts on a copy from another cluster rebases the log automatically: messages that were in no tick
// yet are delivered, and old positions give a gap.
func TestHubOnARestoredDatabaseGoesOn(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	for _, text := range []string{"delivered", "waiting"} {
		exec(t, pool, `SELECT weir.publish('c', $1)`, text)
		if text == "delivered" {
			exec(t, pool, `SELECT weir._await_tick(weir.newest_tick())`)
		}
	}
	epoch := scan[int64](t, pool, `SELECT weir._epoch_of(2)`)
	exec(t, pool, `UPDATE weir.setting SET value = '1' WHERE name = 'message_cluster'`)
	exec(t, pool, `SELECT weir.publish('c', 'before the hub')`)
	// Two at the same time: one of them rebases the log.
	for i, h := range []*Hub{start(t, url), start(t, url)} {
		for _, at := range []Position{{Tick: 1}, {Epoch: epoch, Tick: 2, Index: 1}, {Epoch: epoch, Tick: 1_000_000}} { // the last one was reached by the original log
			r := resume(t, h, at, "c")
			got := r.texts(t, 3)
			if want := []string{"c=waiting", "c=before the hub"}; got[0][:len("gap truncated")] != "gap truncated" || !slices.Equal(got[1:], want) {
				t.Errorf("hub %d after %s: got %q, want a gap and %q", i, at, got, want)
			}
		}
	}
}

// heldUp is a log that can be made to wait, or to fail once.
type heldUp struct {
	*Log
	mu   sync.Mutex
	fail bool
}

// hold calls f while the hub can't read.
func (s *heldUp) hold(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *heldUp) Next(ctx context.Context, after Position) ([]*Part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail {
		s.fail = false
		ctx, cancel := context.WithCancel(ctx)
		cancel() // like a broken connection
		return s.Log.Next(ctx, after)
	}
	return s.Log.Next(ctx, after)
}

// TestHugeMessagesAreReplayedInStretches: one transaction larger than a hub reads at once, and many ticks that are large together.
func TestHugeMessagesAreReplayedInStretches(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	exec(t, pool, `SELECT weir.publish_many(array_fill('c'::text, ARRAY[25]), array_agg(lpad(n::text, 1000000) ORDER BY n)) FROM generate_series(1, 25) n`)
	exec(t, pool, `SELECT weir._await_tick(1)`)
	for i := range 12 {
		exec(t, pool, `SELECT weir.publish('c', lpad($1, 1000000))`, fmt.Sprint(100+i))
		exec(t, pool, `SELECT weir._await_tick(weir.newest_tick())`)
	}
	source := NewLog(store.New(pool, 0), nil)
	at, n := Position{}, 0
	for n < 37 {
		parts, err := source.Read(t.Context(), at)
		if err != nil || len(parts) == 0 {
			t.Fatalf("after %s: %d parts, %v", at, len(parts), err)
		}
		bytes := 0
		for _, p := range parts {
			bytes += p.bytes()
			n += len(p.Messages)
			if p.Before() != at && !(at.IsZero() || p.Before().Index == 0) {
				t.Errorf("a part starts at %s, the previous one ended at %s", p.Before(), at)
			}
			at = p.After()
		}
		if bytes > 10<<20 {
			t.Errorf("a stretch of %d bytes", bytes)
		}
	}
	h := start(t, url)
	r := resume(t, h, Position{Tick: 1}, "c")
	for i, text := range r.texts(t, 37) {
		want := i + 1
		if i >= 25 {
			want = 75 + i
		}
		if text != fmt.Sprintf("c=%1000000d", want) {
			t.Fatalf("message %d ends in %s", i, text[len(text)-5:])
		}
	}
}

func resume(t testing.TB, h *Hub, at Position, filters ...string) *box {
	t.Helper()
	b := newBox()
	s, err := h.Join(b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(t.Context(), at, parse(t, filters)...); err != nil {
		t.Fatal(err)
	}
	return b
}
