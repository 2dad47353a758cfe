package doctor

import (
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// late is a way to a server on which answers take time: all, or only those to a connection's first message. It ends with the test.
func late(t *testing.T, to string, delay time.Duration, onlyFirst bool) string {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() { // ends with the listener
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // ends with either side
				defer client.Close()
				server, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer server.Close()
				go func() { defer client.Close(); _, _ = io.Copy(client, server) }()
				chunk := make([]byte, 8192)
				for first := true; ; first = false {
					n, err := client.Read(chunk)
					if err != nil {
						return
					}
					if first || !onlyFirst {
						<-time.After(delay)
					}
					if _, err := server.Write(chunk[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	u.Host = listener.Addr().String()
	return u.String()
}

// TestAMachineWithoutTimeIsNotASaturatedPostmaster: where statements of open sessions are as late as new connections, and nobody connects, the report says that the
// machine has no time. Where only new connections are late, it is the postmaster. A server on another machine shows no more than that.
func TestAMachineWithoutTimeIsNotASaturatedPostmaster(t *testing.T) {
	t.Parallel()
	at := pgtest.Server(t, nil).URL("postgres")
	for _, onlyFirst := range []bool{false, true} {
		d, err := Open(t.Context(), Config{URL: late(t, at, 300*time.Millisecond, onlyFirst)})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		d.local = &local{}
		r, err := d.Run(t.Context(), 4*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		unseen := strings.Join(r.Unseen, "\n")
		_, claimed := r.Find(PostmasterSaturated)
		starved := strings.Contains(unseen, "a statement of an open session that does nothing takes") && strings.Contains(unseen, "has no time for either: look what else runs there")
		if claimed != onlyFirst || starved == onlyFirst {
			t.Errorf("only new connections are late: %t; named as %s: %t; what could not be judged:\n%s", onlyFirst, PostmasterSaturated, claimed, unseen)
		}
	}
}
