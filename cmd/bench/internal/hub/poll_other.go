//go:build !linux

package hub

import (
	"net"
	"sync"
)

// poller reads each connection in its own goroutine.
type poller struct {
	crowd *crowd
	ended sync.WaitGroup // waits for those goroutines
	conns []net.Conn     // guarded by crowd.mu
}

func (p *poller) open(c *crowd) error {
	p.crowd = c
	return nil
}

func (p *poller) add(s subscriber) error {
	p.crowd.mu.Lock()
	defer p.crowd.mu.Unlock()
	seat := &seat{back: s.conn}
	p.conns = append(p.conns, s.conn)
	if err := p.crowd.take(seat, s.rest); err != nil {
		return err
	}
	p.ended.Go(func() { p.read(s.conn, seat) }) // until the connection ends
	return nil
}

func (p *poller) read(conn net.Conn, seat *seat) {
	buf := make([]byte, 4<<10)
	for {
		n, err := conn.Read(buf)
		p.crowd.mu.Lock()
		if err == nil {
			err = p.crowd.take(seat, buf[:n])
		}
		if err != nil {
			p.crowd.fail(err)
		}
		p.crowd.mu.Unlock()
		if err != nil {
			conn.Close()
			return
		}
	}
}

func (p *poller) close() {
	p.crowd.mu.Lock()
	for _, conn := range p.conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // leaves no port in TIME_WAIT
		}
		conn.Close()
	}
	p.conns = nil
	p.crowd.mu.Unlock()
	p.ended.Wait()
}
