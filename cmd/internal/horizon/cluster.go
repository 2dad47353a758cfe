package horizon

import (
	"cmp"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// StreamSQL returns one row, of Stream's columns: what a server tells about streaming. Only members of pg_read_all_stats see from where.
//
//go:embed stream.sql
var StreamSQL string

// Stream is what a server tells about streaming.
type Stream struct {
	Feedback bool // hot_standby_feedback
	Port     int32
	Streams  bool   // it is a standby that streams now
	Slot     string // that it uses
	Conninfo string
	FromPort int32
}

// The server lists the parameters one after another, unquoted.
var (
	applicationParameter = regexp.MustCompile(`(?:^|\s)application_name=(.*?)(?:\s+\w+=|$)`)
	fallbackParameter    = regexp.MustCompile(`(?:^|\s)fallback_application_name=(.*?)(?:\s+\w+=|$)`)
)

// application returns the application name of a standby on the server that it streams from, or "" if it is unknown.
func (s Stream) application() string {
	for _, parameter := range []*regexp.Regexp{applicationParameter, fallbackParameter} {
		if m := parameter.FindStringSubmatch(s.Conninfo); m != nil && m[1] != "" {
			return m[1]
		}
	}
	return ""
}

// Cluster is what is seen of a primary and of some of its standbys, cascaded ones too.
type Cluster struct {
	Primary  *View
	Standbys []*View
}

// Traced is a holder of the primary's horizon, on the server that it is on.
type Traced struct {
	Holder // with its Hold as the primary sees it
	At     *View
	// Own is its hold as its own server shows it.
	Own XID
	// Untraced says why a standby is not replaced by its sessions.
	Untraced string
	// Derived says that its snapshot is only as old as a transaction that still runs: every new snapshot is as old as the oldest one. While that
	// runs, it can't be told from a snapshot that is old itself, and its end would move nothing. A session of the primary that was idle before the
	// transaction began has a snapshot that is old itself, and that of a backup stays in any case.
	Derived bool
	// Relevant says that it holds tables of the primary's database now. A session that has written in another database does so only through a
	// snapshot here that is as old.
	Relevant bool
}

// Holders returns all holders of the primary's horizon, oldest first. A standby that reports feedback is replaced by its sessions if it is seen.
func (c *Cluster) Holders() []*Traced {
	list := distinct(c.of(c.Primary, map[*View]bool{}))
	c.markDerived(list)
	c.markRelevant(list)
	slices.SortStableFunc(list, func(a, b *Traced) int {
		switch {
		case a.Hold.Before(b.Hold):
			return -1
		case b.Hold.Before(a.Hold):
			return 1
		}
		return cmp.Compare(order(a), order(b))
	})
	return list
}

// distinct keeps each holder once, with its oldest hold. A holder appears twice if two standbys have the same name, as they have by default.
func distinct(list []*Traced) []*Traced {
	oldest := map[string]*Traced{}
	for _, h := range list {
		if o := oldest[h.identity()]; o == nil || h.Hold.Before(o.Hold) {
			oldest[h.identity()] = h
		}
	}
	return slices.DeleteFunc(list, func(h *Traced) bool { return oldest[h.identity()] != h })
}

// identity identifies a session in one transaction, or another holder by name.
func (h *Traced) identity() string {
	if h.Session == nil {
		return fmt.Sprintf("%p %s %s", h.At, h.Kind, h.Name)
	}
	started := int64(0)
	if h.Session.Started != nil {
		started = h.Session.Started.UnixMicro()
	}
	return fmt.Sprintf("%p %d %d %d", h.At, h.PID, h.Session.Connected.UnixMicro(), started)
}

// order sorts holders of the same age: those that hold it themselves come first.
func order(h *Traced) int {
	switch {
	case h.By == "xid":
		return 0
	case h.Derived:
		return 2
	}
	return 1
}

// of returns the holders on a server and on the standbys that stream from it.
func (c *Cluster) of(v *View, above map[*View]bool) []*Traced {
	above[v] = true
	defer delete(above, v)
	var list []*Traced
	for _, h := range v.Holders() {
		if h.Kind != Standby {
			list = append(list, &Traced{Holder: h, At: v, Own: h.Hold})
			continue
		}
		behind, why := c.trace(v, h, above)
		if len(behind) == 0 {
			behind = []*Traced{{Holder: h, At: v, Own: h.Hold, Untraced: why}}
		}
		list = append(list, behind...)
	}
	return list
}

// Behind returns the sessions, prepared transactions and slots that account for what a standby reported to v, oldest first; none if they are not seen.
func (c *Cluster) Behind(v *View, standby Holder) []*Traced {
	list, _ := c.trace(v, standby, map[*View]bool{v: true})
	list = distinct(list)
	slices.SortStableFunc(list, func(a, b *Traced) int { return int(a.Own.Since(b.Own)) })
	return list
}

// trace returns the holders on a standby that account for what it reported to v, or why there are none.
func (c *Cluster) trace(v *View, standby Holder, above map[*View]bool) (list []*Traced, why string) {
	standbys := c.streaming(v, standby.Slot, standby.Application)
	for _, s := range standbys {
		if above[s] {
			continue
		}
		for _, h := range c.of(s, above) {
			if standby.Hold.Before(h.Hold) {
				continue // the report is older than this hold: its holder has ended
			}
			h.Hold = standby.Hold // what v knows
			list = append(list, h)
		}
	}
	if len(standbys) == 0 {
		return list, "the sessions of this standby can't be seen: name it with --standby so that they can be judged"
	}
	return list, "no session accounts for it: either it has ended and the standby's next report will show that, or this is a standby that --standby does not name"
}

// streaming returns the standbys that the walsender on v with this slot or, without a slot, with this name may serve.
func (c *Cluster) streaming(v *View, slot, application string) []*View {
	var found []*View
	for _, s := range c.Standbys {
		if !s.Stream.Streams || !s.Stream.Feedback || s == v || s.Stream.Slot != slot {
			continue
		}
		if name := s.Stream.application(); slot == "" && name != "" && name != application {
			continue
		}
		found = append(found, s)
	}
	// If several servers have standbys, those of other servers usually have another port.
	near := slices.DeleteFunc(slices.Clone(found), func(s *View) bool { return s.Stream.FromPort != v.Stream.Port })
	if len(near) > 0 {
		return near
	}
	return found
}

func (c *Cluster) markDerived(list []*Traced) {
	running := map[XID]*time.Time{} // since when; nil if unknown
	for _, s := range c.Primary.Sessions {
		if s.XID != nil {
			running[*s.XID] = s.Started
		}
	}
	for _, p := range c.Primary.Prepared {
		running[p.XID] = nil // only when it was prepared is known
	}
	for _, h := range list {
		since, runs := running[h.Own]
		h.Derived = (h.By == "snapshot" || h.By == "feedback") && runs && !h.Session.backsUp() && !(h.At == c.Primary && h.Session.idleSince(since))
	}
}

func (c *Cluster) markRelevant(list []*Traced) {
	here := map[XID]bool{}
	for _, h := range list {
		if h.By == "snapshot" && h.Scope == Here {
			here[h.Own] = true
		}
	}
	for _, h := range list {
		h.Relevant = h.Scope == Here || h.Scope == Through && here[h.Own]
	}
}
