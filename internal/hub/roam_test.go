package hub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/schema"
)

// TestAllHubsDeliverTheSame: three hubs with random publishers; one hub is restarted again and again, and the database is killed and
// restarted: all subscribers, those that stay and those that move between hubs with their position, receive the same complete sequence.
func TestAllHubsDeliverTheSame(t *testing.T) {
	pgtest.Alone(t, "enough must happen in its limited time")
	server := pgtest.Server(t, nil)
	url := server.URL("postgres")
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(schema.Up(t.Context(), conn), conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	hubs := make([]*place, 3)
	for i := range hubs {
		hubs[i] = &place{pool: pgtest.Pool(t, url)}
		hubs[i].open(ctx, Config{})
		defer func() { hubs[i].end() }()
	}
	if err := hubs[0].hub().untilReady(ctx); err != nil {
		t.Fatal(err)
	}
	first := hubs[0].hub().Position()

	// Two subscribers each stay at one hub, the others move.
	var diaries []*diary
	for i := range 6 {
		d := &diary{at: first}
		diaries = append(diaries, d)
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		running.Go(func() {
			for round := 0; ctx.Err() == nil && !d.complete.Load(); round++ {
				if i < 2 {
					d.visit(ctx, hubs[i].hub(), 0)
				} else {
					d.visit(ctx, hubs[rng.IntN(3)].hub(), time.Duration(1+rng.IntN(300))*time.Millisecond)
				}
			}
		})
	}

	var publishers sync.WaitGroup
	stop := make(chan struct{})
	said := &ledger{}
	for n := range 4 {
		publishers.Go(func() { said.publish(ctx, url, n, rand.New(rand.NewPCG(seed, uint64(100+n))), stop) })
	}
	pause := func(d time.Duration) { sleep.For(ctx, d) }
	for round := range 6 {
		pause(500 * time.Millisecond)
		hubs[2].end()
		if round == 2 {
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := server.Restart(ctx); err != nil {
				t.Fatal(err)
			}
		}
		hubs[2].open(ctx, Config{RingBytes: 1 << 14})
	}
	close(stop)
	publishers.Wait()
	exec(t, pgtest.Pool(t, url), `SELECT weir.publish('end', 'end')`)
	deadline := time.After(patience)
	for i, d := range diaries {
		for !d.complete.Load() {
			select {
			case <-deadline:
				t.Fatalf("subscriber %d has received nothing after %s", i, d.lines()[max(0, len(d.lines())-1):])
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	cancel()
	running.Wait()
	want := diaries[0].lines()
	for i, d := range diaries {
		if got := d.lines(); !slices.Equal(got, want) {
			t.Errorf("subscriber %d received %d events in %d visits, subscriber 0 received %d: %s", i, len(got), d.visits, len(want), firstDifference(want, got))
		}
	}
	heard := map[string]int{}
	for _, line := range want {
		if strings.HasPrefix(line, "gap") {
			t.Errorf("%s", line)
		} else {
			heard[line[strings.Index(line, "=")+1:]]++
		}
	}
	said.verify(t, heard)
	t.Logf("%d messages; visits: %d, %d, %d, %d", len(want), diaries[2].visits, diaries[3].visits, diaries[4].visits, diaries[5].visits)
}

func firstDifference(want, got []string) string {
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			return fmt.Sprintf("event %d is %s, want %s", i, got[i], want[i])
		}
	}
	return "one ends before the other"
}

// place is where hubs run, one after another.
type place struct {
	pool *pgxpool.Pool
	mu   sync.Mutex
	at   *Hub
	stop func()
}

func (p *place) open(ctx context.Context, c Config) {
	c.Source = NewLog(store.New(p.pool, 0), nil)
	h := New(c)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); h.Run(ctx) }() // ended by end, which waits for it
	p.mu.Lock()
	p.at, p.stop = h, func() { cancel(); <-done }
	p.mu.Unlock()
}

func (p *place) hub() *Hub {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at
}

func (p *place) end() {
	p.mu.Lock()
	stop := p.stop
	p.mu.Unlock()
	stop()
}

// diary records what one subscriber receives over all its visits.
type diary struct {
	mu       sync.Mutex
	all      []string
	at       Position
	visits   int
	complete atomic.Bool
}

func (d *diary) lines() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.all)
}

