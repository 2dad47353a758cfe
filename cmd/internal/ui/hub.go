package ui

import (
	"cmp"
	"slices"
	"time"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/weirui"
)

// hub implements weirui.Hub.
type hub struct{ server *server.Server }

// Channels implements weirui.Hub.
func (h hub) Channels(after string, most int) []weirui.Channel {
	found := h.server.Hub().Channels(after, most)
	all := make([]weirui.Channel, len(found))
	for i, c := range found {
		all[i] = weirui.Channel{Name: c.Name, Subscribers: c.Subscribers}
	}
	return all
}

// Clients implements weirui.Hub.
func (h hub) Clients() []weirui.HubClient {
	found := h.server.Clients()
	slices.SortFunc(found, func(a, b web.Client) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID)) })
	all := make([]weirui.HubClient, len(found))
	for i, c := range found {
		all[i] = weirui.HubClient{ID: c.ID, Protocol: c.Protocol, Address: c.Address, User: c.User, Since: c.Since.UTC().Format(time.RFC3339)}
	}
	return all
}

// Figures implements weirui.Hub.
func (h hub) Figures() weirui.HubFigures {
	f := h.server.Figures()
	return weirui.HubFigures{Channels: f.Channels, Messages: f.Messages, Deliveries: f.Deliveries}
}

// End implements weirui.Hub.
func (h hub) End(id string) bool { return h.server.End(id) }

// listed implements weirui.Hub for a database of a list, whose hub runs only while it has clients.
type listed struct {
	many *server.Many
	url  string
}

// Channels implements weirui.Hub.
func (l listed) Channels(after string, most int) []weirui.Channel {
	if s := l.many.Hub(l.url); s != nil {
		return hub{s}.Channels(after, most)
	}
	return nil
}

// Clients implements weirui.Hub.
func (l listed) Clients() []weirui.HubClient {
	if s := l.many.Hub(l.url); s != nil {
		return hub{s}.Clients()
	}
	return nil
}

// Figures implements weirui.Hub.
func (l listed) Figures() (f weirui.HubFigures) {
	if s := l.many.Hub(l.url); s != nil {
		f = hub{s}.Figures()
	}
	return f
}

// End implements weirui.Hub.
func (l listed) End(id string) bool {
	s := l.many.Hub(l.url)
	return s != nil && s.End(id)
}
