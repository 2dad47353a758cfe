package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// TestClosedHubTakesNobody: after Run has ended, joining, subscribing and publishing return ErrClosed, and no goroutine of the hub is left, even
// for subscribers that were blocked, paused or catching up.
func TestClosedHubTakesNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h, end := run(t, Config{Source: NewLog(store.New(pool, 0), nil), RingBytes: 1})
	s, b := join(t, h, "a")
	at := h.Position()
	var sinks []*blocked
	for i := range 6 {
		sink := newBlocked()
		one, err := h.Join(sink, Options{})
		if err != nil {
			t.Fatal(err)
		}
		switch i % 3 {
		case 0:
			err = one.Subscribe(t.Context(), Channel("a"))
		case 1:
			err = one.Resume(t.Context(), at, Channel("a"))
		case 2:
			one.Pause()
			err = one.Resume(t.Context(), at, Channel("a"))
		}
		if err != nil {
			t.Fatal(err)
		}
		sinks = append(sinks, sink)
	}
	for i := range 20 {
		exec(t, pool, `SELECT weir.publish('a', $1)`, fmt.Sprint(i))
	}
	b.until(t, "19")
	<-sinks[0].began
	<-sinks[1].began
	end()
	for i, sink := range sinks {
		if sink.closed == nil {
			t.Errorf("sink %d was not closed", i)
		}
	}
	if !errors.Is(b.closed, ErrClosed) || !errors.Is(s.Err(), ErrClosed) || h.Live() {
		t.Errorf("closed with %v, ended with %v, live %t", b.closed, s.Err(), h.Live())
	}
	if _, err := h.Join(newBox(), Options{}); !errors.Is(err, ErrClosed) {
		t.Errorf("join: %v", err)
	}
	if err := s.Subscribe(t.Context(), Channel("b")); !errors.Is(err, ErrClosed) {
		t.Errorf("subscribe: %v", err)
	}
	if err := s.Resume(t.Context(), at, Channel("b")); !errors.Is(err, ErrClosed) {
		t.Errorf("resume: %v", err)
	}
	if err := h.Publish(t.Context(), Draft{Channel: "a"}); !errors.Is(err, ErrClosed) {
		t.Errorf("publish: %v", err)
	}
	s.Continue()
	s.Unsubscribe(Channel("a"))
	s.Leave()
	var left string
	until(t, "no goroutine of the hub is left", func() bool { left = ownGoroutines(); return left == "" })
	if left != "" {
		t.Error(left)
	}
}

// ownGoroutines lists the goroutines that run this package's code, except for tests.
func ownGoroutines() string {
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 2)
	var own []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, "internal/hub.(*") && !strings.Contains(stack, "testing.tRunner") {
			own = append(own, stack)
		}
	}
	return strings.Join(own, "\n\n")
}

// TestHubEndsBeforeItBegins: Run returns immediately if its context has ended, and callers that wait for the hub get an error.
func TestHubEndsBeforeItBegins(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, "postgres://nobody@127.0.0.1:1/none?connect_timeout=1")
	h := New(Config{Source: NewLog(store.New(pool, 0), nil)})
	s, err := h.Join(newBox(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if err := s.Subscribe(t.Context(), Channel("a")); !errors.Is(err, ErrClosed) {
			t.Errorf("subscribe: %v", err)
		}
	})
	cancel()
	h.Run(ctx)
	waiting.Wait()
}

// TestPositionNeverRunsAhead: a subscriber's position never moves backwards, and never past the events its sink has received.
func TestPositionNeverRunsAhead(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	h := start(t, url)
	a, b := join(t, h, "a")
	stop := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		last := Position{}
		for {
			select {
			case <-stop:
				return
			default:
			}
			at := a.Position()
			got := b.snapshot() // after the position was read
			if at.Before(last) {
				t.Errorf("position %s after %s", at, last)
			}
			last = at
			b.mu.Lock()
			b.claims = append(b.claims, claim{at, len(got)})
			b.mu.Unlock()
		}
	})
	for i := range 300 {
		exec(t, pool, `SELECT weir.publish(CASE $1::int % 3 WHEN 0 THEN 'other' ELSE 'a' END, $1::int::text)`, i)
	}
	exec(t, pool, `SELECT weir.publish('a', 'end')`)
	all := b.until(t, "end")
	close(stop)
	looking.Wait()
	for _, c := range b.claims {
		if c.had < len(all) && !c.at.Before(all[c.had].Position()) {
			t.Errorf("the position was %s before %s was delivered", c.at, all[c.had].Position())
		}
	}
}

// TestBadDraftHurtsNobodyElse: of messages that different clients publish at the same time, only the invalid one is refused.
func TestBadDraftHurtsNobodyElse(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	h := start(t, url)
	_, b := join(t, h, "a")
	var publishers sync.WaitGroup
	for i := range 200 {
		publishers.Go(func() {
			d := Draft{Channel: "a", Payload: fmt.Append(nil, i)}
			bad := i%20 == 0
			if bad {
				d.Payload = make([]byte, 1<<20+1)
			}
			err := h.Publish(t.Context(), d)
			var refused *RefusedError
			if bad != errors.As(err, &refused) || !bad && err != nil {
				t.Errorf("message %d: %v", i, err)
			}
		})
	}
	publishers.Wait()
	if got := b.texts(t, 190); len(got) != 190 {
		t.Errorf("%d messages were delivered", len(got))
	}
	for _, name := range []string{"", strings.Repeat("x", 256), "a\x00b", "a\xffb"} {
		if err := h.Publish(t.Context(), Draft{Channel: name}); err == nil {
			t.Errorf("channel %q was accepted", name)
		}
	}
}

// TestSubscribersAreToldOfTheEndThoughAMessageIsNotLogged: a database that does not answer a publisher must not keep subscribers from connecting elsewhere.
func TestSubscribersAreToldOfTheEndThoughAMessageIsNotLogged(t *testing.T) {
	t.Parallel()
	pool, hold := pgtest.Pool(t, pgtest.Database(t)), make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	h, end := run(t, Config{Source: held{Source: NewLog(store.New(pool, 0), nil), publish: hold}})
	s, _ := join(t, h, "a")
	published := make(chan error, 1)
	go func() { published <- h.Publish(t.Context(), Draft{Channel: "a"}) }()
	hold <- struct{}{} // the first is logged, and the second is not
	if err := pgtest.Receive(t, published, "the first message is logged"); err != nil {
		t.Fatal(err)
	}
	go func() { published <- h.Publish(t.Context(), Draft{Channel: "a"}) }()
	until(t, "it is being logged", func() bool { return h.publishing.Stuck("publish", 1) != nil })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end()
	}()
	until(t, "the subscriber is told", func() bool { return errors.Is(s.Err(), ErrClosed) })
	if err := pgtest.Receive(t, published, "the publisher is told"); !errors.Is(err, ErrClosed) {
		t.Errorf("the publisher is told %v, want ErrClosed", err)
	}
	select {
	case <-ended:
		t.Error("the hub has ended, while it uses its database")
	default:
	}
	release()
	pgtest.Receive(t, ended, "the hub ends")
}
