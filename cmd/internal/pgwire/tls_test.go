package pgwire_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
)

// certificate creates a certificate for 127.0.0.1, and a file with it for clients.
func certificate(t testing.TB) (*tls.Config, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "weir"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, SignatureAlgorithm: x509.ECDSAWithSHA384,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "root.crt")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, path
}

func TestTLS(t *testing.T) {
	t.Parallel()
	config, root := certificate(t)
	e := start(t, pgwire.Config{TLS: config, RequireTLS: true, Auth: usersFile(t, "someone secret\n")})
	for _, options := range []string{
		"sslmode=require", "sslmode=verify-full&sslrootcert=" + root, "sslmode=verify-full&channel_binding=require&sslrootcert=" + root,
		"sslmode=verify-full&sslnegotiation=direct&channel_binding=require&sslrootcert=" + root,
	} {
		conn := e.connectWith(options)
		run(t, conn, "LISTEN a")
		run(t, conn, "NOTIFY a, 'x'")
		notification(t, conn)
	}
	if got := e.login("someone", "wrong", "sslmode=require&channel_binding=require"); got != "28P01" {
		t.Error(got)
	}
	if got := e.login("someone", "secret", "sslmode=disable"); got != "28000" {
		t.Errorf("without TLS: %q", got)
	}
}

func TestChannelBindingCannotBeTalkedAway(t *testing.T) {
	t.Parallel()
	config, _ := certificate(t)
	e := start(t, pgwire.Config{TLS: config, Auth: usersFile(t, "someone secret\n")})
	r := e.dial()
	r.send(&pgproto3.SSLRequest{})
	if b := make([]byte, 1); readFull(t, r.net, b) != "S" {
		t.Fatalf("got %s", b)
	}
	secure := tls.Client(r.net, &tls.Config{InsecureSkipVerify: true})
	r.wire = pgproto3.NewFrontend(secure, secure)
	r.send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "someone"}})
	r.expect("AuthenticationSASL")
	r.send(&pgproto3.SASLInitialResponse{AuthMechanism: "SCRAM-SHA-256", Data: []byte("y,,n=,r=abcdefghijklmnop")})
	r.expect("FATAL 28000")
}

func TestWhatIsSentBeforeTLSIsNotTakenForWhatComesAfter(t *testing.T) {
	t.Parallel()
	config, _ := certificate(t)
	e := start(t, pgwire.Config{TLS: config})
	r := e.dial()
	r.send(&pgproto3.SSLRequest{}, &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "x"}})
	r.expect("FATAL 08P01")
}

func readFull(t testing.TB, conn net.Conn, b []byte) string {
	t.Helper()
	for n := 0; n < len(b); {
		got, err := conn.Read(b[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += got
	}
	return string(b)
}
