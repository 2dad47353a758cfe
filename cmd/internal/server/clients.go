package server

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/cmd/internal/web"
)

// pgClients lists the wire protocol's clients for operators.
type pgClients struct{ server *pgwire.Server } // nil: no wire protocol

// Clients implements web.Others.
func (p pgClients) Clients() (all []web.Client) {
	if p.server == nil {
		return nil
	}
	for _, c := range p.server.Clients() {
		host := c.Address
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		all = append(all, web.Client{ID: fmt.Sprintf("pg-%d", c.PID), Protocol: "postgresql", Address: host, User: c.User, Since: c.Since})
	}
	return all
}

// End implements web.Others.
func (p pgClients) End(id string) bool {
	text, ok := strings.CutPrefix(id, "pg-")
	pid, err := strconv.ParseUint(text, 10, 32)
	return ok && err == nil && p.server != nil && p.server.End(uint32(pid))
}

// reserve is the number of connections allowed beyond the limit on clients: for health checks, and to tell clients that there are too many.
const reserve = 1000

// bounded refuses connections beyond the limit and its reserve as soon as they are accepted.
func (c Config) bounded(l net.Listener) net.Listener {
	if l == nil || c.Web.Limits.Connections <= 0 {
		return l
	}
	return &limited{Listener: l, slots: make(chan struct{}, c.Web.Limits.Connections+reserve)}
}

type limited struct {
	net.Listener
	slots chan struct{}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			_ = conn.Close()
		}
	}
}

type counted struct {
	net.Conn
	leave func()
}

// NetConn returns the underlying connection.
func (c *counted) NetConn() net.Conn { return c.Conn }

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
