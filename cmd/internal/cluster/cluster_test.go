package cluster

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/natstest"
	"github.com/weir-pg/weir/internal/hub"
)

// TestAllHubsDeliverTheSameSequence: subscribers at every hub receive what the database has, in its order, complete and without duplicates, while
// others subscribe and leave.
func TestAllHubsDeliverTheSameSequence(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	nodes := s.cluster(natstest.Start(t, nil).ClientURL(), 3)
	reader, followers := settle(t, nodes...)

	// One follower wants everything, the other a few channels.
	wants := map[*node][]string{reader: {">"}, followers[0]: {">"}, followers[1]: {"a.1", "b.*"}}
	boxes := map[*node]*box{}
	for n, names := range wants {
		_, boxes[n] = subscribe(t, n, hub.Position{}, names...)
	}
	stop := make(chan struct{})
	var publishers, guests sync.WaitGroup
	var visits visits
	for p := range uint64(3) {
		publishers.Go(func() { publishAtRandom(s, rand.New(rand.NewPCG(seed, p)), p, 300) })
	}
	for g := range uint64(3) {
		n := followers[1]
		if g == 0 {
			n = nodes[g]
		}
		guests.Go(func() { visits.make(s, n, boxes[followers[0]], rand.New(rand.NewPCG(seed, 100+g)), stop) })
	}
	publishers.Wait()
	close(stop)
	guests.Wait()
	for n, names := range wants {
		want := s.wait(boxes[n], filters(t, names...)...)
		same(t, fmt.Sprint("subscriber to ", names), boxes[n].messages(), want)
	}
	all := s.log(filters(t, ">")...)
	for _, v := range visits.all {
		v.compare(t, all)
	}
	t.Logf("%d visits, %d messages", len(visits.all), boxes[reader].count())
	for _, n := range nodes {
		t.Logf("%+v", n.cluster.Stats())
	}
	if got := followers[1].cluster.Stats(); got.PartsReceived == 0 || got.PartsReceived < 4*got.Fallbacks {
		t.Errorf("%d parts came over NATS, and %d reads from the database were needed", got.PartsReceived, got.Fallbacks)
	}
}

// wait waits until everything published so far is in ticks and the box has received as many messages as match the filters; it returns those.
func (s *site) wait(b *box, filters ...hub.Filter) (want []string) {
	s.t.Helper()
	s.publish("mark", "")
	s.marks++
	until(s.t, "everything published is in ticks", func() bool { return len(s.log(hub.Channel("mark"))) == s.marks })
	for _, text := range s.log(filters...) {
		if !strings.Contains(text, " mark ") {
			want = append(want, text)
		}
	}
	until(s.t, fmt.Sprintf("%d messages", len(want)), func() bool { return b.count() >= len(want) })
	return want
}

// publishAtRandom publishes in transactions, some of which roll back, and some of which contain large messages.
func publishAtRandom(s *site, r *rand.Rand, publisher uint64, transactions int) {
	ctx := s.t.Context()
	for i := range transactions {
		tx, err := s.pool.Begin(ctx)
		if err != nil {
			s.t.Error(err)
			return
		}
		for m := range 1 + r.IntN(4) {
			channel := fmt.Sprintf("%c.%d", 'a'+rune(r.IntN(3)), r.IntN(20))
			payload := []byte(fmt.Sprintf("%d-%d-%d", publisher, i, m))
			if r.IntN(200) == 0 {
				payload = append(payload, make([]byte, r.IntN(900<<10))...)
			}
			if _, err := tx.Exec(ctx, `SELECT weir.publish_bytes($1, $2)`, channel, payload); err != nil {
				s.t.Error(err)
				return
			}
		}
		if r.IntN(10) == 0 {
			err = tx.Rollback(ctx)
		} else {
			err = tx.Commit(ctx)
		}
		if err != nil {
			s.t.Error(err)
			return
		}
	}
}

// visits are subscribers that come and go.
type visits struct {
	mu  sync.Mutex
	all []visit
}

// visit is a subscriber's stay between two positions.
type visit struct {
	name     string
	from, to hub.Position
	box      *box
}

