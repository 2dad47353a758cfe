package ui

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/connstring"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// TestTheUIOfManyShowsTheirHubs: the databases of a list have pages whether their hubs run or not, and those show the channels and clients of their own hub.
func TestTheUIOfManyShowsTheirHubs(t *testing.T) {
	t.Parallel()
	one, two := pgtest.Database(t), pgtest.Database(t)
	list := func() ([]string, error) { return []string{one, two}, nil }
	var log pgtest.Log
	c := Config{Open: weirui.Viewer, List: list, ListEvery: 20 * time.Millisecond}
	c.Logger = log.Logger()
	ui, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	m, err := server.StartMany(ctx, server.ManyConfig{List: list, Config: server.Config{Name: t.Name(), ListenHTTP: "127.0.0.1:0", Logger: c.Logger, Web: web.Config{Anonymous: true}, UI: ui}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := m.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	page := func(database string) string {
		names, err := connstring.Named(database)
		if err != nil {
			t.Fatal(err)
		}
		answer, text := ask(t, "GET", m.UIURL()+"db/"+names.Full+"/channels", "Accept", "application/json")
		if answer.StatusCode != http.StatusOK {
			return answer.Status + ": " + text
		}
		return text
	}
	pgtest.Until(t, "both databases have pages", func() bool { return strings.HasPrefix(page(one), "{") && strings.HasPrefix(page(two), "{") })
	if m.Hub(one) != nil || m.Hub(two) != nil {
		t.Error("the UI has started a hub")
	}
	names, err := connstring.Named(one)
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := websocket.Dial(ctx, fmt.Sprintf("http://%s/databases/%s/v1/ws", m.HTTPAddr(), names.Short), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(ctx, websocket.MessageText, []byte(`{"type":"subscribe","channels":["news-of-one"]}`)); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "the channel is shown", func() bool { return strings.Contains(page(one), "news-of-one") })
	if text := page(two); strings.Contains(text, "news-of-one") {
		t.Errorf("it is shown for the other database, too: %s", text)
	}
}
