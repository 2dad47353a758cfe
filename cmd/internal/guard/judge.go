package guard

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// judge decides for each holder which step is due, and why. list is ordered by age; harmed describes what suffers.
//
// Sessions are ended oldest first, as long as that moves the horizon: a session behind a holder that will stay is left alone, and one behind a
// snapshot that may stay waits for a poll that can tell. A session past its limit is ended in any position.
func judge(p *Policy, list []*Holder, harmed []string) {
	var blocked *Holder // the first holder that stays
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
		if h.Step != Cancel && h.Step != Terminate || pastLimit(h) || h.Blocks > 0 {
			continue
		}
		if next := stays(relevant[i+1:]); next != nil && next.AgeXids*2 > h.AgeXids {
			h.Step = Report
			h.Why = fmt.Sprintf("ending it would hardly move the horizon: %s is nearly as old, and stays (%s)", next.Name, next.Why)
		}
	}
	postpone(relevant)
}

// postpone takes back the steps behind a snapshot that is as old as a transaction that still runs: only once that has ended can it be told
// whether the snapshot is old itself, and stays.
func postpone(list []*Holder) {
	var unclear *Holder // with the oldest such snapshot
	for _, h := range list {
		switch {
		case h.derived:
			if unclear == nil || h.own.Before(unclear.own) {
				unclear = h
			}
		case h.Step != Cancel && h.Step != Terminate || pastLimit(h) || h.Blocks > 0:
		case unclear != nil && unclear.own.Before(h.own):
			h.Step = ""
			h.Why = fmt.Sprintf("it comes after transaction %d, whose end will show whether the snapshot of %s is as old", unclear.own, unclear.Name)
		}
	}
}

// stays returns the first holder that is not about to be ended.
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

// decide returns the highest step that is due, which the ladder reaches step by step.
func decide(h *Holder, harmed []string, blocked *Holder) (Action, string) {
	held := Duration{h.held().Truncate(time.Second)}
	if h.Blocks == 0 {
		return decideHold(h, held, harmed, blocked)
	}
	step, why := decideBlocker(h, held)
	if step == "" && h.Kind != Blocker {
		if step, why := decideHold(h, held, harmed, blocked); step != "" {
			return step, why
		}
	}
	return step, why // whatever it holds, others wait for it
}

// decideHold decides for what a holder does to the horizon.
func decideHold(h *Holder, held Duration, harmed []string, blocked *Holder) (Action, string) {
	switch {
	case h.Scope == horizon.Catalogs:
		return "", "it holds only the system catalogs, no tables"
	case h.Scope == horizon.Through && !h.relevant:
		return "", "it has written in database " + h.Database + ", and at the moment no snapshot here is as old"
	case !h.relevant:
		return "", "it holds no tables here: it is in database " + h.Database
	case h.AgeXids <= 0:
		return "", "no transaction has ended since it started: it keeps no dead rows"
	case h.limits.Action == Ignore:
		return "", "rule " + h.Rule + " ignores it"
	case h.derived:
		return "", "its snapshot is as old as a transaction that still runs: that transaction comes first"
	case h.held() < h.limits.After.Duration:
		return "", fmt.Sprintf("it may hold the horizon for %s, and has held it for %s", h.limits.After, held)
	}
	var why string
	switch {
	case pastLimit(h):
		why = fmt.Sprintf("it has held the horizon for %s, and its limit is %s", held, h.limits.Limit)
	case len(harmed) == 0:
		return "", "nothing suffers yet"
	default:
		why = fmt.Sprintf("it has held the horizon for %s, and this suffers: %s", held, strings.Join(harmed, ", "))
	}
	if step, why := allowed(h, why); step == Report {
		return step, why
	}
	if blocked != nil && !pastLimit(h) {
		return "", fmt.Sprintf("ending it would move nothing: %s is at least as old, and stays", blocked.Name)
	}
	return h.limits.Action, why
}

// decideBlocker decides for a session for whose locks others wait. Its end lets them go on, whatever else holds the horizon.
func decideBlocker(h *Holder, held Duration) (Action, string) {
	blocked := fmt.Sprintf("%d sessions wait for its locks", h.Blocks)
	if h.Blocks == 1 {
		blocked = "a session waits for its locks"
	}
	blocked += fmt.Sprintf(", for up to %s", Duration{time.Duration(h.BlocksFor * float64(time.Second)).Truncate(time.Second)})
	switch {
	case h.limits.Action == Ignore:
		return "", "rule " + h.Rule + " ignores it"
	case h.held() < h.limits.After.Duration:
		return "", fmt.Sprintf("%s; it may be in its transaction for %s, and has been for %s", blocked, h.limits.After, held)
	}
	return allowed(h, blocked)
}

// allowed returns the highest step that may be taken with a session that is due.
func allowed(h *Holder, why string) (Action, string) {
	switch {
	case h.never != "":
		return Report, why + "; the guard does not end it: " + h.never
	case h.limits.Action == Report:
		return Report, why
	case h.limits.Action == Cancel && !h.cancellable():
		return Report, why + "; a cancel would have no effect, and its rule does not allow terminate"
	}
	return h.limits.Action, why
}
