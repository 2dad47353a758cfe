package hub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// TestHistoryAndLiveMeetExactly: subscribers ask for the last messages of channels and patterns amid traffic, with a small ring, and some on a
// connection that has other channels: each receives exactly the last n that were published before, and then all that followed, in the log's order.
func TestHistoryAndLiveMeetExactly(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h, _ := run(t, Config{Source: NewLog(store.New(pgtest.Pool(t, url+"&pool_max_conns=8"), 0), nil), RingBytes: 20_000})
	h.lookFor, h.lookBacks = time.Minute, 1000 // on a busy machine, it takes a while until what was read connects with so small a ring
	s, reference := join(t, h, ">")
	s.limit = 1 << 30
	// Each visit gives the publishers some turns: were they free, the log would grow without end where visits are slow, and make them slower, since those
	// who ask for a channel without messages read all of it.
	const visitors, visitsEach, turnsEach = 8, 25, 20
	turns := make(chan struct{}, 200+visitors*visitsEach*turnsEach)
	give := func(n int) {
		for range n {
			turns <- struct{}{}
		}
	}
	give(200)
	stop := traffic(t, pool, 2, "c.", turns)
	defer stop()
	reference.upTo(t, 500)
	type visit struct {
		box     *box
		n       int
		filters []Filter
		history History
	}
	choices := [][]string{{"c.0"}, {"c.1", "c.2"}, {"c.*"}, {"c.1", "c.>"}, {"c.0", "none"}}
	var mu sync.Mutex
	var visits []visit
	var all sync.WaitGroup
	for range visitors {
		all.Go(func() {
			for range visitsEach {
				give(turnsEach)
				v := visit{box: newBox(), n: 1 + rand.IntN(200), filters: parse(t, choices[rand.IntN(len(choices))])}
				r, err := h.Join(v.box, Options{MaxBytes: 1 << 30})
				if err == nil && rand.IntN(2) == 0 {
					err = r.Subscribe(t.Context(), Channel("another"))
				}
				if err == nil {
					v.history, err = r.SubscribeLast(t.Context(), slices.Repeat([]int{v.n}, len(v.filters)), v.filters...)
				}
				if err != nil {
					t.Error(err)
					return
				}
				r.Continue()
				mu.Lock()
				visits = append(visits, v)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	stop()
	exec(t, pool, `SELECT weir.publish(c, 'end', true) FROM unnest('{c.0,c.1,c.2}'::text[]) c`)
	reference.until(t, "end")
	pgtest.Until(t, "the reference has everything", func() bool {
		got := reference.snapshot()
		return len(got) > 2 && string(got[len(got)-3].Message.Payload) == "end"
	})
	published := reference.snapshot()
	older := 0
	for i, v := range visits {
		var wanted []*Message
		for _, e := range published {
			if selecting(v.filters).has(e.Message.Channel) {
				wanted = append(wanted, e.Message)
			}
		}
		pgtest.Until(t, "a visitor has everything", func() bool {
			got := v.box.snapshot()
			return len(got) > 0 && got[len(got)-1].Message.Position == wanted[len(wanted)-1].Position
		})
		live := v.box.snapshot()
		first := slices.IndexFunc(wanted, func(m *Message) bool { return m.Position == live[0].Message.Position })
		if len(wanted)-first != len(live) {
			t.Fatalf("visit %d: %d messages were delivered from its first on, the reference has %d", i, len(live), len(wanted)-first)
		}
		if !v.history.Complete && !slices.Contains(v.filters, Filter(Channel("none"))) {
			t.Fatalf("visit %d: the history is not complete", i)
		}
		var expect []*Message
		for _, f := range v.filters {
			n := 0
			for _, m := range slices.Backward(wanted[:first]) {
				if f.Match(m.Channel) && n < v.n {
					n++
					expect = append(expect, m)
				}
			}
		}
		expect, _ = newest([][]*Message{expect}, 1<<30)
		if !v.history.Complete { // looking for a channel without messages, it has run out of time: what it has is the newest
			expect = expect[len(expect)-min(len(v.history.Messages), len(expect)):]
		}
		if len(expect) != len(v.history.Messages) {
			t.Fatalf("visit %d, last %d of %v: %d messages of history, want %d", i, v.n, v.filters, len(v.history.Messages), len(expect))
		}
		for j, m := range v.history.Messages {
			if m.Position != expect[j].Position || string(m.Payload) != string(expect[j].Payload) {
				t.Fatalf("visit %d: message %d of the history is %v, want %v", i, j, m.Position, expect[j].Position)
			}
			if v.history.At.Before(m.Position) {
				t.Fatalf("visit %d: the position %v lies before the history's %v", i, v.history.At, m.Position)
			}
		}
		if len(expect) > 100 {
			older++
		}
	}
	if len(visits) < 50 || older == 0 {
		t.Fatalf("%d visits, %d with a long history: too few to say anything", len(visits), older)
	}
	t.Logf("%d visits, %d messages", len(visits), len(published))
}

// counted counts the reads of a source.
type counted struct {
	Source
	reads atomic.Int64
}

func (c *counted) Read(ctx context.Context, after Position) ([]*Part, error) {
	c.reads.Add(1)
	return c.Source.Read(ctx, after)
}

// TestManyLookBacksCostLittleMoreThanOne: a thousand subscribers, each of a channel of its own, ask at the same time for history that is in the log
// alone: the log is read a few times, not a thousand times. Who asks again for a channel that has subscribers reads nothing.
func TestManyLookBacksCostLittleMoreThanOne(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	exec(t, pool, `SELECT weir.publish('user.' || i % 1000, i::text) FROM generate_series(1, 3000) i`)
	source := &counted{Source: NewLog(store.New(pgtest.Pool(t, url), 0), nil)}
	h, _ := run(t, Config{Source: source, RingBytes: 1})
	h.lookFor = time.Minute // on a busy machine, a thousand at once take a while
	_, b := join(t, h, "other")
	for i := range 200 { // ticks that the ring has dropped
		exec(t, pool, `SELECT weir.publish('other', $1)`, fmt.Sprint(i))
		b.upTo(t, i+1)
	}
	source.reads.Store(0)
	ask := func(i int) error {
		s, err := h.Join(newBox(), Options{})
		if err != nil {
			return err
		}
		got, err := s.SubscribeLast(t.Context(), []int{5}, Channel(fmt.Sprint("user.", i)))
		if err == nil && (len(got.Messages) != 3 || !got.Complete) {
			err = fmt.Errorf("user.%d has %d messages, complete: %v", i, len(got.Messages), got.Complete)
		}
		return err
	}
	all := func() {
		var asks sync.WaitGroup
		for i := range 1000 {
			asks.Go(func() {
				if err := ask(i); err != nil {
					t.Error(err)
				}
			})
		}
		asks.Wait()
	}
	all()
	if n := source.reads.Load(); n == 0 || n > 200 {
		t.Errorf("the log was read %d times for 1000 subscribers", n)
	}
	source.reads.Store(0)
	all()
	if n := source.reads.Load(); n > 0 {
		t.Errorf("the log was read %d times for channels whose history is known", n)
	}
}

// TestHistoryIsBounded: a look back that reads too much is cut short, and says so; so is a history that is too long for the subscriber. A log that
// begins later is complete nevertheless.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h := New(Config{Source: NewLog(store.New(pgtest.Pool(t, url), 0), nil), RingBytes: 1})
	h.lookBytes = 1000
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go h.Run(ctx)
	reader, b := join(t, h, ">")
	defer reader.Leave()
	exec(t, pool, `SELECT weir.publish('old', 'x')`)
	for i := range 20 {
		b.upTo(t, i+1) // each is a tick
		exec(t, pool, `SELECT weir.publish('busy', $1)`, fmt.Sprintf("%0100d", i))
	}
	b.upTo(t, 21)
	last := func(n int, o Options, filters ...string) History {
		t.Helper()
		s, err := h.Join(newBox(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Leave()
		got, err := s.SubscribeLast(t.Context(), slices.Repeat([]int{n}, len(filters)), parse(t, filters)...)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := last(1, Options{}, "old"); got.Complete || len(got.Messages) > 0 {
		t.Errorf("a look back that was cut short found %v, complete: %v", got.Messages, got.Complete)
	}
	h.lookBytes = lookBytes
	if got := last(1, Options{}, "old"); !got.Complete || len(got.Messages) != 1 {
		t.Errorf("the log has one old message, and %v was found, complete: %v", got.Messages, got.Complete)
	}
	if got := last(20, Options{MaxBytes: 1000}, "busy"); got.Complete || len(got.Messages) != 5 {
		t.Errorf("a subscriber with a queue of 1000 bytes got %d messages of history, complete: %v", len(got.Messages), got.Complete)
	}
	if got := last(20, Options{}, "busy", "b*", ">"); !got.Complete || len(got.Messages) != 20 {
		t.Errorf("%d messages of history, complete: %v; want 20, each once", len(got.Messages), got.Complete)
	}
	exec(t, pool, `SELECT weir.set('message_retention', '0 s')`)
	truncate(t, pool)
	exec(t, pool, `SELECT weir.publish('new', 'x')`)
	b.upTo(t, 22)
	if got := last(20, Options{}, "new", "old"); !got.Complete || len(got.Messages) != 1 {
		t.Errorf("after a truncation: %d messages, complete: %v", len(got.Messages), got.Complete)
	}
	stop()
	pgtest.Until(t, "the hub has ended", func() bool { _, err := h.Join(newBox(), Options{}); return errors.Is(err, ErrClosed) })
}
