package guard

import (
	"cmp"
	"slices"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// cluster is what one look saw of all servers.
type cluster struct {
	primary  *view
	standbys []*view // those that could be looked at
	absent   []string
}

// holders returns everybody who holds the primary's horizon, the oldest first. A standby that reports what it needs is replaced by its
// sessions, where it was looked at.
func (c *cluster) holders() []*Holder {
	list := distinct(c.of(c.primary, map[*view]bool{}))
	for _, h := range list {
		h.Xid, h.AgeXids = uint32(h.hold), c.primary.Next.Since(h.hold)
	}
	c.markDerived(list)
	c.markRelevant(list)
	slices.SortStableFunc(list, func(a, b *Holder) int {
		switch {
		case a.hold.Before(b.hold):
			return -1
		case b.hold.Before(a.hold):
			return 1
		}
		return cmp.Compare(order(a), order(b))
	})
	return list
}

// distinct leaves each holder once, with the oldest it accounts for. One comes up twice where two standbys go by the same name, as they do
// when nobody named them.
func distinct(list []*Holder) []*Holder {
	oldest := map[string]*Holder{}
	for _, h := range list {
		if o := oldest[h.identity()]; o == nil || h.hold.Before(o.hold) {
			oldest[h.identity()] = h
		}
	}
	return slices.DeleteFunc(list, func(h *Holder) bool { return oldest[h.identity()] != h })
}

// order is among holders of the same: those who have it by themselves come first.
func order(h *Holder) int {
	switch {
	case h.By == "xid":
		return 0
	case h.derived:
		return 2
	}
	return 1
}

// of returns the holders on a server and on the standbys that stream from it.
func (c *cluster) of(v *view, above map[*view]bool) []*Holder {
	above[v] = true
	defer delete(above, v)
	var list []*Holder
	for _, h := range v.Holders() {
		if h.Kind == horizon.Standby {
			list = append(list, c.trace(v, h, above)...)
		} else {
			list = append(list, of(v, h, ""))
		}
	}
	return list
}

// trace returns who on a standby is behind what it reported to v.
func (c *cluster) trace(v *view, standby horizon.Holder, above map[*view]bool) []*Holder {
	standbys := c.streaming(v, standby.Slot, standby.Application)
	var list []*Holder
	for _, s := range standbys {
		if above[s] {
			continue
		}
		for _, h := range c.of(s, above) {
			if standby.Hold.Before(h.hold) {
				continue // what holds there is older, or has ended
			}
			h.hold = standby.Hold // that is what v knows
			list = append(list, h)
		}
	}
	switch {
	case len(list) > 0:
	case len(standbys) == 0:
		list = append(list, of(v, standby,
			"it is a standby that the guard can't look into: name it with --standby, and its sessions can be judged"))
	default:
		list = append(list, of(v, standby,
			"no session accounts for it: they have let go and its next report will say so, or it is a standby that --standby does not name"))
	}
	return list
}

// streaming returns the standbys that may be the one whose walsender on v has this slot or, without one, this name.
func (c *cluster) streaming(v *view, slot, application string) []*view {
	var found []*view
	for _, s := range c.standbys {
		r := s.streamFrom
		if r == nil || !s.feedback || s == v || r.slot != slot {
			continue
		}
		if name := r.application(); slot == "" && name != "" && name != application {
			continue
		}
		found = append(found, s)
	}
	// Where several servers have standbys, those of another have another port, mostly.
	near := slices.DeleteFunc(slices.Clone(found), func(s *view) bool { return s.streamFrom.port != v.port })
	if len(near) > 0 {
		return near
	}
	return found
}

// markDerived marks the snapshots, and the reports of standbys, that are old because a transaction is that runs: every new one is as old as
// the oldest of those. While it runs, nobody can tell them from snapshots that are old themselves, and to end them would move nothing.
func (c *cluster) markDerived(list []*Holder) {
	running := map[horizon.XID]bool{}
	for _, s := range c.primary.Sessions {
		if s.XID != nil {
			running[*s.XID] = true
		}
	}
	for _, p := range c.primary.Prepared {
		running[p.XID] = true
	}
	for _, h := range list {
		h.derived = (h.By == "snapshot" || h.By == "feedback") && running[h.own]
	}
}

// markRelevant leaves out who does not hold the tables of the primary's database now. Who has written in another database holds
// what the snapshots here hold that are as old as it, while they last: so it counts when there is one.
func (c *cluster) markRelevant(list []*Holder) {
	here := map[horizon.XID]bool{}
	for _, h := range list {
		if h.By == "snapshot" && h.Scope == horizon.Here {
			here[h.own] = true
		}
	}
	for _, h := range list {
		h.relevant = h.Scope == horizon.Here || h.Scope == horizon.Through && here[h.own]
	}
}
