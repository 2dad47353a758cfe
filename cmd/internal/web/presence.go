package web

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/weir-pg/weir/cmd/internal/presence"
	"github.com/weir-pg/weir/internal/hub"
)

// maxMembers is the number of members in an answer.
const maxMembers = 1000

// maxInfo is the longest info of a user, in bytes.
const maxInfo = 1024

// enters makes the stream's user a member of channels. Patterns have no members.
func (s *stream) enters(filters []hub.Filter) {
	if s.web.Presence == nil {
		return
	}
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	s.enterAll(filters)
}

// entersAgain makes the stream's user a member of the channels that have got presence since the stream subscribed to them.
func (s *stream) entersAgain() {
	if s.web.Presence == nil {
		return
	}
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	s.enterAll(s.life.holding)
}

// enterAll is enters. The caller holds the life's mu.
func (s *stream) enterAll(filters []hub.Filter) {
	p, l := s.web.Presence, &s.life
	for _, f := range filters {
		c, ok := f.(hub.Channel)
		if !ok || l.gone {
			continue
		}
		if _, twice := l.present[string(c)]; twice || !p.Enter(string(c), l.user, l.info) {
			continue
		}
		if l.present == nil {
			l.present = map[string]string{}
		}
		l.present[string(c)] = l.user
	}
}

// quits is the opposite of enters.
func (s *stream) quits(filters []hub.Filter) {
	l := &s.life
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range filters {
		if user, ok := l.present[f.String()]; ok {
			s.web.Presence.Leave(f.String(), user)
			delete(l.present, f.String())
		}
	}
}

// quitsAll ends all memberships of a stream that has ended.
func (s *stream) quitsAll() {
	l := &s.life
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	for on, user := range l.present {
		s.web.Presence.Leave(on, user)
	}
	l.present = nil
}

// eventsOf returns the hub's channels with events about the members of channels.
func (w *Web) eventsOf(filters []hub.Filter) (all []hub.Filter) {
	set := w.Policies.Set()
	for _, f := range filters {
		if c, ok := f.(hub.Channel); ok && w.Presence != nil && set.PresenceOf(string(c)) {
			all = append(all, presence.EventsOf(string(c)))
		}
	}
	return all
}

// missed is what a stream needs to know when it has caught up: until then it receives no events about members.
type missed struct {
	channels []hub.Filter // of the events
	told     uint64       // before the client knew that it was subscribed
}

// misses prepares for CaughtUp.
func (s *stream) misses(events []hub.Filter) {
	if len(events) > 0 {
		s.missed = &missed{events, s.web.Presence.Told()}
	}
}

// CaughtUp implements hub.Resumer. If members of a channel have joined or left in the meantime, the client has to ask for them again: it may have done so too early.
func (s *stream) CaughtUp() {
	m := s.missed
	s.missed = nil
	if m == nil {
		return
	}
	var counts []hub.Event
	for _, on := range m.channels {
		channel := presence.Of(on)
		if !s.web.Presence.ToldSince(channel, m.told) {
			continue
		}
		event := s.web.Presence.CountOf(channel)
		counts = append(counts, hub.Event{Message: &hub.Message{Channel: on.String(), Payload: marshal(event)}})
	}
	if len(counts) == 0 {
		return
	}
	if err := s.Deliver(counts); err != nil {
		s.leave(err)
	}
}

// checkPresence returns an error if who is on a channel can't be seen.
func (w *Web) checkPresence(channel string) error {
	if err := w.checkChannel(channel); err != nil {
		return err
	}
	if w.Presence == nil || !w.Policies.Set().PresenceOf(channel) {
		return Denied("the channel "+channel+" has no presence", `its entry in the channels file needs "presence": true`)
	}
	return nil
}

// membersAnswer is the answer to a request for the members of a channel.
type membersAnswer struct {
	presence.Members
}

// members answers a WebSocket's request. No event is written between the list and the answer: a client that reads an event first would take the older answer for newer.
func (ws *webSocket) members(ctx context.Context, r *request) error {
	if err := ws.web.checkPresence(r.Channel); err != nil {
		return err
	}
	if err := ws.permit(ctx, Subscribe, []hub.Filter{hub.Channel(r.Channel)}); err != nil {
		return err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.tellLocked(hub.Position{}, outgoing{Type: "members", ID: r.ID, membersAnswer: &membersAnswer{ws.web.Presence.List(r.Channel, r.After, maxMembers)}})
}

// servePresence answers GET /v1/presence?channel=.
func (w *Web) servePresence(rw http.ResponseWriter, r *http.Request) {
	channel := r.URL.Query().Get("channel")
	remote := strings.Clone(w.ClientAddress(r))
	f := w.admit(remote)
	if f != nil {
		f.write(rw)
		return
	}
	defer w.release(remote)
	err := w.checkPresence(channel)
	if err == nil {
		_, err = w.admitClient(r.Context(), Ask{Token: token(r), Action: Subscribe, Filters: []hub.Filter{hub.Channel(channel)}, Remote: remote})
	}
	if err != nil {
		w.explain("show who is on a channel", err).write(rw)
		return
	}
	reply(rw, http.StatusOK, w.Presence.List(channel, r.URL.Query().Get("after"), maxMembers))
}

// infoOf returns the info in a token, if it is not too long, and can be logged.
func infoOf(info json.RawMessage) json.RawMessage {
	if len(info) > maxInfo || !utf8.Valid(info) {
		return nil
	}
	return info
}
