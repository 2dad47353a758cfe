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

// proxy is a fixed address for the current server. It can cut all connections, and lose answers.
type proxy struct {
	listener net.Listener
	port     *atomic.Int32
	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	deaf     int  // number of answers to lose, each with its connection
	silent   bool // no connection gets through
}

func newProxy(t *testing.T, port *atomic.Int32) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, port: port, conns: map[net.Conn]struct{}{}}
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.forward(c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
	})
	return p
}

func (p *proxy) forward(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(p.port.Load()))))
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	silent := p.silent
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	if silent {
		return
	}
	go func() { // ends with either connection
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(answered{p, client}, server)
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}

// answered writes the server's answers to a client.
type answered struct {
	p      *proxy
	client net.Conn
}

func (a answered) Write(answer []byte) (int, error) {
	a.p.mu.Lock()
	lost := a.p.deaf > 0
	if lost {
		a.p.deaf--
	}
	a.p.mu.Unlock()
	if lost {
		return 0, io.ErrClosedPipe // the server has done what it was asked to do, but the answer is lost
	}
	return a.client.Write(answer)
}

// lose makes the next answers of the server get lost, each with its connection.
func (p *proxy) lose(answers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf = answers
}

// silence ends all connections and lets no new ones through, or lets them through again.
func (p *proxy) silence(silent bool) {
	p.mu.Lock()
	p.silent = silent
	p.mu.Unlock()
	if silent {
		p.cut()
	}
}

// cut ends all connections; new ones are let through.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// url returns a URL that leads through the proxy.
func (p *proxy) url(t *testing.T, of string) string {
	t.Helper()
	u, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = p.listener.Addr().String()
	return u.String()
}
