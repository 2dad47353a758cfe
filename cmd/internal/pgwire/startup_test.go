package pgwire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestEncryptionThatIsNotThereIsDeclined(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	r := e.dial()
	for _, m := range []pgproto3.FrontendMessage{&pgproto3.GSSEncRequest{}, &pgproto3.SSLRequest{}} {
		r.send(m)
		if got := readFull(t, r.net, make([]byte, 1)); got != "N" {
			t.Errorf("%T: %s", m, got)
		}
	}
	r.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "x"}})
	if got := r.answer(); !strings.HasSuffix(got, "/I") {
		t.Error(got)
	}
}

func TestCancelRequestsAreIgnored(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	r := e.dial()
	r.send(&pgproto3.CancelRequest{ProcessID: 2, SecretKey: []byte("1234")})
	r.expect("gone")
}

func TestProtocolVersionsAreNegotiated(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	for _, test := range []struct {
		version uint32
		option  string
		newest  uint32 // 0: nothing to negotiate
		key     int
	}{{3 << 16, "", 0, 4}, {3<<16 + 2, "", 0, 32}, {3<<16 + 9999, "", 3<<16 + 2, 32}, {3 << 16, "_pq_.wonder", 3 << 16, 4}} {
		r := e.dial()
		// The library can't write other versions.
		body := []byte{byte(test.version >> 24), byte(test.version >> 16), byte(test.version >> 8), byte(test.version)}
		body = append(body, "user\x00x\x00"...)
		if test.option != "" {
			body = append(body, test.option+"\x001\x00"...)
		}
		body = append(body, 0)
		if _, err := r.net.Write(append([]byte{0, 0, 0, byte(len(body) + 4)}, body...)); err != nil {
			t.Fatal(err)
		}
		for done := false; !done; {
			m, err := r.wire.Receive()
			if err != nil {
				t.Fatal(err)
			}
			switch m := m.(type) {
			case *pgproto3.NegotiateProtocolVersion:
				if m.NewestMinorProtocol != test.newest || strings.Join(m.UnrecognizedOptions, " ") != test.option {
					t.Errorf("%x: %+v", test.version, m)
				}
				test.newest = 0
			case *pgproto3.BackendKeyData:
				if len(m.SecretKey) != test.key {
					t.Errorf("%x: a key of %d bytes", test.version, len(m.SecretKey))
				}
			case *pgproto3.ReadyForQuery:
				done = true
			}
		}
		if test.newest != 0 {
			t.Errorf("%x was not negotiated", test.version)
		}
	}
}

func TestStartupThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{Database: "app"})
	for _, test := range []struct{ parameters, want string }{
		{"user\x00x\x00database\x00app\x00\x00", "AuthenticationOk"},
		{"user\x00x\x00database\x00other\x00\x00", "FATAL 3D000"},
		{"user\x00app\x00\x00", "AuthenticationOk"},
		{"database\x00app\x00\x00", "FATAL 28000"},
		{"\x00", "FATAL 28000"},
		{"user\x00app\x00replication\x00database\x00\x00", "FATAL 0A000"},
		{"user\x00app\x00client_encoding\x00LATIN1\x00\x00", "FATAL 22023"},
		{"user\x00app\x00x\x00\xff\x00\x00", "FATAL 22021"},
		{"user\x00app", "FATAL 08P01"},
		{"user\x00app\x00\x00more", "FATAL 08P01"},
	} {
		r := e.dial()
		body := "\x00\x03\x00\x00" + test.parameters
		if _, err := r.net.Write([]byte("\x00\x00\x00" + string(rune(len(body)+4)) + body)); err != nil {
			t.Fatal(err)
		}
		if got := r.next(); got != test.want {
			t.Errorf("%q: %s, want %s", test.parameters, got, test.want)
		}
	}
	r := e.dial()
	if _, err := r.net.Write([]byte("\x00\x00\x00\x09\x00\x02\x00\x00\x00")); err != nil { // protocol 2
		t.Fatal(err)
	}
	r.expect("FATAL 0A000")
	r = e.dial()
	if _, err := r.net.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	r.expect("FATAL 08P01")
}

func TestClientsPastTheLimitAreTold(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{MaxConnections: 1})
	first, _ := e.session(nil)
	if _, begin := e.session(nil); begin != "FATAL 53300 gone" {
		t.Error(begin)
	}
	first.asks("SELECT 1", "[?column?:23] (1) SELECT 1 /I")
	if s := e.server.Stats(); s.Refused != 1 || s.Accepted != 2 {
		t.Errorf("%+v", s)
	}
}

func TestWhoDoesNotAuthenticateInTimeIsCutOff(t *testing.T) {
	pgtest.Alone(t, "in time is within a moment")
	e := start(t, pgwire.Config{AuthTimeout: time.Second, Auth: usersFile(t, "someone secret\n")})
	conn := e.connect()
	silent := e.dial()
	asked := e.dial()
	asked.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "someone"}})
	asked.expect("AuthenticationSASL")
	silent.expect("gone")
	asked.expect("gone")
	run(t, conn, "LISTEN a") // a client that has logged in stays, although the timeout has passed
}
