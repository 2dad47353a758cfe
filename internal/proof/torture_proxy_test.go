package proof

import (
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy is the address under which a client finds whichever server is the primary; it can lose all that go through it.
type proxy struct {
	listener net.Listener
	primary  *atomic.Int32 // port
	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	dead     bool
}

func newProxy(t *testing.T, primary *atomic.Int32) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, primary: primary, conns: map[net.Conn]struct{}{}}
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.forward(c)
		}
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *proxy) forward(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(p.primary.Load()))))
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	dead := p.dead
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	if dead {
		return
	}
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}

// cut ends all connections; new ones are let through.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// kill ends all connections for good, as the death of the client's process does.
func (p *proxy) kill() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.cut()
}

// url is that of a server, by way of the proxy.
func (p *proxy) url(t *testing.T, of string) string {
	t.Helper()
	u, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = p.listener.Addr().String()
	return u.String()
}
