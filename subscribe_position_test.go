package weir_test

import (
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAPositionAdvancesWithoutEvents: directly from the database too, so that whoever stores it goes on behind the messages of others.
func TestAPositionAdvancesWithoutEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	config := weir.SubscribeConfig{Client: r.client, Channels: []string{"quiet"}}
	sub, err := weir.Subscribe(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	publish := func(channel, payload string) {
		t.Helper()
		if err := r.client.Publish(t.Context(), channel, []byte(payload), nil); err != nil {
			t.Fatal(err)
		}
	}
	next := func(sub *weir.Subscription, want string) {
		t.Helper()
		if e, err := sub.Next(t.Context()); err != nil || e.Message == nil || string(e.Message.Payload) != want {
			t.Fatalf("got %+v, %v; want %s", e, err, want)
		}
	}
	publish("quiet", "first")
	next(sub, "first")
	before := sub.Position()
	publish("busy", "for others")
	pgtest.Until(t, "the position has moved", func() bool { return sub.Position() != before })
	config.After = sub.Position()
	publish("quiet", "second")
	next(sub, "second")
	again, err := weir.Subscribe(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	next(again, "second")
}
