package presence

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// node is a hub with presence.
type node struct {
	*Presence
	kill func() // ends it without a word
}

func start(t *testing.T, url, secret string) node {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	h := hub.New(hub.Config{Source: hub.NewLog(store.New(pgtest.Pool(t, url), 0), nil), Logger: quiet})
	p := New(Config{
		Hub: h, Secret: []byte(secret), On: func(channel string) bool { return strings.HasPrefix(channel, "room.") }, Logger: quiet,
		Every: 20 * time.Millisecond, Beat: 200 * time.Millisecond, Grace: 100 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, 2)
	go func() { h.Run(ctx); done <- struct{}{} }()
	go func() { p.Run(ctx); done <- struct{}{} }()
	kill := func() { cancel(); <-done; <-done; done <- struct{}{}; done <- struct{}{} }
	t.Cleanup(kill)
	return node{p, kill}
}

// names lists the members of a channel.
func (n node) names(channel string) string {
	var all []string
	for _, m := range n.List(channel, "", 1000).Users {
		all = append(all, m.User)
	}
	return strings.Join(all, " ")
}

func (n node) until(t *testing.T, channel, want string) {
	t.Helper()
	pgtest.Until(t, fmt.Sprintf("the members of %s are %q", channel, want), func() bool { return n.names(channel) == want })
}

// TestAllHubsKnowWhoIsOnAChannel: also those that are started later, and after a hub has died, whose members leave; a user at two hubs is one member, until both have
// lost it; and a page that is loaded again has not left.
func TestAllHubsKnowWhoIsOnAChannel(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, b := start(t, url, "secret"), start(t, url, "secret")
	a.Enter("room.1", "ada", json.RawMessage(`{"color":"red"}`))
	a.Enter("room.1", "bob", nil)
	b.Enter("room.1", "bob", nil)
	b.Enter("room.1", "carl", nil)
	b.Enter("room.2", "carl", nil)
	if a.Enter("other", "ada", nil) || a.Enter("room.1", "", nil) {
		t.Error("a channel without presence, or a client without a name, has a member")
	}
	for _, n := range []node{a, b} {
		n.until(t, "room.1", "ada bob carl")
		n.until(t, "room.2", "carl")
	}
	if m := b.List("room.1", "", 2); m.Count != 3 || m.Next != "bob" || string(m.Users[0].Info) != `{"color":"red"}` {
		t.Errorf("the first two members: %+v", m)
	}
	if m := b.List("room.1", "bob", 2); m.Next != "" || len(m.Users) != 1 || m.Users[0].User != "carl" {
		t.Errorf("the members after bob: %+v", m)
	}
	late := start(t, url, "secret")
	late.until(t, "room.1", "ada bob carl")
	a.Leave("room.1", "bob") // still at b
	a.Leave("room.1", "ada")
	a.Enter("room.1", "ada", nil) // within the grace
	b.Leave("room.2", "carl")
	for _, n := range []node{a, b, late} {
		n.until(t, "room.2", "")
		n.until(t, "room.1", "ada bob carl")
	}
	b.kill()
	a.until(t, "room.1", "ada")
	late.until(t, "room.1", "ada")
	again := start(t, url, "secret")
	again.Enter("room.1", "carl", nil)
	for _, n := range []node{a, late, again} {
		n.until(t, "room.1", "ada carl")
	}
	if len(again.List("room.3", "", 10).Users) != 0 {
		t.Error("a channel without members has some")
	}
}

// TestFramesThatNoHubSignedAreIgnored: whoever may publish with SQL can't invent members.
func TestFramesThatNoHubSignedAreIgnored(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, other := start(t, url, "secret"), start(t, url, "another secret")
	other.Enter("room.1", "mallory", nil)
	pool := pgtest.Pool(t, url)
	for _, payload := range []string{"", "{}", strings.Repeat("0", 32) + `{"hub":"x","seq":1,"reset":true,"done":true,"users":[{"c":"room.1","u":"eve"}]}`} {
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish('$weir.presence', $1)`, payload); err != nil {
			t.Fatal(err)
		}
	}
	other.until(t, "room.1", "mallory")
	b := start(t, url, "secret")
	b.Enter("room.1", "ada", nil)
	a.until(t, "room.1", "ada")
	b.until(t, "room.1", "ada")
}

// TestThousandsMayJoinAtOnce: all hubs know all of them soon, they are announced in few messages, and an event lists no more than a bounded number; beyond the
// number that is listed, members are counted.
func TestThousandsMayJoinAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	a, b := start(t, url, "secret"), start(t, url, "secret")
	events := make(received, 1000)
	s, err := a.Hub.Join(events, hub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Subscribe(t.Context(), EventsOf("room.1"), hub.Pattern(">")); err != nil {
		t.Fatal(err)
	}
	const extra = 50
	for i := range maxRoom + extra {
		b.Enter("room.1", fmt.Sprintf("user %05d", i), json.RawMessage(`{"some":"information"}`))
	}
	for _, n := range []node{a, b} {
		pgtest.Until(t, "all members are counted", func() bool { return n.List("room.1", "", 0).Count == maxRoom+extra })
	}
	if m := a.List("room.1", "", 1e6); len(m.Users) != maxRoom {
		t.Errorf("%d members are listed, want %d", len(m.Users), maxRoom)
	}
	for count := 0; count < maxRoom+extra; {
		payload := pgtest.Receive(t, events, "an event")
		var e Event
		if err := json.Unmarshal([]byte(payload), &e); err != nil || e.Channel != "room.1" || len(e.Joined) > eventChanges {
			t.Fatalf("an event of %d bytes: %.200s %v", len(payload), payload, err)
		}
		count = e.Count
	}
	var messages int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.message WHERE channel = '$weir.presence'`).Scan(&messages); err != nil || messages > 500 {
		t.Errorf("%d messages announced the members: %v", messages, err)
	}
	for i := range maxRoom + extra {
		b.Leave("room.1", fmt.Sprintf("user %05d", i))
	}
	for _, n := range []node{a, b} {
		pgtest.Until(t, "all have left", func() bool { return n.List("room.1", "", 0).Count == 0 })
	}
}

// received is a sink that passes payloads on.
type received chan string

func (r received) Deliver(all []hub.Event) error {
	for _, e := range all {
		r <- string(e.Message.Payload)
	}
	return nil
}

func (received) Close(error) {}

// TestWhatALostFrameSaidIsAskedFor: a hub that missed frames of another asks for all of its members.
func TestWhatALostFrameSaidIsAskedFor(t *testing.T) {
	t.Parallel()
	p := New(Config{On: func(string) bool { return true }})
	p.asks = false
	var number int64
	receive := func(f frame) {
		number++
		f.N = number
		p.receive(f)
	}
	users := func(names ...string) (all []entry) {
		for _, name := range names {
			all = append(all, entry{Channel: "c", User: name})
		}
		return all
	}
	list := func() string {
		var all []string
		for _, m := range p.List("c", "", 100).Users {
			all = append(all, m.User)
		}
		return strings.Join(all, " ")
	}
	receive(frame{Hub: "h", Seq: 1, Reset: true, Done: true, Users: users("ada")})
	receive(frame{Hub: "h", Seq: 2, Users: users("bob")})
	receive(frame{Hub: "h", Seq: 2, Users: users("twice")})
	if p.asks || list() != "ada bob" {
		t.Fatalf("members %s, asks: %v", list(), p.asks)
	}
	receive(frame{Hub: "h", Seq: 4, Users: users("dan")})
	if !p.asks || list() != "ada bob" {
		t.Errorf("after a missing frame: members %s, asks: %v", list(), p.asks)
	}
	receive(frame{Hub: "h", Seq: 5, Reset: true, Users: users("carl", "dan")})
	receive(frame{Hub: "h", Seq: 6, Done: true, Users: users("eve", "bob")})
	if list() != "bob carl dan eve" {
		t.Errorf("after all were announced again: %s", list())
	}
	p.asks = false
	receive(frame{Hub: "h", Seq: 6, Beat: true})
	if p.asks {
		t.Error("a beat that agrees makes it ask")
	}
	receive(frame{Hub: "h", Seq: 7, Beat: true})
	receive(frame{Hub: "unknown", Seq: 3, Beat: true})
	if !p.asks || !slices.Equal([]string{"bob carl dan eve"}, []string{list()}) {
		t.Errorf("a beat after a lost frame: asks: %v, members %s", p.asks, list())
	}
}
