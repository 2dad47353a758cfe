package server

import (
	"context"
	"fmt"
)

// identify finds out which database it is, and logs which other places of the list lead there: clients and tokens go by names, so each place has a hub of its own, with its own connections.
// It knows those whose hubs run. A copy of a cluster has the original's ids, but is another running server.
func (d *member) identify(ctx context.Context, s *Server) {
	database, err := s.primary.DatabaseID(ctx)
	if err != nil {
		return
	}
	since, _, err := s.primary.Server(ctx)
	if err != nil {
		return
	}
	id := fmt.Sprintf("%s-%d", database, since.UnixMicro())
	d.mu.Lock()
	d.id = id // before it looks: of two that start at the same time, one sees the other
	d.mu.Unlock()
	for _, other := range d.many.all() {
		if other != d && other.Place != d.Place && other.leadsTo(id) {
			d.many.log.Warn("weir: two places of the list lead to one database, and each has a hub of its own: list it once", "database", d.Full, "and", other.Full)
		}
	}
}

// leadsTo reports whether its hub has found this database.
func (d *member) leadsTo(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id == id
}
