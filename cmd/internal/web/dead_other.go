//go:build !linux

package web

import (
	"net"
	"time"
)

// dropDead does nothing: only Linux is told when to give up on a silent peer.
func dropDead(net.Conn, time.Duration) {}
