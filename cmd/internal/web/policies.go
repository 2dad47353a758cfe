package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"time"

	"github.com/weir-pg/weir/cmd/internal/policy"
	"github.com/weir-pg/weir/cmd/internal/rate"
	"github.com/weir-pg/weir/internal/hub"
)

// actions are those that policies decide on.
var actions = map[Action]policy.Action{Subscribe: policy.Subscribe, Publish: policy.Publish}

// decide returns the filters that the Authorizer has to decide on. The policies allow the others to the user, or one of them is refused.
func (w *Web) decide(action Action, filters []hub.Filter, user string) (ask []hub.Filter, err error) {
	do, decides := actions[action]
	set := w.Policies.Set()
	if !decides || set == nil {
		return filters, nil
	}
	for _, f := range filters {
		switch set.Decide(do, f, user) {
		case policy.Ask:
			ask = append(ask, f)
		case policy.Refuse:
			w.metrics.refused("denied")
			return nil, Denied(fmt.Sprintf("%s %q is not allowed", action, f), "the policies of this channel don't allow it to you")
		}
	}
	return ask, nil
}

// admitClient authorizes a client that has no stream: the policies decide first.
func (w *Web) admitClient(ctx context.Context, ask Ask) (Grant, error) {
	set := w.Policies.Set()
	do, decides := actions[ask.Action]
	if set == nil || !decides {
		return w.authorize(ctx, ask)
	}
	var known Grant
	if len(ask.Filters) == 0 {
		if ask.Token == "" && set.Anyone() { // whether it may publish somewhere depends on the channel
			return Grant{}, nil
		}
		ask.Action = Connect
		return w.authorize(ctx, ask)
	}
	needs := ask.Token != ""
	for _, f := range ask.Filters {
		needs = needs || set.NeedsUser(do, f)
	}
	if needs {
		var err error
		if known, err = w.authorize(ctx, Ask{Token: ask.Token, Action: Connect, Remote: ask.Remote}); err != nil {
			return Grant{}, err
		}
	}
	rest, err := w.decide(ask.Action, ask.Filters, known.User)
	if err != nil {
		return Grant{}, err
	}
	if len(rest) == 0 {
		known.Allow = nil
		return known, nil
	}
	ask.Filters = rest
	return w.authorize(ctx, ask)
}

// checkPolicies checks messages that a client is about to publish: their sizes, and the client's rates. client is the user, or an address.
func (w *Web) checkPolicies(transport, client string, drafts []hub.Draft, grant Grant) error {
	set, granted := w.Policies.Set(), grant.Terms
	if set == nil && granted == nil {
		return nil
	}
	channels := make([]string, len(drafts))
	for i, d := range drafts {
		channels[i] = d.Channel
		limit := set.Payload(d.Channel, w.Limits.MessageBytes)
		if granted != nil && granted.PayloadBytes != nil {
			limit = min(limit, *granted.PayloadBytes)
		}
		if len(d.Payload) > limit {
			return fail(http.StatusRequestEntityTooLarge, "limit",
				fmt.Sprintf("the payload has %d bytes; the limit of the channel %q is %d", len(d.Payload), d.Channel, limit), "publish a reference to it, such as the row's key")
		}
	}
	if granted != nil && granted.PublishRate != nil {
		if err := w.checkGranted(rate.Limit{PerSecond: *granted.PublishRate}, client, channels, grant.Allow); err != nil {
			w.metrics.limited(transport)
			return err
		}
	}
	err := set.Publish(client, channels)
	var exceeded *policy.RateError
	if errors.As(err, &exceeded) {
		w.metrics.limited(transport)
		return beyondRate(exceeded)
	}
	return err
}

// checkGranted counts messages by a client to whom a callback grants a rate: for each channel or pattern that it allows, the channels of a pattern together.
func (w *Web) checkGranted(limit rate.Limit, client string, channels []string, allow []hub.Filter) error {
	counts := map[string]int{}
	for _, channel := range channels {
		match := "" // policies allow it
		for _, f := range allow {
			if f.Match(channel) {
				match = f.String()
				break
			}
		}
		counts[match]++
	}
	for match, n := range counts {
		e := &policy.RateError{Match: cmp.Or(match, "these channels"), Burst: limit.AtOnce(), Count: n}
		if n > e.Burst {
			return beyondRate(e)
		}
		if e.After = w.granted.TakeAt(limit, client+"\x00"+match, n); e.After > 0 {
			return beyondRate(e)
		}
	}
	return nil
}

// beyondRate is the failure of a client that publishes more than it may.
func beyondRate(e *policy.RateError) error {
	if e.Count > e.Burst {
		return beyondBurst(e.Error(), e.Burst)
	}
	return tooFast(e.Error(), fmt.Sprintf("publish more slowly: up to %d messages at once", e.Burst), e.After)
}

// beyondBurst is the failure of a request that will never be allowed, because it has more messages than a rate's burst.
func beyondBurst(text string, burst int) *Failure {
	return fail(http.StatusRequestEntityTooLarge, "limit", text, fmt.Sprintf("publish at most %d messages at once", burst))
}

// tooFast is the failure of a client that exceeds a rate.
func tooFast(text, hint string, after time.Duration) *Failure {
	f := fail(http.StatusTooManyRequests, "limit", text, hint)
	f.After = int(math.Ceil(after.Seconds()))
	return f
}

// historyOf returns how many messages of each filter's history a client receives that asks for last of each. less is true if the policies limit that.
func (w *Web) historyOf(last int, filters []hub.Filter, granted *Terms) (ns []int, less bool) {
	set := w.Policies.Set()
	ns = make([]int, len(filters))
	for i, f := range filters {
		ns[i] = set.HistoryOf(f, last)
		if granted != nil && granted.History != nil {
			ns[i] = min(ns[i], max(0, *granted.History))
		}
		less = less || ns[i] < last
	}
	return ns, less
}

// identity is what a client's rates are counted by.
func identity(user, remote string) string {
	if user != "" {
		return "user " + user
	}
	return origin(remote) // no address looks like a user
}

// origin is where an address is counted: see rate.Origin.
func origin(remote string) string {
	if at, err := netip.ParseAddr(remote); err == nil {
		return rate.Origin(at).String()
	}
	return remote
}
