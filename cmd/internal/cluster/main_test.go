package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// The test binary also runs as the hub that a test kills.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(runChild())
	}
	pgtest.Main(m)
}

const (
	patience = 60 * time.Second
	secret   = "a secret of a test's hubs"
)

// counting counts queries to the database.
type counting struct {
	hub.Source
	nexts, reads atomic.Int64
}

func (c *counting) Next(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	c.nexts.Add(1)
	return c.Source.Next(ctx, after)
}

func (c *counting) Read(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	c.reads.Add(1)
	return c.Source.Read(ctx, after)
}

// node is a clustered hub.
type node struct {
	*hub.Hub
	cluster *Cluster
	asked   *counting
	end     func()
}

// site is a database and the hubs on it.
type site struct {
	t     testing.TB
	pool  *pgxpool.Pool
	name  string
	marks int // messages published to find out how far the log is
}

func newSite(t testing.TB) *site {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Database(t))
	s := &site{t: t, pool: pool}
	var err error
	if s.name, err = store.New(pool, 0).DatabaseID(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// source returns a hub's view of the database.
func (s *site) source() *counting { return sourceOn(s.pool) }

func sourceOn(pool *pgxpool.Pool) *counting {
	return &counting{Source: hub.NewLog(store.New(pool, 0), nil)}
}

// join starts a hub in a cluster.
func (s *site) join(config Config) *node {
	s.t.Helper()
	return s.joinWith(s.source(), config)
}

func (s *site) joinWith(source *counting, config Config) *node {
	s.t.Helper()
	config.Source, config.Database, config.Logger = source, s.name, logger(s.t)
	if config.Name == "" {
		config.Name = fmt.Sprint("hub", names.Add(1))
	}
	c, err := Start(s.t.Context(), config)
	if err != nil {
		s.t.Fatal(err)
	}
	h := hub.New(hub.Config{Source: c, Logger: logger(s.t)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); h.Run(ctx) }()
	var once sync.Once
	n := &node{Hub: h, cluster: c, asked: source, end: func() { once.Do(func() { cancel(); <-done; c.Close() }) }}
	s.t.Cleanup(n.end)
	return n
}

var names atomic.Int64

// cluster starts hubs on an external NATS, and waits until one of them reads for all.
func (s *site) cluster(url string, hubs int) []*node {
	s.t.Helper()
	var all []*node
	for range hubs {
		all = append(all, s.join(Config{URL: url}))
	}
	settle(s.t, all...)
	return all
}

// settle waits until exactly one of the hubs reads, the others follow it, and all know of each other.
func settle(t testing.TB, nodes ...*node) (reader *node, followers []*node) {
	t.Helper()
	until(t, "one hub reads and the others follow", func() bool {
		reader, followers = nil, nil
		for _, n := range nodes {
			s := n.cluster.Stats()
			switch {
			case s.Hubs != len(nodes) || !n.Live():
			case s.Role == Reading:
				reader = n
			case s.Role == Following:
				followers = append(followers, n)
			}
		}
		return reader != nil && len(followers) == len(nodes)-1
	})
	return reader, followers
}

func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.pool.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

func (s *site) publish(channel, payload string) {
	s.t.Helper()
	s.exec(`SELECT weir.publish($1, $2)`, channel, payload)
}

// log returns the texts of all messages published on channels that match the filters.
func (s *site) log(filters ...hub.Filter) (all []string) {
	s.t.Helper()
	source := s.source()
	for at := (hub.Position{Tick: 1}); ; {
		parts, err := source.Read(s.t.Context(), at)
		if err != nil {
			s.t.Fatal(err)
		}
		if len(parts) == 0 {
			return all
		}
		for _, p := range parts {
			for _, m := range p.Messages {
				if slices.ContainsFunc(filters, func(f hub.Filter) bool { return f.Match(m.Channel) }) {
					all = append(all, text(m))
				}
			}
			at = p.After()
		}
	}
}

func text(m *hub.Message) string {
	return fmt.Sprintf("%s %s %s %t", m.Position, m.Channel, m.Payload, m.Binary)
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	pgtest.Until(t, what, holds)
}

func filters(t testing.TB, names ...string) (all []hub.Filter) {
	t.Helper()
	for _, name := range names {
		f, err := hub.ParseFilter(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

// box is a sink that keeps the events it receives, as text.
type box struct {
	mu     sync.Mutex
	texts  []string
	places []hub.Position
	closed error
}

func (b *box) Deliver(events []hub.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range events {
		b.places = append(b.places, e.Position())
		if e.Message == nil {
			b.texts = append(b.texts, fmt.Sprintf("gap %s %s %s", e.Gap.Reason, e.Gap.From, e.Gap.To))
		} else {
			b.texts = append(b.texts, text(e.Message))
		}
	}
	return nil
}

func (b *box) Close(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = err
}

func (b *box) got() ([]string, []hub.Position) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.texts), slices.Clone(b.places)
}

// messages returns the texts received, without marks.
func (b *box) messages() []string {
	all, _ := b.got()
	return slices.DeleteFunc(all, func(text string) bool { return strings.Contains(text, " mark ") })
}

func (b *box) count() int { return len(b.messages()) }

// subscribe adds a subscriber with a box, which resumes at the position after unless that is zero.
func subscribe(t testing.TB, n *node, after hub.Position, names ...string) (*hub.Subscriber, *box) {
	t.Helper()
	b := &box{}
	s, err := n.Join(b, hub.Options{MaxBytes: 1 << 28})
	if err == nil && after.IsZero() {
		err = s.Subscribe(t.Context(), filters(t, names...)...)
	} else if err == nil {
		err = s.Resume(t.Context(), after, filters(t, names...)...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, b
}

// same fails the test if two sequences differ, and reports the first difference.
func same(t testing.TB, what string, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Errorf("%s: got %d messages, want %d; the first difference is at %d: got %.80q, want %.80q", what, len(got), len(want), i, at(got, i), at(want, i))
			return
		}
	}
}

func at(all []string, i int) string {
	if i < len(all) {
		return all[i]
	}
	return "nothing"
}

// logger writes to the test's log while it runs.
func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}
