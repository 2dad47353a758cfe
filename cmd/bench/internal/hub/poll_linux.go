package hub

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// poller reads all connections in one goroutine with epoll: one goroutine per connection, woken for each message, would use as much CPU time as
// the hub.
type poller struct {
	crowd  *crowd
	epoll  int
	stop   atomic.Bool
	ended  sync.WaitGroup // waits for the goroutine
	seated map[int]*seat  // by file descriptor; guarded by crowd.mu
}

func (p *poller) open(c *crowd) (err error) {
	p.crowd, p.seated = c, map[int]*seat{}
	if p.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return err
	}
	p.ended.Go(p.run) // until close
	return nil
}

// add takes the connection away from Go's own poller.
func (p *poller) add(s subscriber) error {
	defer s.conn.Close()
	fd, err := duplicate(s.conn)
	if err != nil {
		return err
	}
	p.crowd.mu.Lock()
	defer p.crowd.mu.Unlock()
	seat := &seat{back: descriptor(fd)}
	p.seated[fd] = seat
	if err := p.crowd.take(seat, s.rest); err != nil {
		return err
	}
	return syscall.EpollCtl(p.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)})
}

func duplicate(conn net.Conn) (fd int, err error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var dupErr error
	err = raw.Control(func(original uintptr) {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if fd, dupErr = syscall.Dup(int(original)); dupErr == nil {
			syscall.CloseOnExec(fd)
		}
	})
	return fd, errors.Join(err, dupErr)
}

// descriptor writes small amounts to a socket, which never block.
type descriptor int

func (d descriptor) Write(b []byte) (int, error) { return syscall.Write(int(d), b) }

func (p *poller) run() {
	const wait = 50 // ms until it checks whether to stop
	events := make([]syscall.EpollEvent, 1024)
	buf := make([]byte, 64<<10)
	for !p.stop.Load() {
		n, err := syscall.EpollWait(p.epoll, events, wait)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		p.crowd.mu.Lock()
		if err != nil {
			p.crowd.fail(err)
			p.crowd.mu.Unlock()
			return
		}
		for _, e := range events[:n] {
			p.read(int(e.Fd), buf)
		}
		p.crowd.mu.Unlock()
	}
}

// read reads from a connection once: if there is more, epoll reports it again.
func (p *poller) read(fd int, buf []byte) {
	n, err := syscall.Read(fd, buf)
	switch {
	case errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR):
		return
	case err == nil && n == 0:
		err = io.EOF
	case err == nil:
		err = p.crowd.take(p.seated[fd], buf[:n])
	}
	if err != nil {
		p.crowd.fail(err)
		_ = syscall.Close(fd)
		delete(p.seated, fd)
	}
}

func (p *poller) close() {
	p.stop.Store(true)
	p.ended.Wait()
	p.crowd.mu.Lock()
	defer p.crowd.mu.Unlock()
	for fd := range p.seated {
		_ = syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1}) // leaves no port in TIME_WAIT
		_ = syscall.Close(fd)
	}
	clear(p.seated)
	if p.epoll > 0 {
		_ = syscall.Close(p.epoll)
		p.epoll = 0
	}
}
