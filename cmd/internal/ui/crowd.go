package ui

import (
	"net"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// keptAtServer is how many connections to a server, of all its databases together, stay open for the next reads. The page of all databases reads each every few seconds: were all theirs
// kept, a server with more databases than connections would have none left for anybody else.
const keptAtServer = 16

// crowds are the pools of a list by their server's host and port.
type crowds struct {
	mu    sync.Mutex
	pools map[string]map[*pgxpool.Pool]bool
}

func serverOf(c *pgxpool.Config) string {
	return net.JoinHostPort(c.ConnConfig.Host, strconv.Itoa(int(c.ConnConfig.Port)))
}

func (c *crowds) join(p *pgxpool.Pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	server := serverOf(p.Config())
	if c.pools == nil {
		c.pools = map[string]map[*pgxpool.Pool]bool{}
	}
	if c.pools[server] == nil {
		c.pools[server] = map[*pgxpool.Pool]bool{}
	}
	c.pools[server][p] = true
}

func (c *crowds) leave(p *pgxpool.Pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	server := serverOf(p.Config())
	delete(c.pools[server], p)
	if len(c.pools[server]) == 0 {
		delete(c.pools, server)
	}
}

// makeRoom closes what one of a server's pools keeps and does not use, if there are many connections with the one that is about to be opened.
func (c *crowds) makeRoom(server string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var open int32
	var resting *pgxpool.Pool
	for p := range c.pools[server] {
		s := p.Stat()
		open += s.TotalConns()
		if s.AcquiredConns() == 0 && s.IdleConns() > 0 {
			resting = p
		}
	}
	if open > keptAtServer && resting != nil {
		resting.Reset()
	}
}
