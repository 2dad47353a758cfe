package server

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestASubscriptionInGoBeginsWithTheLastMessages: of each channel, at a hub and straight from the database; everything later follows, also after the connection was lost before
// anything was read. What can't be is refused.
func TestASubscriptionInGoBeginsWithTheLastMessages(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	client := weir.NewClient(pgtest.Pool(t, database))
	publish := func(channel, payload string) {
		t.Helper()
		if err := client.Publish(t.Context(), channel, []byte(payload), &weir.PublishOptions{Binary: payload == "4"}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		publish([]string{"a", "room.1", "room.2"}[i%3], fmt.Sprint(i))
	}
	first := start(t, Config{Database: database, Web: web.Config{Anonymous: true}})
	second := start(t, Config{Database: database, Name: "second", Web: web.Config{Anonymous: true}})
	at := func(hubs ...*Server) (urls []string) {
		for _, h := range hubs {
			urls = append(urls, "http://"+h.HTTPAddr().String())
		}
		return urls
	}
	channels := []string{"a", "room.*", "a"}
	var all []*weir.Subscription
	for name, config := range map[string]weir.SubscribeConfig{
		"a hub":        {Hubs: at(second), Channels: channels, Last: 3},
		"the database": {Client: client, Channels: channels, Last: 3},
	} {
		sub, err := weir.Subscribe(t.Context(), config)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer sub.Close()
		h := sub.History()
		var got []string
		for _, m := range h.Messages {
			if m.Position == "" || m.Binary != (string(m.Payload) == "4") {
				t.Errorf("%s: the message %+v", name, m)
			}
			got = append(got, m.Channel+"="+string(m.Payload))
		}
		if want := []string{"a=0", "room.2=2", "a=3", "room.1=4", "room.2=5"}; !slices.Equal(got, want) || !h.Complete {
			t.Errorf("%s: the last messages %q (complete: %v), want %q", name, got, h.Complete, want)
		}
		all = append(all, sub)
	}
	publish("room.1", "later")
	for _, sub := range all {
		if got := next(t, sub); got != "room.1=later" {
			t.Errorf("after the history came %s", got)
		}
	}

	// The hub is lost before anything was read: the subscription continues at another one, and does not begin anew.
	lost, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Hubs: at(first), Channels: []string{"b"}, Last: 2, HTTP: via(first, second)})
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Close()
	if h := lost.History(); len(h.Messages) != 0 || !h.Complete {
		t.Errorf("the history of a channel without messages: %+v", h)
	}
	if err := first.Stop(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	publish("b", "1")
	publish("b", "2")
	if got := []string{next(t, lost), next(t, lost)}; !slices.Equal(got, []string{"b=1", "b=2"}) {
		t.Errorf("after the hub was lost: %q", got)
	}

	for says, config := range map[string]weir.SubscribeConfig{
		"Last is 1001":            {Client: client, Channels: channels, Last: 1001},
		"Last is -1":              {Hubs: at(second), Channels: channels, Last: -1},
		"both After and Last":     {Client: client, Channels: channels, Last: 1, After: lost.Position()},
		"Presence needs Hubs":     {Client: client, Channels: channels, Presence: true},
		"history is from 0 to 10": {Hubs: at(limited10(t, database)), Channels: channels, Last: 11},
	} {
		if sub, err := weir.Subscribe(t.Context(), config); err == nil {
			sub.Close()
			t.Errorf("%+v was accepted", config)
		} else if !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want something that says %q", err, says)
		}
	}
}

func limited10(t *testing.T, database string) *Server {
	return start(t, Config{Database: database, Name: "limited", Web: web.Config{Anonymous: true, Limits: web.Limits{History: 10}}})
}

// via sends requests for one hub to another one once the first does not answer, as a load balancer does.
func via(first, second *Server) *http.Client {
	return &http.Client{Transport: balancer{first.HTTPAddr().String(), second.HTTPAddr().String()}}
}

type balancer struct{ first, second string }

func (b balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && answer.StatusCode < http.StatusInternalServerError {
		return answer, nil
	}
	if err == nil {
		answer.Body.Close()
	}
	other := r.Clone(r.Context())
	other.URL.Host = b.second
	return http.DefaultTransport.RoundTrip(other)
}

// TestSubscriptionsInGoSeeWhoIsOnAChannel: with whom they share it, at whatever hub, who joins and who leaves.
func TestSubscriptionsInGoSeeWhoIsOnAChannel(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	path := filepath.Join(t.TempDir(), "channels.json")
	if err := os.WriteFile(path, []byte(`{"channels": [{"match": "room.*", "presence": true}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var hubs []string
	for i := range 2 {
		s := start(t, Config{Database: database, Name: fmt.Sprint(i), ChannelsFile: path, Web: web.Config{Authorizer: authorizer(t)}})
		hubs = append(hubs, "http://"+s.HTTPAddr().String())
	}
	subscribe := func(hub, user string) *weir.Subscription {
		t.Helper()
		sub, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{
			Hubs: []string{hub}, Channels: []string{"room.1", "other"}, Presence: true, Last: 1,
			Token: func(context.Context) (string, error) {
				return tokenFor(t, user, nil, nil, jwt.MapClaims{"weir": map[string]any{"subscribe": []string{"room.1", "other"}, "info": map[string]string{"is": user}}}), nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sub.Close)
		return sub
	}
	ada := subscribe(hubs[0], "ada")
	until := func(what string, holds func(*weir.PresenceChange) bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for event, err := range ada.All(ctx) {
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if event.Presence != nil && holds(event.Presence) {
				return
			}
		}
	}
	bob := subscribe(hubs[1], "bob")
	until("bob joins", func(p *weir.PresenceChange) bool {
		return p.Channel == "room.1" && p.Count == 2 && slices.ContainsFunc(p.Joined, func(m weir.Member) bool { return m.User == "bob" && string(m.Info) == `{"is":"bob"}` })
	})
	page, err := ada.Members(t.Context(), "room.1", "")
	if err != nil || page.Count != 2 || len(page.Users) != 2 || page.Users[0].User != "ada" || page.Users[1].User != "bob" || page.Next != "" {
		t.Errorf("the members: %+v, %v", page, err)
	}
	if page, err := ada.Members(t.Context(), "room.1", "ada"); err != nil || len(page.Users) != 1 || page.Users[0].User != "bob" {
		t.Errorf("the members after ada: %+v, %v", page, err)
	}
	bob.Close()
	until("bob leaves", func(p *weir.PresenceChange) bool { return slices.Contains(p.Left, "bob") && p.Count == 1 })
	if _, err := ada.Members(t.Context(), "other", ""); err == nil || !strings.Contains(err.Error(), `the channel other has no presence`) {
		t.Errorf("the members of a channel without presence: %v", err)
	}
	straight, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Client: weir.NewClient(pgtest.Pool(t, database)), Channels: []string{"room.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer straight.Close()
	if _, err := straight.Members(t.Context(), "room.1", ""); err == nil || !strings.Contains(err.Error(), "only hubs know") {
		t.Errorf("the members without a hub: %v", err)
	}
}