// make subscribes and leaves repeatedly, sometimes from now on and sometimes from a position seen at another hub.
func (v *visits) make(s *site, n *node, seen *box, r *rand.Rand, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		one := visit{name: fmt.Sprintf("%c.%d", 'a'+rune(r.IntN(3)), r.IntN(20)), box: &box{}}
		if r.IntN(8) == 0 {
			one.name = []string{"a.*", "*.3", "c.>"}[r.IntN(3)]
		}
		if _, places := seen.got(); r.IntN(2) == 0 && len(places) > 0 {
			one.from = places[max(0, len(places)-1-r.IntN(50))]
		}
		filter := filters(s.t, one.name)
		sub, err := n.Join(one.box, hub.Options{MaxBytes: 1 << 28})
		switch {
		case err != nil:
		case one.from.IsZero():
			err = sub.Subscribe(s.t.Context(), filter...)
			one.from = n.Position()
		default:
			err = sub.Resume(s.t.Context(), one.from, filter...)
		}
		if err != nil {
			s.t.Error(err)
			return
		}
		stay := time.NewTimer(time.Duration(r.IntN(60)) * time.Millisecond)
		<-stay.C
		if err := sub.Settle(s.t.Context()); err != nil {
			s.t.Error(err)
			return
		}
		one.to = sub.Position()
		sub.Leave()
		v.mu.Lock()
		v.all = append(v.all, one)
		v.mu.Unlock()
	}
}

// compare compares what a subscriber received with what the log has between its positions.
func (v *visit) compare(t testing.TB, log []string) {
	filter := filters(t, v.name)[0]
	between := func(texts []string) (some []string) {
		for _, text := range texts {
			place, rest, _ := strings.Cut(text, " ")
			channel, _, _ := strings.Cut(rest, " ")
			if !filter.Match(channel) {
				continue
			}
			at, err := hub.ParsePosition(place)
			if err != nil {
				t.Fatal(err)
			}
			if v.from.Before(at) && !v.to.Before(at) {
				some = append(some, text)
			}
		}
		return some
	}
	got, _ := v.box.got()
	same(t, fmt.Sprintf("subscriber to %s from %s to %s", v.name, v.from, v.to), between(got), between(log))
}

// TestOneHubReadsForAll: followers send the database no queries, whether messages flow or not.
func TestOneHubReadsForAll(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nodes := s.cluster(natstest.Start(t, nil).ClientURL(), 10)
	boxes := make([]*box, len(nodes))
	for i, n := range nodes {
		_, boxes[i] = subscribe(t, n, hub.Position{}, ">")
	}
	type asked struct{ nexts, reads int64 }
	const messages = 500
	// When the machine stalls, followers consider the reader dead, read for themselves, and one may become the reader: what was counted meanwhile says nothing.
	for published, isUndisturbed := 0, false; !isUndisturbed; {
		if published >= 10*messages {
			t.Fatal("ten times, the hub that reads has changed, or the others have read as well")
		}
		reader, followers := settle(t, nodes...)
		before := map[*node]asked{}
		for _, n := range nodes {
			before[n] = asked{n.asked.nexts.Load(), n.asked.reads.Load()}
		}
		for i := range messages {
			s.publish("a", fmt.Sprint(published+i))
		}
		published += messages
		for _, b := range boxes {
			until(t, "all messages at all hubs", func() bool { return b.count() == published })
		}
		polls := reader.cluster.Stats().Polls
		isSame := true
		until(t, "the reader has polled five times while nothing happens, or another hub reads", func() bool {
			isSame = reader.cluster.Stats().Role == Reading
			return !isSame || reader.cluster.Stats().Polls >= polls+5
		})
		if !isSame {
			continue
		}
		var followersAsked int64
		for _, n := range followers {
			followersAsked += n.asked.nexts.Load() - before[n].nexts + n.asked.reads.Load() - before[n].reads
		}
		readerAsked := reader.asked.nexts.Load() - before[reader].nexts
		t.Logf("the reader queried the database %d times, the 9 followers together %d times", readerAsked, followersAsked)
		isUndisturbed = followersAsked <= readerAsked/5 // one that considers the reader dead for a moment does no harm with a few queries
	}
	want := s.log(filters(t, ">")...)
	for _, b := range boxes {
		got, _ := b.got()
		same(t, "hub", got, want)
	}
}

