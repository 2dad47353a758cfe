package pgtest

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Line is a proxy between a client and its server. It can be cut: the client receives nothing more, but the server still does what it was
// asked to do, so that answers are lost. It can also be held: nothing passes, and neither side learns why.
type Line struct {
	URL string // of the server, by this line

	target   string
	listener net.Listener
	mu       sync.Mutex
	clients  map[net.Conn]bool
	held     chan struct{} // nil: it is not held; closed when it is let go
	carrying sync.WaitGroup
}

// NewLine listens until the end of the test, and then waits for everything that it has started. to is the server's URL.
func NewLine(t testing.TB, to string) *Line {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	l := &Line{target: u.Host, clients: map[net.Conn]bool{}}
	if l.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u.Host = l.listener.Addr().String()
	l.URL = u.String()
	l.carrying.Go(func() {
		for {
			client, err := l.listener.Accept()
			if err != nil {
				return
			}
			l.mu.Lock()
			l.clients[client] = true
			l.mu.Unlock()
			l.carrying.Go(func() { l.carry(client) })
		}
	})
	t.Cleanup(func() {
		l.listener.Close()
		l.LetGo()
		l.Cut()
		l.carrying.Wait()
	})
	return l
}

func (l *Line) carry(client net.Conn) {
	defer func() {
		client.Close()
		l.mu.Lock()
		delete(l.clients, client)
		l.mu.Unlock()
	}()
	server, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer server.Close()
	answered := make(chan struct{})
	go func() { // ends with the connection to the server, to which carry gives a deadline; carry waits for it
		defer close(answered)
		_, _ = io.Copy(gate{l, client}, server)
		client.Close()
		_, _ = io.Copy(io.Discard, server) // answers that are lost
	}()
	_, _ = io.Copy(gate{l, server}, client)
	_ = server.SetReadDeadline(time.Now().Add(2 * time.Second)) // lets the server finish what it is doing
	<-answered
}

// gate is closed while the line is held.
type gate struct {
	line *Line
	net.Conn
}

func (g gate) Write(p []byte) (int, error) {
	g.line.mu.Lock()
	held := g.line.held
	g.line.mu.Unlock()
	if held != nil {
		<-held
	}
	return g.Conn.Write(p)
}

// Cut cuts the connections of all clients.
func (l *Line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for client := range l.clients {
		client.Close()
	}
}

// Hold holds everything back, until LetGo.
func (l *Line) Hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = make(chan struct{})
	}
}

// LetGo lets pass again what was held back.
func (l *Line) LetGo() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != nil {
		close(l.held)
		l.held = nil
	}
}
