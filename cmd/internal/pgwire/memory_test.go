package pgwire_test

import (
	"fmt"
	"net"
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/internal/pgtest"
)

// Most of a hub's connections listen and are idle. Their memory decides how many a hub can hold.
func TestAnIdleListenerCostsLittle(t *testing.T) {
	pgtest.Alone(t, "it counts what the whole process holds")
	if raceEnabled {
		t.Skip("the race detector has its own costs")
	}
	const n, limit = 2000, 8 << 10
	e := start(t, pgwire.Config{Auth: usersFile(t, "someone secret\n")})
	clients := make([]*raw, 0, n)
	before := inUse()
	for i := range n {
		r := e.dial()
		r.login("someone", "secret")
		r.send(&pgproto3.Query{String: fmt.Sprintf("LISTEN channel_%d", i)})
		r.expect("LISTEN")
		r.expect("/I")
		clients = append(clients, &raw{net: r.net})
	}
	// The clients' own memory in this process is measured with connections that are not served.
	both := inUse() - before
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before = inUse()
	bare := make([]net.Conn, 0, n)
	for range n {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		bare = append(bare, conn)
		if other, err := l.Accept(); err != nil {
			t.Fatal(err)
		} else {
			other.Close()
		}
	}
	each := (both - (inUse() - before)) / n
	t.Logf("%d bytes for an idle listener", each)
	if each > limit {
		t.Errorf("an idle listener costs %d bytes, at most %d are wanted", each, limit)
	}
	runtime.KeepAlive(clients)
	runtime.KeepAlive(bare)
}

// inUse returns the bytes of heap and stacks in use. Stacks shrink by half at each collection.
func inUse() int {
	for range 5 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}
