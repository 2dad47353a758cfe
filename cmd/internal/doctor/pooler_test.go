package doctor_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/doctor"
)

// TestAPoolerIsNotTakenForThePostmaster: it answers at once, however long its own clients and those of the server wait.
func TestAPoolerIsNotTakenForThePostmaster(t *testing.T) {
	t.Parallel()
	live, file := recorded(t, doctor.Config{URL: pooled(t, alone(t))}, examineFor)
	expectSame(t, live, file)
	if unseen := strings.Join(live.Unseen, "\n"); !live.Incomplete || !strings.Contains(unseen, "at the pooler that answers in its place") {
		t.Errorf("incomplete: %t; what could not be seen:\n%s", live.Incomplete, unseen)
	}
	for _, w := range live.Well {
		if w.Check == "postmaster" {
			t.Errorf("of a postmaster that nobody has asked: %s", w.Fact)
		}
	}
}

// pooled returns the URL of a server through what gives its clients pids of its own, as poolers do.
func pooled(t *testing.T, at string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); server.Close() }()
			go func() { _ = withOwnPID(client, server); client.Close() }()
		}
	}()
	u.Host = listener.Addr().String()
	return u.String()
}

// withOwnPID copies what a server says, but for the pid that it gives the session.
func withOwnPID(to io.Writer, from io.Reader) error {
	in := bufio.NewReader(from)
	if first, err := in.Peek(1); err == nil && (first[0] == 'N' || first[0] == 'S') { // the answer to an SSLRequest is one byte
		if _, err := io.CopyN(to, in, 1); err != nil {
			return err
		}
	}
	for {
		head, err := in.Peek(5)
		if err != nil {
			return err
		}
		message := make([]byte, 1+binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(in, message); err != nil {
			return err
		}
		if message[0] == 'K' { // BackendKeyData
			binary.BigEndian.PutUint32(message[5:], 1<<30)
		}
		if _, err := to.Write(message); err != nil {
			return err
		}
	}
}