// visit resumes at a hub and leaves after a while (0: when the hub closes, or everything has arrived).
func (d *diary) visit(ctx context.Context, h *Hub, stay time.Duration) {
	v := &visitor{diary: d, gone: make(chan struct{})}
	s, err := h.Join(v, Options{})
	if err != nil {
		sleep.For(ctx, time.Millisecond)
		return
	}
	d.mu.Lock()
	d.visits++
	at := d.at
	d.mu.Unlock()
	if err := s.Resume(ctx, at, Pattern(">")); err != nil {
		s.Leave()
		return
	}
	if stay == 0 {
		stay = time.Hour
	}
	timeout := time.NewTimer(stay)
	defer timeout.Stop()
	select {
	case <-timeout.C:
	case <-v.gone:
	case <-ctx.Done():
	}
	v.leave()
	s.Leave()
}

// visitor is the sink of one visit. Events after it has left don't count, as with a broken connection.
type visitor struct {
	*diary
	left bool // guarded by diary.mu
	once sync.Once
	gone chan struct{}
}

func (v *visitor) leave() {
	v.mu.Lock()
	v.left = true
	v.mu.Unlock()
}

func (v *visitor) Deliver(events []Event) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range events {
		if v.left {
			return errLeft
		}
		v.at = e.Position()
		if e.Message == nil {
			v.all = append(v.all, fmt.Sprintf("gap %s %s %s", e.Gap.Reason, e.Gap.From, e.Gap.To))
			continue
		}
		v.all = append(v.all, fmt.Sprintf("%s %s=%s", e.Message.Position, e.Message.Channel, e.Message.Payload))
		if e.Message.Channel == "end" {
			v.complete.Store(true)
			v.once.Do(func() { close(v.gone) })
		}
	}
	return nil
}

func (v *visitor) Close(error) { v.once.Do(func() { close(v.gone) }) }

// ledger records what publishers know about their messages.
type ledger struct {
	mu                            sync.Mutex
	committed, rolledBack, unsure []string
}

func (l *ledger) note(list *[]string, texts ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*list = append(*list, texts...)
}

func (l *ledger) publish(ctx context.Context, url string, n int, rng *rand.Rand, stop chan struct{}) {
	var conn *pgx.Conn
	for i := 0; ctx.Err() == nil; i++ {
		select {
		case <-stop:
			if conn != nil {
				_ = conn.Close(context.Background())
			}
			return
		default:
		}
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = pgx.Connect(ctx, url); err != nil {
				conn = nil
				sleep.For(ctx, 5*time.Millisecond)
				continue
			}
		}
		var kept, gone []string
		say := func(list *[]string) string {
			text := fmt.Sprintf("%d-%d-%d", n, i, len(kept)+len(gone))
			*list = append(*list, text)
			return fmt.Sprintf("SELECT weir.publish('c.%d', '%s')", rng.IntN(4), text)
		}
		steps := []string{"BEGIN", say(&kept)}
		for range rng.IntN(5) {
			steps = append(steps, say(&kept))
		}
		if rng.IntN(3) == 0 {
			steps = append(steps, "SAVEPOINT s", say(&gone), "ROLLBACK TO s", say(&kept))
		}
		if rng.IntN(5) == 0 {
			steps = append(steps, fmt.Sprintf("SELECT pg_sleep(%.3f)", rng.Float64()/4))
		}
		var err error
		for _, sql := range steps {
			if _, err = conn.Exec(ctx, sql); err != nil {
				break
			}
		}
		l.note(&l.rolledBack, gone...)
		switch {
		case err != nil || rng.IntN(6) == 0:
			l.note(&l.rolledBack, kept...)
			_, _ = conn.Exec(ctx, "ROLLBACK")
		default:
			list := &l.committed
			if _, err = conn.Exec(ctx, "COMMIT"); err != nil {
				list = &l.unsure
			}
			l.note(list, kept...)
		}
		var refused *pgconn.PgError
		if err != nil && errors.As(err, &refused) && !strings.HasPrefix(refused.Code, "57") {
			panic(err)
		}
	}
}

func (l *ledger) verify(t *testing.T, heard map[string]int) {
	t.Helper()
	for text, n := range heard {
		if n != 1 {
			t.Errorf("%s was delivered %d times", text, n)
		}
	}
	for _, text := range l.committed {
		if heard[text] == 0 {
			t.Errorf("%s was committed and not delivered", text)
		}
	}
	for _, text := range l.rolledBack {
		if heard[text] > 0 {
			t.Errorf("%s was rolled back and delivered", text)
		}
	}
	if len(l.committed) < 100 || len(l.rolledBack) == 0 {
		t.Errorf("%d committed, %d rolled back: too little to prove anything", len(l.committed), len(l.rolledBack))
	}
}
