package pgwire

import (
	"container/list"
	"net"
	"net/netip"
	"sync"

	"github.com/weir-pg/weir/cmd/internal/rate"
)

// crowd holds the connections that have not logged in yet. Their number is limited, in total and per address. Beyond a limit,
// a new connection replaces the oldest. A client that logs in promptly has left the crowd before it is the oldest.
type strangers struct {
	mu     sync.Mutex
	all    list.List // of *conn, oldest first
	from   map[netip.Addr]*list.List
	places map[*conn]places
}

type places struct {
	address   netip.Addr
	all, from *list.Element
	ended     func() // called when the connection must make room; nil: it waits for nothing but its client
}

// enter adds a connection, and returns one that must be ended in exchange, or nil.
func (w *strangers) enter(c *conn, maxOfAll, maxFrom int) (leaves *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	address := origin(c.raw.RemoteAddr())
	mine := w.from[address]
	if mine == nil {
		mine = list.New()
		w.from[address] = mine
	}
	switch {
	case mine.Len() >= maxFrom:
		leaves = mine.Front().Value.(*conn)
	case w.all.Len() >= maxOfAll:
		leaves = w.all.Front().Value.(*conn)
	}
	w.places[c] = places{address, w.all.PushBack(c), mine.PushBack(c), nil}
	if leaves != nil {
		if ended := w.places[leaves].ended; ended != nil {
			ended()
		}
		w.remove(leaves)
	}
	return leaves
}

// waits has ended called when the connection must make room for another one, or at once if it has had to: closing it ends only what waits for its client.
func (w *strangers) waits(c *conn, ended func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := w.places[c]
	if !ok {
		ended()
		return
	}
	at.ended = ended
	w.places[c] = at
}

// leave removes a connection that has logged in or ended.
func (w *strangers) leave(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(c)
}

func (w *strangers) remove(c *conn) {
	at, ok := w.places[c]
	if !ok {
		return
	}
	delete(w.places, c)
	w.all.Remove(at.all)
	mine := w.from[at.address]
	if mine.Remove(at.from); mine.Len() == 0 {
		delete(w.from, at.address)
	}
}

func (w *strangers) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.Len()
}

// origin is where a connection is counted: see rate.Origin.
func origin(a net.Addr) netip.Addr {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return rate.Origin(at.Addr())
}
