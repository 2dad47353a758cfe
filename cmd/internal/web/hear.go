package web

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-pg/weir/cmd/internal/presence"
	"github.com/weir-pg/weir/internal/hub"
)

// request is a frame from a WebSocket's client.
type request struct {
	Type     string          `json:"type"`
	ID       json.RawMessage `json:"id"`
	Channels List[string]    `json:"channels"`
	Position string          `json:"position"`
	Last     int             `json:"last"`     // messages of each channel to begin with
	Presence bool            `json:"presence"` // events about the channels' members
	After    string          `json:"after"`
	Token    string          `json:"token"`
	draftJSON
	Messages List[draftJSON] `json:"messages"`
}

const (
	maxID      = 64               // bytes of a request's id
	patience   = 10 * time.Second // for what a request has to wait for
	retryLater = "the server could not complete the request in time"
)

// hear carries out a request and answers it. An error ends the connection.
func (ws *webSocket) hear(kind websocket.MessageType, b []byte) error {
	var r request
	exceeded := ws.count()
	if kind != websocket.MessageText {
		return ws.refuse(nil, badRequest("binary frames are not supported", "send JSON in text frames"))
	}
	if err := json.Unmarshal(b, &r); err != nil {
		if limit := new(Failure); errors.As(err, &limit) {
			return ws.refuse(nil, limit)
		}
		return ws.refuse(nil, badRequest("the frame is not a valid request: "+unreadable(err), `send a JSON object such as {"type":"subscribe","channels":["orders.*"]}`))
	}
	if len(r.ID) > maxID {
		return ws.refuse(nil, badRequest(fmt.Sprintf("the id has %d bytes; the limit is %d", len(r.ID), maxID), ""))
	}
	if exceeded != nil {
		return ws.refuse(r.ID, exceeded)
	}
	ctx, cancel := context.WithTimeout(ws.web.ctx, patience)
	defer cancel()
	answer, err := ws.do(ctx, &r)
	if err != nil {
		if ctx.Err() != nil && ws.web.ctx.Err() == nil {
			err = fail(http.StatusServiceUnavailable, "unavailable", retryLater, "try again")
		}
		return ws.refuse(r.ID, err)
	}
	if answer.Type == "" { // it has been answered already
		return nil
	}
	answer.ID = r.ID
	return ws.tell(answer)
}

func (ws *webSocket) refuse(id json.RawMessage, err error) error {
	return ws.tell(outgoing{Type: "error", ID: id, Failure: ws.web.explain("carry out a client's request", err)})
}

func (ws *webSocket) do(ctx context.Context, r *request) (outgoing, error) {
	switch r.Type {
	case "subscribe":
		return outgoing{}, ws.subscribe(ctx, r)
	case "unsubscribe":
		return outgoing{Type: "unsubscribed"}, ws.unsubscribe(ctx, r)
	case "publish":
		return outgoing{Type: "published"}, ws.publish(ctx, r)
	case "auth":
		expires, err := ws.authenticate(ctx, r.Token)
		return outgoing{Type: "authorized", Expires: expires}, err
	case "presence":
		return outgoing{}, ws.members(ctx, r)
	case "ping":
		return outgoing{Type: "pong"}, nil
	}
	return outgoing{}, badRequest(fmt.Sprintf("%.50q is not a valid request type", r.Type), "the types are subscribe, unsubscribe, publish, presence, auth and ping")
}

