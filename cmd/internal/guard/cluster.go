package guard

import "github.com/weir-pg/weir/cmd/internal/horizon"

// cluster is what one poll saw of all servers.
type cluster struct {
	primary  *view
	standbys []*view // those that answered
	absent   []string
	blockers []*blocker // on the primary, if the policy counts them
	waiting  int        // sessions that have waited for locks for as long as the policy says
}

// holders returns all holders of the primary's horizon, oldest first, on the servers that they are on.
func (c *cluster) holders() []*Holder {
	seen := horizon.Cluster{Primary: c.primary.View}
	views := map[*horizon.View]*view{c.primary.View: c.primary}
	for _, v := range c.standbys {
		seen.Standbys = append(seen.Standbys, v.View)
		views[v.View] = v
	}
	traced := seen.Holders()
	list := make([]*Holder, len(traced))
	for i, h := range traced {
		list[i] = of(views[h.At], h)
		list[i].Xid, list[i].AgeXids = uint32(h.Hold), c.primary.Next.Since(h.Hold)
	}
	return list
}
