package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/weir-pg/weir/cmd/internal/natstest"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestWhatNATSLosesComesFromTheDatabase: a hub that receives only heads over NATS, because the server denies it the messages of its channel, misses
// nothing.
func TestWhatNATSLosesComesFromTheDatabase(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	may := &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{">"}}, Subscribe: &server.SubjectPermission{Allow: []string{">"}}}
	lossy := &server.Permissions{Publish: may.Publish, Subscribe: &server.SubjectPermission{Deny: []string{subjectsOf(s.name).bucket[bucketOf("lost")]}}}
	nats := natstest.Start(t, &server.Options{Users: []*server.User{
		{Username: "all", Password: "all", Permissions: may}, {Username: "lossy", Password: "lossy", Permissions: lossy}}})
	// Start this hub first, so that it is the reader.
	all := s.join(Config{URL: nats.ClientURL(), User: "all", Password: "all"})
	settle(t, all)
	some := s.join(Config{URL: nats.ClientURL(), User: "lossy", Password: "lossy"})
	if reader, _ := settle(t, all, some); reader != all {
		t.Fatal("the hub that started last is the reader")
	}
	_, b := subscribe(t, some, hub.Position{}, "lost", "found")
	for i := range 50 {
		s.publish("lost", fmt.Sprint(i))
		s.publish("found", fmt.Sprint(i))
	}
	want := s.wait(b, filters(t, "lost", "found")...)
	same(t, "hub", b.messages(), want)
	if stats := some.cluster.Stats(); stats.Fallbacks == 0 || stats.Role != Following {
		t.Errorf("it fell back to the database %d times, and is %s", stats.Fallbacks, stats.Role)
	}
}

// TestReaderWithoutDatabaseFollows: a reader that loses its database lets another hub read, and its own subscribers receive what that hub reads. When
// a reader is stopped, the others continue without a pause.
func TestReaderWithoutDatabaseFollows(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	url := natstest.Start(t, nil).ClientURL()
	pool, err := pgxpool.New(t.Context(), s.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	poor := s.joinWith(sourceOn(pool), Config{URL: url})
	settle(t, poor)
	rich := s.join(Config{URL: url})
	if reader, _ := settle(t, poor, rich); reader != poor {
		t.Fatal("the hub that started last is the reader")
	}
	_, b := subscribe(t, poor, hub.Position{}, "c")
	pool.Close()
	until(t, "the other reads", func() bool { return rich.cluster.Stats().Role == Reading })
	if reader, _ := settle(t, poor, rich); reader != rich {
		t.Fatal("a hub without a database is the reader")
	}
	for i := range 20 {
		s.publish("c", fmt.Sprint(i))
	}
	want := s.wait(b, filters(t, "c")...)
	same(t, "the hub without a database", b.messages(), want)

	third := s.join(Config{URL: url})
	settle(t, poor, rich, third)
	_, b = subscribe(t, third, hub.Position{}, "d")
	rich.end()
	start := time.Now()
	s.publish("d", "")
	until(t, "a message after the reader was stopped", func() bool { return b.count() == 1 })
	t.Logf("it arrived after %v", time.Since(start).Round(time.Millisecond))
}

// link is a connection to a NATS server that can be cut and restored. While it is cut, nothing gets through, and neither side is notified.
type link struct {
	listener net.Listener
	mu       sync.Mutex
	cut      chan struct{} // closed while the link is up
}

func newLink(t testing.TB, to string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{listener: listener, cut: make(chan struct{})}
	close(l.cut)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			all.Go(func() { l.copy(ctx, in, out) })
			all.Go(func() { l.copy(ctx, out, in) })
			all.Go(func() { <-ctx.Done(); _ = in.Close(); _ = out.Close() })
		}
	})
	t.Cleanup(func() { cancel(); _ = listener.Close(); all.Wait() })
	return l
}

