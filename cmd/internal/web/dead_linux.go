package web

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dropDead makes the kernel end the connection when data sent to the client stays unacknowledged for that long. Otherwise heartbeats to a
// client that has vanished cause no error until the kernel gives up after a quarter of an hour.
func dropDead(conn net.Conn, after time.Duration) {
	for within, ok := conn.(interface{ NetConn() net.Conn }); ok; within, ok = conn.(interface{ NetConn() net.Conn }) {
		conn = within.NetConn()
	}
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				// It fails for connections other than TCP, which need nothing.
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after.Milliseconds()))
			})
		}
	}
}
