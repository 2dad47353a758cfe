package weirui_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weir-pg/weir/weirui"
)

// fakeHub is a hub of this process with many channels.
type fakeHub struct {
	mu      sync.Mutex
	clients []weirui.HubClient
}

func (h *fakeHub) Channels(after string, most int) (some []weirui.Channel) {
	all := []weirui.Channel{{Name: `a/b ?&<"`, Subscribers: 3}}
	for i := range 150 {
		all = append(all, weirui.Channel{Name: fmt.Sprintf("c%03d", i), Subscribers: 1})
	}
	for _, c := range all {
		if c.Name > after && len(some) < most {
			some = append(some, c)
		}
	}
	return some
}

func (h *fakeHub) Figures() weirui.HubFigures {
	return weirui.HubFigures{Channels: 151, Messages: 12.34, Deliveries: 5678}
}

func (h *fakeHub) Clients() []weirui.HubClient {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.clients)
}

func (h *fakeHub) End(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := len(h.clients)
	h.clients = slices.DeleteFunc(h.clients, func(c weirui.HubClient) bool { return c.ID == id })
	return len(h.clients) < before
}

func TestChannelsAndClientsOfTheHubAreListed(t *testing.T) {
	t.Parallel()
	h := &fakeHub{clients: []weirui.HubClient{{ID: "web 7", Protocol: "sse", Address: "192.0.2.1:99", User: "<eve>", Since: "2026-01-02T03:04:05Z"}}}
	for range 250 {
		h.clients = append(h.clients, weirui.HubClient{ID: "other"})
	}
	r := newRig(t, func(c *weirui.Config) { c.Databases[0].Hub = h })
	type page struct {
		Channels []weirui.Channel
		Clients  []weirui.HubClient
		Next     string
		More     int
	}
	var list, second page
	r.data("channels", &list)
	if len(list.Channels) != 100 || list.Next != "c098" || len(list.Clients) != 200 || list.More != 51 {
		t.Errorf("lists %d channels up to %q, and %d clients, without %d", len(list.Channels), list.Next, len(list.Clients), list.More)
	}
	text := r.page("channels")
	for _, want := range []string{"12.3", "5678", "1 sse", "Disconnect everywhere", "Revoke tokens", "a/b ?&amp;&lt;&#34;", "channels/tail?channel=a%2Fb", "&lt;eve&gt;", "192.0.2.1:99", "Disconnect"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q: %s", want, text)
		}
	}
	r.data("channels?after="+list.Next, &second)
	if len(second.Channels) != 51 || second.Channels[0].Name != "c099" || second.Next != "" {
		t.Errorf("the second page has %d channels after %q", len(second.Channels), list.Next)
	}
	if said := r.do("channels/disconnect", url.Values{"id": {"web 7"}}); !strings.Contains(said, "web 7") {
		t.Errorf("says %q", said)
	}
	if answer, text := r.ask("POST", "channels/disconnect", "id=web+7&sure=yes"); answer.StatusCode != http.StatusNotFound || !strings.Contains(text, "There is no client") {
		t.Errorf("once more: %s: %s", answer.Status, text)
	}
}

func TestWithoutAHubThePageSaysWhatToDo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if text := r.page("channels"); !strings.Contains(text, "weir serve") || !strings.Contains(text, "Watch messages") {
		t.Errorf("the page is %s", text)
	}
	if answer, text := r.ask("POST", "channels/disconnect", "id=x&sure=yes"); answer.StatusCode != http.StatusNotFound || !strings.Contains(text, "This process has no hub") {
		t.Errorf("disconnect: %s: %s", answer.Status, text)
	}
	for form, want := range map[string]string{"as=json&channel=c&payload=%7B": "not valid JSON", "as=text&payload=x": "Name the channel", "as=xml&channel=c": "xml"} {
		if answer, text := r.ask("POST", "channels/publish", form); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%q: %s without %q: %s", form, answer.Status, want, text)
		}
	}
	for channel, warns := range map[string]bool{"orders.>": true, "*.created": true, "orders.created": false, "a>b": false} {
		if said := r.do("channels/publish", url.Values{"channel": {channel}, "payload": {"{}"}}); strings.Contains(said, "is a wildcard only in subscriptions") != warns {
			t.Errorf("%s: says %q", channel, said)
		}
	}
	if answer, text := r.ask("POST", "channels/publish", url.Values{"channel": {strings.Repeat("x", 300)}, "payload": {"{}"}}.Encode()); answer.StatusCode != http.StatusBadRequest {
		t.Errorf("a channel's name that is too long: %s: %s", answer.Status, text)
	}
}
