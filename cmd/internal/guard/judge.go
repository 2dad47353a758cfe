package guard

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// judge decides for each holder what is due, and says why. list is in order of age; harmed names what suffers.
//
// Sessions are ended from the front, as far as that moves the horizon: what stands behind a hold that will stay waits for that. A session
// past its limit is ended wherever it stands.
func judge(p *Policy, list []*Holder, harmed []string) {
	var blocked *Holder // the first that stays
	relevant := make([]*Holder, 0, len(list))
	for _, h := range list {
		if h.relevant {
			relevant = append(relevant, h)
		}
	}
	for _, h := range list {
		h.limits = p.Default
		if h.session != nil {
			var named bool
			h.limits, h.Rule, named = p.ruleFor(h.session, h.at.Standby)
			h.never = neverEnds(h.session, named)
		}
		if p.HideQueries {
			h.Query = ""
		}
		h.Held = h.held().Seconds()
		h.Step, h.Why = decide(h, harmed, blocked)
		if h.relevant && !h.derived && blocked == nil && (h.Step == "" || h.Step == Report) {
			blocked = h
		}
	}
	for i, h := range relevant {
		if h.Step != Cancel && h.Step != Terminate || pastLimit(h) {
			continue
		}
		if next := stays(relevant[i+1:]); next != nil && next.AgeXids*2 > h.AgeXids {
			h.Step = Report
			h.Why = fmt.Sprintf("ending it would move the horizon little: %s holds nearly as much, and stays (%s)", next.Name, next.Why)
		}
	}
}

// stays returns the first that is not about to be ended.
func stays(list []*Holder) *Holder {
	for _, h := range list {
		if !h.derived && (h.Step == "" || h.Step == Report) {
			return h
		}
	}
	return nil
}

func pastLimit(h *Holder) bool {
	return !h.derived && h.limits.Limit.Duration > 0 && h.held() >= h.limits.Limit.Duration
}

// decide returns the highest rung that is due; the ladder climbs to it.
func decide(h *Holder, harmed []string, blocked *Holder) (Action, string) {
	held := Duration{h.held().Truncate(time.Second)}
	switch {
	case h.Scope == horizon.Catalogs:
		return "", "it holds the system catalogs alone, no table"
	case h.Scope == horizon.Through && !h.relevant:
		return "", "it has written in database " + h.Database + ", and no snapshot here is as old as it just now"
	case !h.relevant:
		return "", "it holds nothing here: it is in database " + h.Database
	case h.AgeXids <= 0:
		return "", "no transaction has ended since: it holds nothing back"
	case h.limits.Action == Ignore:
		return "", "rule " + h.Rule + " says to ignore it"
	case h.derived:
		return "", "its snapshot is as old as a transaction that still runs: that comes first"
	case h.held() < h.limits.After.Duration:
		return "", fmt.Sprintf("it may hold the horizon for %s, and has for %s", h.limits.After, held)
	}
	var why string
	switch {
	case pastLimit(h):
		why = fmt.Sprintf("it has held the horizon for %s, and its limit is %s", held, h.limits.Limit)
	case len(harmed) == 0:
		return "", "nothing suffers from it so far"
	default:
		why = fmt.Sprintf("it has held the horizon for %s, and there suffers %s", held, strings.Join(harmed, ", "))
	}
	switch {
	case h.never != "":
		return Report, why + "; it is not the guard's to end: " + h.never
	case h.limits.Action == Report:
		return Report, why
	case h.limits.Action == Cancel && !h.cancellable():
		return Report, why + "; to cancel it would do nothing, and its rule goes no further"
	case blocked != nil && !pastLimit(h):
		return "", fmt.Sprintf("ending it would move nothing: %s is in front and stays", blocked.Name)
	}
	return h.limits.Action, why
}
