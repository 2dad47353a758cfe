package main

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// serveHTTP serves until stop is called, and logs the address.
func serveHTTP(flag, address string, handler http.Handler, what, path string, log *slog.Logger) (stop func(), err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, usagef("%s %s: %s: name a free port, as in :%d", flag, address, reason(err), anotherPort(address))
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() { // ends when the server is closed; stop waits for it
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("stopped serving "+what, "error", err)
		}
	}()
	log.Info("serving "+what, "url", "http://"+listener.Addr().String()+path)
	return func() {
		_ = server.Close()
		<-done
	}, nil
}

// anotherPort returns a port to propose instead of that of an address.
func anotherPort(address string) int {
	_, text, _ := net.SplitHostPort(address) // "" if it is no address
	port, err := strconv.ParseUint(text, 10, 16)
	const last = 1<<16 - 1
	if err != nil || port == 0 || port == last {
		return 9187
	}
	return int(port) + 1
}

// loopback is an address; without a host, that of this machine alone.
func loopback(address string) string {
	if strings.HasPrefix(address, ":") {
		return "127.0.0.1" + address
	}
	return address
}
