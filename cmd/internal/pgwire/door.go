package pgwire

import (
	"context"
	"sync"
)

// behind holds what a server needs to serve connections that another one, their door, has accepted.
type behind struct {
	conns sync.WaitGroup // added to under the server's mu while it is not stopping, so never after Drain waits
	work  map[*Server]context.Context
}

// UnknownDatabase returns an error for Config.Databases: no database has the name (3D000). The client is sent both texts, before it has logged in.
func UnknownDatabase(message, hint string) error {
	return &Error{Code: noSuchDatabase, Message: message, Hint: hint}
}

// Unreachable returns an error for Config.Databases: the database can't be served now (57P03). The client is sent both texts, before it has
// logged in.
func Unreachable(message, hint string) error {
	return &Error{Code: cannotConnect, Message: message, Hint: hint}
}

// enter hands the connection over to the server of the database that it names. The door continues to know it: its limits and its drain apply too.
func (c *conn) enter() error {
	if c.door.config.Databases == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(c.door.work)
	defer cancel()
	c.door.strangers.waits(c, cancel)
	for range 2 { // the second time for a server that was ending, as one does that had no clients, when another takes its place
		to, err := c.door.config.Databases(ctx, c.database)
		if err != nil {
			return asError(err)
		}
		if to.take(c) {
			c.server = to
			return c.admit()
		}
	}
	return errorf(cannotConnect, "the hub stops serving the database \"%s\"", cut(c.database, 64)).hint("Try again in a while, or at another hub.")
}

// take adds a connection that another server has accepted, unless this one is stopping.
func (s *Server) take(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping.Load() { // set under mu: who is in conns is told by drain
		return false
	}
	s.stats.accepted.Add(1)
	s.conns[c] = struct{}{}
	s.behind.conns.Add(1)
	return true
}

// giveBack ends what take began.
func (s *Server) giveBack(c *conn) {
	s.forget(c)
	s.behind.conns.Done()
}

// workFrom returns the context for the work of connections that a door has accepted: it ends when the drain of either is over. They share it,
// because there are very many.
func (s *Server) workFrom(door *Server) context.Context {
	if s == door {
		return s.work
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	work := s.behind.work[door]
	if work == nil {
		var cancel context.CancelFunc
		work, cancel = context.WithCancel(door.work)
		context.AfterFunc(s.work, cancel)
		if s.behind.work == nil {
			s.behind.work = map[*Server]context.Context{}
		}
		s.behind.work[door] = work
	}
	return work
}

// Drain ends a server that has no listener, but is one of a door's Config.Databases. No connection is handed over to it any more. Every client
// finishes the query it has sent, is sent SQLSTATE 57P01, and is disconnected; the others are after Config.Drain, or when ctx ends. Drain
// returns once all have ended. The door's other databases are not affected.
func (s *Server) Drain(ctx context.Context) {
	defer s.endWork() // the door knows it no longer
	s.drain(ctx, &s.behind.conns)
}
