package embedded

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// freePort returns a port that nobody listens on. It stays below the ranges from which Linux and macOS give
// ports to outgoing connections, which would take the port of a stopped server before its Restart.
func freePort() (int, error) {
	const low, high, tries = 20000, 30000, 100
	var last error
	for range tries {
		port := low + rand.IntN(high-low)
		if last = probePort(port); last == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("start postgres: none of %d ports tried between %d and %d is free (%w): choose a port", tries, low, high, last)
}

// probePort returns nil if a server could listen on the port now.
func probePort(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return op.Err // without the address, which the caller names
		}
		return err
	}
	return l.Close()
}