func (l *link) copy(ctx context.Context, to io.WriteCloser, from io.Reader) {
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		l.mu.Lock()
		up := l.cut
		l.mu.Unlock()
		select {
		case <-up:
		case <-ctx.Done():
			return
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}

func (l *link) set(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if up {
		close(l.cut)
	} else {
		l.cut = make(chan struct{})
	}
}

// TestPartitionedHubServesItself: a hub, reader or follower, whose network to NATS silently drops everything notices, serves itself, and rejoins
// when the network is back.
func TestPartitionedHubServesItself(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nats := natstest.Start(t, nil)
	links := map[*node]*link{}
	var nodes []*node
	boxes := map[*node]*box{}
	for range 3 {
		l := newLink(t, nats.Addr().String())
		n := s.join(Config{URL: "nats://" + l.listener.Addr().String()})
		links[n], nodes = l, append(nodes, n)
	}
	settle(t, nodes...)
	for _, n := range nodes {
		_, boxes[n] = subscribe(t, n, hub.Position{}, ">")
	}
	publish := func(what string) {
		t.Helper()
		for i := range 30 {
			s.publish("c", fmt.Sprint(what, i))
		}
		for _, b := range boxes {
			s.wait(b, filters(t, ">")...)
		}
	}
	for _, who := range []string{"reader", "follower"} {
		reader, followers := settle(t, nodes...)
		partitioned := map[string]*node{"reader": reader, "follower": followers[0]}[who]
		links[partitioned].set(false)
		start := time.Now()
		publish(who + " partitioned ")
		t.Logf("with the %s partitioned, 30 messages had arrived at all hubs after %v", who, time.Since(start).Round(time.Millisecond))
		until(t, "both sides read", func() bool {
			reading := 0
			for _, n := range nodes {
				if n != partitioned && n.cluster.Stats().Role == Reading {
					reading++
				}
			}
			return reading == 1 && partitioned.cluster.Stats().Role != Following
		})
		publish(who + " still partitioned ")
		links[partitioned].set(true)
		settle(t, nodes...)
		publish(who + " back ")
	}
	want := s.wait(boxes[nodes[0]], filters(t, ">")...)
	for n, b := range boxes {
		same(t, n.cluster.name, b.messages(), want)
	}
}

// TestWantWaitsForPartsInFlight: a subscriber that resumes while a part without its channel is in flight waits until that part is dispatched, so
// it cannot mistake the part for a complete one.
func TestWantWaitsForPartsInFlight(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	url := natstest.Start(t, nil).ClientURL()
	reader := s.join(Config{URL: url})
	settle(t, reader)
	c, err := Start(t.Context(), Config{Source: s.source(), Database: s.name, URL: url, Name: "follower", Logger: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	at, err := c.Newest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Want(ctx, filters(t, "a")); err != nil {
		t.Fatal(err)
	}
	var parts []*hub.Part // returned by Next, but not yet by next
	next := func(what string) *hub.Part {
		t.Helper()
		for len(parts) == 0 {
			var err error
			if parts, err = c.Next(ctx, at); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if len(parts) > 0 {
				at = parts[len(parts)-1].After()
			}
		}
		part := parts[0]
		parts = parts[1:]
		return part
	}
	until(t, "it follows", func() bool { return c.Stats().Role == Following })
	s.publish("b", "before")
	s.publish("a", "before")
	var part *hub.Part
	for part = next("before"); len(part.Messages) == 0; part = next("before") {
	}
	if part.Covers == nil || part.Covers.Covers(filters(t, "b")) || !part.Covers.Covers(filters(t, "a")) || part.Covers.Covers(filters(t, ">")) {
		t.Error("the part claims channels that were not wanted, or lacks one that was")
	}
	wanted := make(chan error, 2)
	go func() { wanted <- c.Want(ctx, filters(t, "a")) }()
	if err := pgtest.Receive(t, wanted, "the call returns"); err != nil { // this returns immediately
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if err := c.Want(short, filters(t, "b")); err == nil {
		t.Fatal("Want returned while a part without its channel was in flight")
	}
	go func() { wanted <- c.Want(ctx, filters(t, "b")) }()
	until(t, "the bucket is counted", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.interest.wanted.has(bucketOf("b"))
	})
	s.publish("b", "after")
	for part = next("after"); len(part.Messages) == 0; part = next("after") {
	}
	if err := pgtest.Receive(t, wanted, "the call returns"); err != nil {
		t.Fatal(err)
	}
	if m := part.Messages[0]; m.Channel != "b" || string(m.Payload) != "after" {
		t.Errorf("got %s", text(m))
	}
}

// TestFramesOfOthersAreNotBelieved: frames of another version, damaged frames, and ticks of another history change nothing.
func TestFramesOfOthersAreNotBelieved(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	url := natstest.Start(t, nil).ClientURL()
	n := s.join(Config{URL: url})
	settle(t, n)
	other, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	send := func(subject string, frame []byte) {
		t.Helper()
		if err := other.Publish(subject, frame); err != nil {
			t.Fatal(err)
		}
	}
	subjects := n.cluster.subjects
	_, b := subscribe(t, n, hub.Position{}, "c")
	s.publish("c", "0")
	until(t, "the first message", func() bool { return b.count() == 1 })

	newer := beat{role: Reading, at: hub.Position{Tick: 1 << 40}, name: "newer"}.append(newFrame(kindBeat, ident{}, 64))
	newer[0] = version + 1
	for range 20 {
		send(subjects.beat, newer)
		send(subjects.head, newer)
		send(subjects.head, []byte{version})
		send(subjects.head, append(newFrame(kindHead, ident{}, 0), 1, 2, 3))
		send(subjects.bucket[bucketOf("c")], nil)
	}
	until(t, "all are counted", func() bool { return n.cluster.Stats().Unknown == 100 })
	if role := n.cluster.Stats().Role; role != Reading {
		t.Errorf("frames of another version made the hub %s", role)
	}

	// A reader of another history with a lower id: the hub follows it, but rejects all of its messages.
	lie := func() {
		at := n.Position()
		m := &hub.Message{Position: hub.Position{Epoch: 12345, Tick: at.Tick, Index: 1}, Channel: "c", Payload: []byte("a lie")}
		h := &head{tick: at.Tick, epoch: 12345, prior: 12345, cut: 1, first: 1, last: 1, end: true}
		h.filled.add(bucketOf("c"))
		h.contents[bucketOf("c")] = content{1, 1}
		send(subjects.bucket[bucketOf("c")], data{at: h.from(), bucket: bucketOf("c"), bytes: appendMessage(nil, m)}.append(newFrame(kindData, ident{}, 64)))
		send(subjects.head, h.append(newFrame(kindHead, ident{}, 64)))
	}
	until(t, "the other history is noticed", func() bool { lie(); return n.cluster.Stats().Diverged > 0 })
	for i := range 5 {
		lie()
		s.publish("c", fmt.Sprint(i+1))
	}
	want := s.wait(b, filters(t, "c")...)
	same(t, "hub", b.messages(), want)
	until(t, "the hub reads again", func() bool { return n.cluster.Stats().Role == Reading })
}
