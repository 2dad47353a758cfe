package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// devPort is a port that weir dev listens on, and the flag that chooses it.
type devPort struct {
	flag string
	port int
}

func (c *devCmd) databasePort() devPort { return devPort{"--port", c.Port} }

func (c *devCmd) hubPorts() []devPort {
	return []devPort{{"--hub-pg-port", c.PGPort}, {"--hub-http-port", c.HTTPPort}}
}

// checkPorts returns an error that names all ports that can't be listened on, and the flags that choose others.
func checkPorts(ports ...devPort) error {
	var busy, others []string
	for _, p := range ports {
		if p.port == 0 {
			continue
		}
		l, err := net.Listen("tcp", localPort(p.port))
		if err != nil {
			busy = append(busy, fmt.Sprintf("port %d on 127.0.0.1 %s", p.port, portTrouble(err)))
			others = append(others, p.flag+" "+strconv.Itoa(portAfter(p.port)))
			continue
		}
		defer l.Close() // kept until all are checked, because two of them may be the same
	}
	if len(busy) == 0 {
		return nil
	}
	return fmt.Errorf("%s: stop what listens there, or choose another port: weir dev %s", strings.Join(busy, ", "), strings.Join(others, " "))
}

// portTrouble says why a port can't be listened on, without its address.
func portTrouble(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		err = call.Err
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return "is in use"
	}
	return "can't be used (" + err.Error() + ")"
}

// portAfter returns the next port that is free; 0, any free port, if none of the next hundred is.
func portAfter(port int) int {
	for next := port + 1; next <= port+100; next++ {
		if l, err := net.Listen("tcp", localPort(next)); err == nil {
			l.Close()
			return next
		}
	}
	return 0
}

func localPort(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