// TestNobodyGetsWhatNobodyWants: a hub does not receive payloads of channels without subscribers at this hub.
func TestNobodyGetsWhatNobodyWants(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nodes := s.cluster(natstest.Start(t, nil).ClientURL(), 3)
	_, followers := settle(t, nodes...)
	wanting, other := followers[0], followers[1]
	if bucketOf("large") == bucketOf("small") {
		t.Fatal("choose other names")
	}
	_, large := subscribe(t, wanting, hub.Position{}, "large")
	_, small := subscribe(t, other, hub.Position{}, "small")
	const each, times = 100_000, 30
	start := other.cluster.Stats().BytesReceived
	for range times {
		s.exec(`SELECT weir.publish('large', repeat('x', $1))`, each)
	}
	s.publish("small", "end")
	until(t, "all messages", func() bool { return large.count() == times && small.count() == 1 })
	got := other.cluster.Stats().BytesReceived - start
	t.Logf("published %d bytes; received %d by the hub that wants them, and %d by the other", each*times, wanting.cluster.Stats().BytesReceived, got)
	if got > each {
		t.Errorf("the hub without interest received %d bytes", got)
	}
	if wanting.cluster.Stats().BytesReceived < each*times {
		t.Errorf("the hub with interest received only %d bytes over NATS", wanting.cluster.Stats().BytesReceived)
	}

	// The hub unsubscribes once its last subscriber has left.
	sub, _ := subscribe(t, other, hub.Position{}, "large")
	if n := other.cluster.Stats().Buckets; n != 2 {
		t.Errorf("the hub subscribes to %d buckets", n)
	}
	sub.Leave()
	until(t, "the hub has dropped its subscription", func() bool { return other.cluster.Stats().Buckets == 1 })
}

// TestResumesAtAnotherHub: a client can resume its position at a hub whose memory has only other channels.
func TestResumesAtAnotherHub(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nodes := s.cluster(natstest.Start(t, nil).ClientURL(), 3)
	reader, followers := settle(t, nodes...)
	_, here := subscribe(t, followers[0], hub.Position{}, "a")
	_, there := subscribe(t, followers[1], hub.Position{}, "b")
	for i := range 50 {
		s.publish("a", fmt.Sprint(i))
		s.publish("b", fmt.Sprint(i))
	}
	want := s.wait(here, filters(t, "a")...)
	until(t, "the other hub has caught up", func() bool { return there.count() == 50 })
	_, places := here.got()
	for _, n := range append(followers, reader) {
		for _, at := range []int{0, 20, 48} {
			_, b := subscribe(t, n, places[at], "a")
			until(t, "the missed messages", func() bool { return b.count() >= len(want)-at-1 })
			got, _ := b.got()
			same(t, fmt.Sprintf("resumed after %d", at), got, want[at+1:])
		}
	}
}

// TestLargeTicksReachAllHubs: transactions with more messages or bytes than are sent or held at once are delivered completely and in order.
func TestLargeTicksReachAllHubs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nodes := s.cluster(natstest.Start(t, nil).ClientURL(), 2)
	_, followers := settle(t, nodes...)
	_, b := subscribe(t, followers[0], hub.Position{}, "many", "large", "c")
	s.exec(`SELECT weir.publish_many(array_agg('many'::text), array_agg(i::text ORDER BY i)) FROM generate_series(1, 25000) i`)
	s.publish("c", "between")
	s.exec(`SELECT weir.publish_many(array_agg('large'::text), array_agg(i || repeat('x', 1000000) ORDER BY i)) FROM generate_series(1, 20) i`)
	s.publish("c", "end")
	want := s.wait(b, filters(t, "many", "large", "c")...)
	same(t, "follower", b.messages(), want)
	// A hub that waits too long for a part reads the tick from the database: on a busy machine, that may be each of the first ticks.
	until(t, "a part over NATS", func() bool {
		if followers[0].cluster.Stats().PartsReceived > 0 {
			return true
		}
		s.exec(`SELECT weir.publish_many(array_agg('large'::text), array_agg(i || repeat('x', 1000000) ORDER BY i)) FROM generate_series(1, 20) i`)
		return false
	})
}

// TestRelaysWhatIsNotLogged: a message passed without being logged reaches subscribers at all hubs once.
func TestRelaysWhatIsNotLogged(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nodes := s.cluster(natstest.Start(t, nil).ClientURL(), 3)
	var boxes []*box
	for _, n := range nodes {
		_, b := subscribe(t, n, hub.Position{}, "x", "done")
		boxes = append(boxes, b)
	}
	for i, n := range nodes {
		if err := n.Pass(t.Context(), hub.Draft{Channel: "x", Payload: []byte(fmt.Sprint("from ", i)), Binary: i == 1}); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range boxes {
		until(t, "three messages", func() bool { return b.count() >= len(nodes) })
	}
	s.publish("done", "")
	for _, b := range boxes {
		until(t, "the end", func() bool { return b.count() > len(nodes) })
		if n := b.count(); n != len(nodes)+1 {
			t.Errorf("%d events, want %d", n, len(nodes)+1)
		}
	}
	if err := nodes[0].Pass(t.Context(), hub.Draft{Channel: "x", Payload: make([]byte, 2<<20)}); err == nil {
		t.Error("a message larger than NATS accepts was passed without an error")
	}
}
