package workertest

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// line is a proxy between a worker and its server. It can be cut: the worker receives nothing more, but the server still does what it was
// asked to do, so that answers are lost.
type line struct {
	url string

	target   string
	listener net.Listener
	mu       sync.Mutex
	workers  map[net.Conn]bool // the workers' connections
	carrying sync.WaitGroup
}

// newLine listens until the end of the test, and then waits for everything that it has started.
func newLine(t *testing.T, to string) *line {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	l := &line{target: u.Host, workers: map[net.Conn]bool{}}
	if l.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u.Host = l.listener.Addr().String()
	l.url = u.String()
	l.carrying.Go(func() {
		for {
			worker, err := l.listener.Accept()
			if err != nil {
				return
			}
			l.mu.Lock()
			l.workers[worker] = true
			l.mu.Unlock()
			l.carrying.Go(func() { l.carry(worker) })
		}
	})
	t.Cleanup(func() {
		l.listener.Close()
		l.cut()
		l.carrying.Wait()
	})
	return l
}

func (l *line) carry(worker net.Conn) {
	defer worker.Close()
	server, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer server.Close()
	answered := make(chan struct{})
	go func() { // ends with the connection to the server, to which carry gives a deadline; carry waits for it
		defer close(answered)
		_, _ = io.Copy(worker, server)
		worker.Close()
		_, _ = io.Copy(io.Discard, server) // answers that are lost
	}()
	_, _ = io.Copy(server, worker)
	l.mu.Lock()
	delete(l.workers, worker)
	l.mu.Unlock()
	_ = server.SetReadDeadline(time.Now().Add(2 * time.Second)) // lets the server finish what it is doing
	<-answered
}

// cut cuts the connections of all workers.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for worker := range l.workers {
		worker.Close()
	}
}
