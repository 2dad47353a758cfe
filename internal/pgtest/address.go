package pgtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Address returns an address at which a test starts a server of its own, also again after it has ended. Nobody listens there. Its port lies below those
// that Linux and macOS give to outgoing connections, and to listeners that ask for any, one of which might take it in the meantime; and below those of
// PostgreSQL's servers.
func Address(t testing.TB) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(10_000))
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}
