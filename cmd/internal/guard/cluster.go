package guard

import (
	"cmp"
	"slices"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// cluster is what one poll saw of all servers.
type cluster struct {
	primary  *view
	standbys []*view // those that answered
	absent   []string
}

// holders returns all holders of the primary's horizon, oldest first. A standby that reports feedback is replaced by its sessions if it
// answered.
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

// distinct keeps each holder once, with its oldest hold. A holder appears twice if two standbys have the same name, as they have by
// default.
func distinct(list []*Holder) []*Holder {
	oldest := map[string]*Holder{}
	for _, h := range list {
		if o := oldest[h.identity()]; o == nil || h.hold.Before(o.hold) {
			oldest[h.identity()] = h
		}
	}
	return slices.DeleteFunc(list, func(h *Holder) bool { return oldest[h.identity()] != h })
}

// order sorts holders of the same age: those that hold it themselves come first.
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

// trace returns the holders on a standby that account for what it reported to v.
func (c *cluster) trace(v *view, standby horizon.Holder, above map[*view]bool) []*Holder {
	standbys := c.streaming(v, standby.Slot, standby.Application)
	var list []*Holder
	for _, s := range standbys {
		if above[s] {
			continue
		}
		for _, h := range c.of(s, above) {
			if standby.Hold.Before(h.hold) {
				continue // the report is older than this hold: its holder has ended
			}
			h.hold = standby.Hold // what v knows
			list = append(list, h)
		}
	}
	switch {
	case len(list) > 0:
	case len(standbys) == 0:
		list = append(list, of(v, standby,
			"the guard can't see the sessions of this standby: name it with --standby so that they can be judged"))
	default:
		list = append(list, of(v, standby,
			"no session accounts for it: either it has ended and the standby's next report will show that, or this is a standby that --standby does not name"))
	}
	return list
}

// streaming returns the standbys that the walsender on v with this slot or, without a slot, with this name may serve.
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
	// If several servers have standbys, those of other servers usually have another port.
	near := slices.DeleteFunc(slices.Clone(found), func(s *view) bool { return s.streamFrom.port != v.port })
	if len(near) > 0 {
		return near
	}
	return found
}

// markDerived marks snapshots and standby reports that are only as old as a running transaction: every new snapshot is as old as the oldest
// one. While it runs they can't be distinguished from snapshots that are old themselves, and ending them would move nothing.
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

// markRelevant marks the holders that currently hold tables of the primary's database. A session that has written in another database
// holds them only through a snapshot here that is as old, so it counts while there is one.
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