// subscribe adds channels. A connection's first subscribe may resume at a position.
func (ws *webSocket) subscribe(ctx context.Context, r *request) error {
	filters, err := ws.web.parseFilters(r.Channels)
	if err != nil {
		return err
	}
	var after hub.Position
	if r.Position != "" {
		if ws.resumed {
			return badRequest("only a connection's first subscribe may have a position", "open another connection to resume there")
		}
		if after, err = hub.ParsePosition(r.Position); err != nil {
			return badRequest(err.Error(), "use the position of a message or a heartbeat")
		}
	}
	if err := ws.web.checkLast(r.Last); err != nil {
		return err
	}
	if r.Last > 0 && r.Position != "" {
		return badRequest("a subscribe has both position and last", "a position continues a subscription, and last begins one: send only one of them")
	}
	added := ws.without(filters)
	if n, limit := len(ws.filters)+len(added), ws.web.Limits.Subscriptions; n > limit {
		return tooManySubscriptions(n, limit)
	}
	if err := ws.permit(ctx, Subscribe, filters); err != nil {
		return err
	}
	if err := ws.web.placeFor(added); err != nil {
		return err
	}
	var events []hub.Filter
	if r.Presence {
		events = ws.web.eventsOf(filters)
	}
	answer := outgoing{Type: "subscribed", ID: r.ID}
	if r.Position != "" {
		// The answer comes first, then the messages that were missed.
		answer.Position = after.String()
		ws.misses(events)
		if err := ws.standsAt(after, answer); err != nil {
			return err
		}
		if err := ws.sub.Resume(ctx, after, slices.Concat(added, events)...); err != nil {
			ws.leave(err) // the client has already been told that it is subscribed
			return err
		}
	} else if r.Last > 0 {
		if err := ws.followLast(ctx, answer, r.Last, distinct(filters), events, ws.grants.subscribe.Terms); err != nil {
			return err
		}
	} else if err := ws.follow(ctx, answer, slices.Concat(added, events)); err != nil {
		return err
	}
	if ws.filters == nil {
		ws.filters = make(map[hub.Filter]struct{}, len(added))
	}
	for _, f := range added {
		ws.filters[f] = struct{}{}
	}
	ws.holds(added...)
	ws.enters(added)
	ws.resumed = true
	return nil
}

func tooManySubscriptions(n, limit int) *Failure {
	return fail(http.StatusTooManyRequests, "limit", fmt.Sprintf("%d subscriptions: a connection may have up to %d", n, limit),
		"use a pattern, or another connection")
}

// placeFor returns an error if a channel has as many subscribers as it may, before a client is told that it is subscribed.
func (w *Web) placeFor(filters []hub.Filter) error {
	err := w.Hub.Full(filters)
	if err != nil {
		w.metrics.refused("limit")
	}
	return err
}

// without returns the filters that the stream does not have yet, each once.
func (ws *webSocket) without(filters []hub.Filter) []hub.Filter {
	return slices.DeleteFunc(distinct(filters), func(f hub.Filter) bool {
		_, subscribed := ws.filters[f]
		return subscribed
	})
}

// distinct returns the filters, each once.
func distinct(filters []hub.Filter) []hub.Filter {
	all := make([]hub.Filter, 0, len(filters))
	seen := make(map[hub.Filter]struct{}, len(filters))
	for _, f := range filters {
		if _, twice := seen[f]; !twice {
			seen[f] = struct{}{}
			all = append(all, f)
		}
	}
	return all
}

func (ws *webSocket) unsubscribe(ctx context.Context, r *request) error {
	filters, err := ws.web.parseFilters(r.Channels)
	if err != nil {
		return err
	}
	if err := ws.sub.Settle(ctx); err != nil {
		return err
	}
	ws.sub.Unsubscribe(filters...)
	for _, f := range filters {
		delete(ws.filters, f)
	}
	ws.lets(filters)
	ws.quits(filters)
	for _, f := range filters { // also of a channel that has no presence any more
		if c, ok := f.(hub.Channel); ok {
			ws.sub.Unsubscribe(presence.EventsOf(string(c)))
		}
	}
	return nil
}

func (ws *webSocket) publish(ctx context.Context, r *request) error {
	all := []draftJSON(r.Messages)
	if r.Channel != "" || all == nil {
		all = append(all, r.draftJSON)
	}
	drafts, err := ws.web.parseDrafts(all)
	if err != nil {
		return err
	}
	if err := ws.permit(ctx, Publish, channelsOf(drafts)); err != nil {
		return err
	}
	if ws.rate != nil && len(drafts) > ws.rate.Burst() {
		ws.web.metrics.limited(ws.kind.name())
		return beyondBurst(fmt.Sprintf("%d messages at once are more than a connection may publish", len(drafts)), ws.rate.Burst())
	} else if ws.rate != nil && !ws.rate.AllowN(time.Now(), len(drafts)) {
		ws.web.metrics.limited(ws.kind.name())
		return tooFast("you have exceeded the rate at which a connection may publish", "publish more slowly, or combine messages", time.Second)
	}
	if err := ws.web.checkPolicies(ws.kind.name(), identity(ws.user(), ws.remote), drafts, ws.grants.publish); err != nil {
		return err
	}
	return ws.web.publish(ctx, ws.kind.name(), drafts)
}

