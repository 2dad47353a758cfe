package web

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dropDead has the kernel end the connection when what was sent is not acknowledged for so long: a client that vanished without a
// word takes heartbeats without an error otherwise, until the kernel gives up after a quarter of an hour.
func dropDead(conn net.Conn, after time.Duration) {
	for within, ok := conn.(interface{ NetConn() net.Conn }); ok; within, ok = conn.(interface{ NetConn() net.Conn }) {
		conn = within.NetConn()
	}
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				// It fails for what is no TCP, where there is nothing to do.
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after.Milliseconds()))
			})
		}
	}
}
