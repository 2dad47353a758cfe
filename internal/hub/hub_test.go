package hub

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const patience = time.Minute

// start runs a hub on the database until the test ends.
func start(t testing.TB, url string) *Hub {
	t.Helper()
	h := New(Config{Source: NewLog(store.New(pgtest.Pool(t, url), 0), nil)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); h.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return h
}

// box is a sink that records its events.
type box struct {
	mu     sync.Mutex
	events []Event
	closed error
	news   chan struct{}
	claims []claim
}

// claim is a position that a subscriber reported, and the number of events in the box right after that.
type claim struct {
	at  Position
	had int
}

func newBox() *box { return &box{news: make(chan struct{}, 1)} }

func (b *box) Deliver(events []Event) error {
	b.mu.Lock()
	b.events = append(b.events, events...)
	b.mu.Unlock()
	b.tell()
	return nil
}

func (b *box) Close(err error) {
	b.mu.Lock()
	b.closed = err
	b.mu.Unlock()
	b.tell()
}

func (b *box) tell() {
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// texts waits for n events and returns them as text.
func (b *box) texts(t testing.TB, n int) []string {
	t.Helper()
	timeout := time.After(patience)
	for {
		b.mu.Lock()
		var all []string
		for _, e := range b.events {
			if e.Message == nil {
				all = append(all, fmt.Sprintf("gap %s %s %s", e.Gap.Reason, e.Gap.From, e.Gap.To))
			} else {
				all = append(all, e.Message.Channel+"="+string(e.Message.Payload))
			}
		}
		b.mu.Unlock()
		if len(all) >= n {
			return all
		}
		select {
		case <-b.news:
		case <-timeout:
			t.Fatalf("waited %v for %d events, have %d: %v", patience, n, len(all), all)
		}
	}
}

// join adds a subscriber with a box as its sink.
func join(t testing.TB, h *Hub, filters ...string) (*Subscriber, *box) {
	t.Helper()
	b := newBox()
	s, err := h.Join(b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Subscribe(t.Context(), parse(t, filters)...); err != nil {
		t.Fatal(err)
	}
	return s, b
}

func parse(t testing.TB, names []string) []Filter {
	t.Helper()
	var all []Filter
	for _, name := range names {
		f, err := ParseFilter(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// TestDeliversWhatCommits: subscribers receive each message once, in order, after its commit, and none after a rollback.
func TestDeliversWhatCommits(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h := start(t, url)
	_, a := join(t, h, "a")
	_, all := join(t, h, "a", "b", ">", "*")
	exec(t, pool, `SELECT weir.publish('a', '1')`)
	exec(t, pool, `BEGIN; SELECT weir.publish('a', 'no'); ROLLBACK`)
	exec(t, pool, `BEGIN; SELECT weir.publish('a', '2'); SAVEPOINT s; SELECT weir.publish('a', 'gone'); ROLLBACK TO s; SELECT weir.publish('a', '2');
		SELECT weir.publish('b', 'x'); SELECT weir.publish('a', '2'); SELECT weir.publish('a', '2', keep => true); COMMIT`)
	exec(t, pool, `SELECT weir.notify('b', NULL)`)
	exec(t, pool, `SELECT weir.publish_bytes('b', '\x00ff')`)
	exec(t, pool, `SELECT weir.publish('a', 'end'), weir.publish('b', 'end')`)
	if got, want := a.texts(t, 4), []string{"a=1", "a=2", "a=2", "a=end"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := all.texts(t, 8), []string{"a=1", "a=2", "b=x", "a=2", "b=", "b=\x00\xff", "a=end", "b=end"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestResumesWhereItWas: a subscriber that resumes receives the messages after its position, from memory or the database, and then new ones.
func TestResumesWhereItWas(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h := start(t, url)
	_, b := join(t, h, "a")
	for i := range 20 {
		exec(t, pool, `SELECT weir.publish('a', i::text) FROM generate_series($1::int, $1 + 9) i`, i*10)
	}
	want := b.texts(t, 200)
	for _, other := range []*Hub{h, start(t, url)} {
		for _, at := range []int{0, 5, 99, 150, 198} {
			r := newBox()
			s, err := other.Join(r, Options{MaxBytes: 1000})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Resume(t.Context(), b.events[at].Position(), Channel("a")); err != nil {
				t.Fatal(err)
			}
			if got := r.texts(t, 199-at); !slices.Equal(got, want[at+1:]) {
				t.Errorf("after %d: got %q, want %q", at, got, want[at+1:])
			}
		}
	}
}

// TestLongTicksComeInParts: a transaction with more messages than the hub holds in memory is delivered completely, in order, without duplicates.
func TestLongTicksComeInParts(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h := start(t, url)
	s, b := join(t, h, "a")
	s.limit = 1 << 30
	exec(t, pool, `SELECT weir.publish_many(array_agg('a'::text), array_agg((i % 24000)::text ORDER BY i)) FROM generate_series(0, 34999) i`)
	got := b.texts(t, 24000)
	for i, text := range got {
		if text != fmt.Sprintf("a=%d", i) {
			t.Fatalf("message %d is %s", i, text)
		}
	}
	r := newBox()
	again, err := h.Join(r, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Resume(t.Context(), b.events[15000].Position(), Channel("a")); err != nil {
		t.Fatal(err)
	}
	if rest := r.texts(t, 8999); !slices.Equal(rest, got[15001:]) {
		t.Errorf("resumed in the middle: %d messages, from %s to %s", len(rest), rest[0], rest[len(rest)-1])
	}
}
