// Package natstest runs real NATS servers in tests.
package natstest

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// patience is longer than a server takes to start on a busy machine.
const patience = time.Minute

// Start runs a server until the end of the test, on 127.0.0.1, and on any free port, unless the options name one. They may be nil.
func Start(t testing.TB, options *server.Options) *server.Server {
	t.Helper()
	if options == nil {
		options = &server.Options{}
	}
	options.Host, options.NoSigs, options.NoLog = "127.0.0.1", true, true
	if options.Port == 0 {
		options.Port = server.RANDOM_PORT
	}
	s, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server does not start")
	}
	return s
}