// draftJSON is a message that a client publishes.
type draftJSON struct {
	Channel string  `json:"channel"`
	Payload *string `json:"payload"`
	Base64  *string `json:"payload_base64"`
}

// parseDrafts decodes and checks messages.
func (w *Web) parseDrafts(all []draftJSON) ([]hub.Draft, error) {
	if len(all) == 0 {
		return nil, badRequest("the request contains no message", `send "channel" and "payload"`)
	}
	if limit := w.Limits.Messages; len(all) > limit {
		return nil, tooMany("messages", limit)
	}
	drafts := make([]hub.Draft, len(all))
	for i, d := range all {
		draft := hub.Draft{Channel: d.Channel}
		switch {
		case d.Payload != nil && d.Base64 != nil:
			return nil, badRequest("a message has both payload and payload_base64", "send only one of them")
		case d.Base64 != nil:
			var err error
			if draft.Payload, err = base64.StdEncoding.DecodeString(*d.Base64); err != nil {
				return nil, badRequest("payload_base64 is not valid base64: "+err.Error(), "")
			}
			draft.Binary = true
		case d.Payload != nil:
			draft.Payload = []byte(*d.Payload)
		}
		if err := w.checkDraft(draft); err != nil {
			return nil, err
		}
		drafts[i] = draft
	}
	return drafts, nil
}

// channelsOf returns the channels of messages, each once.
func channelsOf(drafts []hub.Draft) []hub.Filter {
	var all []hub.Filter
	seen := make(map[string]struct{}, 1)
	for _, d := range drafts {
		if _, twice := seen[d.Channel]; !twice {
			seen[d.Channel] = struct{}{}
			all = append(all, hub.Channel(d.Channel))
		}
	}
	return all
}

func (w *Web) checkDraft(d hub.Draft) error {
	if err := w.checkChannel(d.Channel); err != nil {
		return err
	}
	if len(d.Payload) > w.Limits.MessageBytes {
		return fail(http.StatusRequestEntityTooLarge, "limit",
			fmt.Sprintf("the payload has %d bytes; the limit is %d", len(d.Payload), w.Limits.MessageBytes),
			"publish a reference to it, such as the row's key")
	}
	return nil
}

func (w *Web) checkChannel(name string) error {
	err := hub.CheckChannel(name)
	if err == nil && hub.IsInternal(name) {
		err = fmt.Errorf("channel %q is for hubs alone: no client may use names that begin with %s", name, hub.Internal)
	}
	if err == nil && len(name) > w.Limits.ChannelBytes {
		err = fmt.Errorf("the channel name has %d bytes; the limit is %d", len(name), w.Limits.ChannelBytes)
	}
	if err != nil {
		return badRequest(err.Error(), "")
	}
	return nil
}

// parseFilters parses channels and patterns to subscribe to.
func (w *Web) parseFilters(channels []string) ([]hub.Filter, error) {
	if len(channels) == 0 {
		return nil, badRequest("the request names no channel", "name channels or patterns, such as orders.*")
	}
	if limit := w.Limits.Subscriptions; len(channels) > limit {
		return nil, tooManySubscriptions(len(channels), limit)
	}
	filters := make([]hub.Filter, len(channels))
	for i, c := range channels {
		err := w.checkChannel(c)
		if err == nil {
			filters[i], err = hub.ParseFilter(c)
		}
		if err != nil {
			return nil, badRequest(err.Error(), "")
		}
	}
	if err := hub.CheckFilters(filters); err != nil {
		return nil, err
	}
	return filters, nil
}

func names(filters []hub.Filter) []string {
	all := make([]string, len(filters))
	for i, f := range filters {
		all[i] = f.String()
	}
	return all
}
