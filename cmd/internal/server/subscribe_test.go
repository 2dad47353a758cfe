package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

func next(t testing.TB, sub *weir.Subscription) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := sub.Next(ctx)
	switch {
	case err != nil:
		t.Fatal(err)
	case e.Gap != nil:
		return fmt.Sprintf("gap %s", e.Gap.Reason)
	}
	return e.Message.Channel + "=" + string(e.Message.Payload)
}

// TestGoClientGoesOnWhereItWas: while hubs stop one after another, and when reading directly from the database, nothing is lost or
// duplicated.
func TestGoClientGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	client := weir.NewClient(pgtest.Pool(t, database))
	anonymous := Config{Database: database, Web: web.Config{Anonymous: true}}
	hubs := []*Server{start(t, anonymous), start(t, anonymous), start(t, anonymous)}
	config := weir.SubscribeConfig{Channels: []string{"a.*", "b"}}
	for _, h := range hubs {
		config.Hubs = append(config.Hubs, "http://"+h.HTTPAddr().String())
	}
	byHub, err := weir.Subscribe(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer byHub.Close()
	straight, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Channels: config.Channels, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	defer straight.Close()
	var want, got, gotStraight []string
	publish := func(n int) {
		for range n {
			i := len(want)
			channel := []string{"a.x", "a.y", "b"}[i%3]
			payload := []byte(fmt.Sprint(i))
			if err := client.Publish(t.Context(), channel, payload, &weir.PublishOptions{Binary: i%5 == 0}); err != nil {
				t.Fatal(err)
			}
			want = append(want, fmt.Sprintf("%s=%d", channel, i))
		}
	}
	for i := range hubs {
		publish(20)
		for len(got) < len(want)-5 {
			got = append(got, next(t, byHub))
		}
		if i < len(hubs)-1 {
			if err := hubs[i].Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(got) < len(want) {
		got = append(got, next(t, byHub))
	}
	for len(gotStraight) < len(want) {
		gotStraight = append(gotStraight, next(t, straight))
	}
	if !slices.Equal(got, want) {
		t.Errorf("over hubs: got %v", got)
	}
	if !slices.Equal(gotStraight, want) {
		t.Errorf("straight: got %v", gotStraight)
	}
	again, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Channels: config.Channels, Client: client, After: byHub.Position()})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	publish(1)
	if got := next(t, again); got != want[len(want)-1] {
		t.Errorf("resumed: got %s", got)
	}
}

// TestASubscriptionBeginsWithWhatIsPublishedThen: not with what was published before, although nobody has cut ticks of that yet.
func TestASubscriptionBeginsWithWhatIsPublishedThen(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	client := weir.NewClient(pool)
	if err := client.Publish(t.Context(), "a", []byte("old"), nil); err != nil {
		t.Fatal(err)
	}
	open, err := pool.Begin(t.Context())
	if err == nil {
		err = client.PublishTx(t.Context(), open, "a", []byte("late"), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	sub, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Channels: []string{"a"}, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := client.Publish(t.Context(), "a", []byte("new"), nil); err != nil {
		t.Fatal(err)
	}
	if got := []string{next(t, sub), next(t, sub)}; !slices.Equal(got, []string{"a=late", "a=new"}) {
		t.Errorf("got %q, want late and new", got)
	}
}

// TestRefusalEndsTheSubscription: a client that may not subscribe receives the error immediately.
func TestRefusalEndsTheSubscription(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	s := start(t, Config{Database: database})
	_, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Channels: []string{"a"}, Hubs: []string{"http://" + s.HTTPAddr().String()}})
	if err == nil {
		t.Fatal("a hub without an Authorizer let a client subscribe")
	}
	t.Log(err)
	open := start(t, Config{Database: database, Web: web.Config{Anonymous: true}})
	_, err = weir.Subscribe(t.Context(), weir.SubscribeConfig{
		Channels: []string{"a"}, Hubs: []string{"http://" + open.HTTPAddr().String()}, HTTP: &http.Client{Transport: page{}},
	})
	if err == nil || !strings.Contains(err.Error(), "not allowed to connect") {
		t.Errorf("a program that names an origin as pages do, though the hub allows none: %v", err)
	}
}

// page names an origin, as browsers do for a page.
type page struct{}

func (page) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Origin", "https://app.example.com")
	return http.DefaultTransport.RoundTrip(r)
}
