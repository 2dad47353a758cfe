package store

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

// isServers reports whether the process that listens at the other end of a Unix socket is the server itself, rather than one that forwards
// connections elsewhere: then it is the parent of the process that serves the session. If that can't be determined, as between containers,
// it returns false.
func isServers(conn net.Conn, backend uint32) bool {
	socket, ok := bare(conn).(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	var peer *syscall.Ucred
	if asked := raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); asked != nil || err != nil || peer.Pid <= 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", backend))
	if err != nil {
		return false
	}
	// "pid (name) state parent ..."; the name may contain any character.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(fields) > 1 && string(fields[1]) == strconv.Itoa(int(peer.Pid))
}
