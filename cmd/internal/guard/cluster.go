package guard

import (
	"cmp"
	"slices"
	"strings"
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
		h.Xid, h.AgeXids = uint32(h.hold), int64(int32(c.primary.next-h.hold))
	}
	c.markDerived(list)
	c.markRelevant(list)
	slices.SortStableFunc(list, func(a, b *Holder) int {
		switch {
		case a.hold.before(b.hold):
			return -1
		case b.hold.before(a.hold):
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
		if o := oldest[h.identity()]; o == nil || h.hold.before(o.hold) {
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
	for _, s := range v.sessions {
		switch {
		case isGuard(s):
		case s.backendType == "walsender" && s.xmin != nil:
			list = append(list, c.trace(v, xid(*s.xmin), "", s.application, s.client, above)...)
		case s.xid != nil || s.xmin != nil:
			list = append(list, ofSession(v, s))
		}
	}
	for _, p := range v.prepared {
		list = append(list, ofPrepared(v, p))
	}
	for _, s := range v.slots {
		if s.xmin == nil {
			h := ofSlot(v, s, xid(*s.catalogXmin))
			h.catalogs = true
			list = append(list, h)
			continue
		}
		if s.active && s.kind == "physical" {
			list = append(list, c.trace(v, xid(*s.xmin), s.name, s.application, s.client, above)...)
		} else {
			list = append(list, ofSlot(v, s, xid(*s.xmin)))
		}
	}
	return list
}

// trace returns who on a standby is behind what it reported to v.
func (c *cluster) trace(v *view, reported xid, slot, application, client string, above map[*view]bool) []*Holder {
	standbys := c.streaming(v, slot, application)
	var list []*Holder
	for _, s := range standbys {
		if above[s] {
			continue
		}
		for _, h := range c.of(s, above) {
			if reported.before(h.hold) {
				continue // what holds there is older, or has ended
			}
			h.hold = reported // that is what v knows
			list = append(list, h)
		}
	}
	switch {
	case len(list) > 0:
	case len(standbys) == 0:
		list = append(list, ofStandby(v, application, client, reported,
			"it is a standby that the guard can't look into: name it with --standby, and its sessions can be judged"))
	default:
		list = append(list, ofStandby(v, application, client, reported,
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
	running := map[xid]bool{}
	for _, s := range c.primary.sessions {
		if s.xid != nil {
			running[xid(*s.xid)] = true
		}
	}
	for _, p := range c.primary.prepared {
		running[xid(p.xid)] = true
	}
	for _, h := range list {
		h.derived = (h.By == "snapshot" || h.By == "feedback") && running[h.own]
	}
}

// markRelevant leaves out who does not hold the tables of the primary's database. A snapshot in another database holds only shared catalogs. A
// transaction with an xid there holds what the snapshots here, which are as old as it, hold while they last: so it counts when
// there is one.
func (c *cluster) markRelevant(list []*Holder) {
	here := map[xid]bool{}
	for _, h := range list {
		if h.By == "snapshot" && (h.at.standby || h.Database == c.primary.database) {
			here[h.own] = true
		}
	}
	for _, h := range list {
		elsewhere := !h.at.standby && (h.session != nil || h.Kind == Prepared) && h.Database != "" && h.Database != c.primary.database
		h.relevant = !h.catalogs && (!elsewhere || h.By == "xid" && here[h.own])
	}
}

// isGuard tells a session of this or another guard.
func isGuard(s *session) bool { return strings.HasPrefix(s.application, ApplicationName) }
