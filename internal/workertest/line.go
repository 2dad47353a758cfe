package workertest

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// line is what lies between a worker and its server, and can be cut: the worker hears no more then, and the server goes on with what it was
// told, so that answers get lost.
type line struct {
	url string

	target   string
	listener net.Listener
	mu       sync.Mutex
	workers  map[net.Conn]bool // their ends
	carrying sync.WaitGroup
}

// newLine listens until the end of the test, and waits then for what it has started.
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
	go func() { // ends with the server's side, which carry closes or gives a deadline, and waits for
		defer close(answered)
		_, _ = io.Copy(worker, server)
		worker.Close()
		_, _ = io.Copy(io.Discard, server) // what nobody hears
	}()
	_, _ = io.Copy(server, worker)
	l.mu.Lock()
	delete(l.workers, worker)
	l.mu.Unlock()
	_ = server.SetReadDeadline(time.Now().Add(2 * time.Second)) // for what the server is doing
	<-answered
}

// cut cuts the lines of all workers.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for worker := range l.workers {
		worker.Close()
	}
}
