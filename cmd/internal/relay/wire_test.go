package relay_test

import (
	"net"
	"sync"
	"testing"
)

// wire forwards connections to a server. It can stand still, as a server that is stopped does, and go dead, as a firewall makes it that has forgotten its connections.
type wire struct {
	to       string
	listener net.Listener

	mu    sync.Mutex
	moves *sync.Cond
	still bool       // what is sent waits
	life  int        // what is sent on a connection of an earlier one is lost, and nobody hears of it
	open  []net.Conn // to be closed at the end
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{to: to, listener: l}
	w.moves = sync.NewCond(&w.mu)
	var running sync.WaitGroup
	running.Go(func() { // ends with the listener
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { w.forward(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.stand(false)
		w.mu.Lock()
		for _, c := range w.open {
			_ = c.Close()
		}
		w.mu.Unlock()
		running.Wait()
	})
	return w
}

func (w *wire) address() string { return w.listener.Addr().String() }

// stand makes the wire stand still, or go on.
func (w *wire) stand(still bool) {
	w.mu.Lock()
	w.still = still
	w.mu.Unlock()
	w.moves.Broadcast()
}

// die makes all connections dead; new ones are alive.
func (w *wire) die() {
	w.mu.Lock()
	w.life++
	w.mu.Unlock()
}

// isDead waits while the wire stands still.
func (w *wire) isDead(life int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.still {
		w.moves.Wait()
	}
	return life != w.life
}

func (w *wire) forward(client net.Conn) {
	w.mu.Lock()
	life := w.life
	w.open = append(w.open, client)
	w.mu.Unlock()
	server, err := net.Dial("tcp", w.to)
	if err != nil {
		_ = client.Close()
		return
	}
	w.mu.Lock()
	w.open = append(w.open, server)
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { w.pump(server, client, life) })
	both.Go(func() { w.pump(client, server, life) })
	both.Wait()
}

// pump passes on what comes, and that nothing more does.
func (w *wire) pump(to, from net.Conn, life int) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if w.isDead(life) {
			if err != nil {
				return
			}
			continue
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				_ = from.Close()
				return
			}
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}
