package web

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// grants caches what a WebSocket has been allowed, which saves questions to the Authorizer. The zero value allows nothing.
type grants struct{ connect, subscribe, publish Grant }

func (g *grants) of(action Action) *Grant {
	switch action {
	case Subscribe:
		return &g.subscribe
	case Publish:
		return &g.publish
	}
	return &g.connect
}

// permit asks the Authorizer, unless an earlier grant is enough.
func (ws *webSocket) permit(ctx context.Context, action Action, filters []hub.Filter) error {
	filters, err := ws.web.decide(action, filters, ws.user())
	if err != nil || len(filters) == 0 {
		return err
	}
	earlier := ws.grants.of(action)
	if _, ok := earlier.Covers(filters); ok && !earlier.Expired(time.Now()) {
		return nil
	}
	grant, err := ws.web.authorize(ctx, Ask{Token: ws.token, Action: action, Filters: filters, Remote: ws.remote})
	if err != nil {
		return err
	}
	ws.allow(action, grant)
	return nil
}

// allow keeps a grant. The stream ends when the first of its grants expires; an expired grant to publish is only requested again.
func (ws *webSocket) allow(action Action, grant Grant) {
	*ws.grants.of(action) = grant
	if action != Publish {
		ws.ends = earlier(ws.ends, grant.Expires)
		ws.until(ws.ends)
	}
}

// earlier returns the earlier of two times; the zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// authenticate replaces the token. The new token must allow everything that the stream has subscribed to; if it doesn't, the old one stays.
func (ws *webSocket) authenticate(ctx context.Context, token string) (*time.Time, error) {
	filters := make([]hub.Filter, 0, len(ws.filters))
	for f := range ws.filters {
		filters = append(filters, f)
	}
	var all grants
	revision, revocations := ws.web.revision(), ws.web.revocations.Load() // before the Authorizer is asked
	grant, err := ws.web.authorize(ctx, Ask{Token: token, Action: Connect, Remote: ws.remote})
	if err != nil {
		return nil, err
	}
	all.connect = grant
	if filters, err = ws.web.decide(Subscribe, filters, grant.User); err != nil {
		return nil, err
	}
	if len(filters) > 0 {
		grant, err := ws.web.authorize(ctx, Ask{Token: token, Action: Subscribe, Filters: filters, Remote: ws.remote})
		if err != nil {
			return nil, err
		}
		all.subscribe = grant
	}
	ws.token, ws.grants = token, all
	ws.livesBy(token, grant, revision)
	if err := ws.confirm(revocations); err != nil {
		ws.leave(err)
		return nil, err
	}
	ws.ends = earlier(all.connect.Expires, all.subscribe.Expires)
	ws.until(ws.ends)
	if ws.ends.IsZero() {
		return nil, nil
	}
	ends := ws.ends
	return &ends, nil
}
