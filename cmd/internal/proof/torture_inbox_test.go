package proof

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// inbox is what the subscriptions have received.
type inbox struct {
	first int64 // the first tick
	mu    sync.Mutex
	on    []*subscription
}

// subscription is what a subscription has received, in all processes that had it.
type subscription struct {
	channels []string
	after    weir.Position
	up       bool
	got      []delivery
}

// delivery is a message, or a gap if the key is empty.
type delivery struct {
	at  weir.Position
	key string
}

// subscribe starts hubs and a process with subscriptions, and returns when each has received a message.
func (w *torture) subscribe() {
	for range 2 {
		k := &tortured{proxy: newProxy(w.T, &w.port)}
		k.front = newProxy(w.T, &k.port)
		p := part{Do: "serve", Database: k.proxy.url(w.T, w.address)}
		k.begin = func() *child {
			return w.play(p, func(_ *child, words []string) {
				if at, err := netip.ParseAddrPort(words[1]); err == nil {
					k.port.Store(int32(at.Port()))
				}
			})
		}
		k.child = k.begin()
		w.hubs = append(w.hubs, k)
	}
	w.on = []*subscription{{channels: []string{">"}}, {channels: []string{"torture.a.*"}}, {channels: []string{"torture.*.x", "torture.b.y"}}, {channels: []string{"torture.>"}}}
	w.listen()
	w.eventually("all subscriptions are established", func() (bool, string) {
		w.inbox.mu.Lock()
		defer w.inbox.mu.Unlock()
		n := 0
		for _, s := range w.on {
			if s.up {
				n++
			}
		}
		return n == len(w.on), fmt.Sprint(n)
	})
	w.ledger.mu.Lock()
	w.fates["mfirst"] = &txRecord{fate: committed}
	w.ledger.mu.Unlock()
	w.everybodyHears(connect(w.T, w.address), "mfirst")
}

// listen starts the process with the subscriptions, each of which resumes where it was.
func (w *torture) listen() {
	p := part{Do: "subscribe"}
	for _, k := range w.hubs {
		p.Hubs = append(p.Hubs, "http://"+k.front.listener.Addr().String())
	}
	w.inbox.mu.Lock()
	for _, s := range w.on {
		p.Channels, p.After = append(p.Channels, s.channels), append(p.After, s.after)
	}
	w.inbox.mu.Unlock()
	w.listener = w.play(p, func(_ *child, words []string) {
		w.inbox.mu.Lock()
		defer w.inbox.mu.Unlock()
		i := 0
		_, _ = fmt.Sscan(words[1], &i)
		s := w.on[i]
		switch words[0] {
		case "subscribed":
			s.up = true
		case "message":
			s.after = weir.Position(words[2])
			s.got = append(s.got, delivery{s.after, words[3]})
		case "gap":
			s.after = weir.Position(words[2])
			s.got = append(s.got, delivery{at: s.after})
		default:
			w.Errorf("subscription %d: %v", i, words)
		}
	})
}

// everybodyHears publishes a message to a channel of all subscriptions, and waits until they have received it.
func (w *torture) everybodyHears(conn *pgx.Conn, key string) {
	exec(w.T, conn, `SELECT weir.publish('torture.a.x', $1)`, key)
	w.eventually("every subscription has received message "+key, func() (bool, string) {
		w.inbox.mu.Lock()
		defer w.inbox.mu.Unlock()
		for i, s := range w.on {
			if len(s.got) == 0 || s.got[len(s.got)-1].key != key {
				return false, fmt.Sprintf("subscription %d has not received it", i)
			}
		}
		return true, ""
	})
}
