package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// certificateFor writes a self-signed certificate for 127.0.0.1, and its key.
func certificateFor(t testing.TB, dir, name string) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(cert, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600); err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return cert, key, pool
}

// TestTLSOnBothListeners: both listeners use TLS, a client without the required TLS is refused, and a new certificate needs no restart.
func TestTLSOnBothListeners(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	dir := t.TempDir()
	cert, key, pool := certificateFor(t, dir, "first")
	s := start(t, Config{Database: database, TLSCert: cert, TLSKey: key, RequireTLS: true})

	u := clientURL(t, s, database, "IN ROLE weir_subscribe")
	connect := func(config *tls.Config) error {
		u.RawQuery = "sslmode=disable"
		c, err := pgx.ParseConfig(u.String())
		if err != nil {
			t.Fatal(err)
		}
		c.TLSConfig = config
		conn, err := pgx.ConnectConfig(t.Context(), c)
		for end := time.Now().Add(patience); sqlstate(err) == "28P01" && time.Now().Before(end); <-time.After(20 * time.Millisecond) {
			conn, err = pgx.ConnectConfig(t.Context(), c) // the hub does not know the role yet
		}
		if err == nil {
			_, err = conn.Exec(t.Context(), `LISTEN a`)
			_ = conn.Close(context.Background())
		}
		return err
	}
	if err := connect(&tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}); err != nil {
		t.Errorf("over TLS: %v", err)
	}
	if err := connect(nil); err == nil {
		t.Error("a client without TLS was let in")
	}
	get := func(pool *x509.CertPool) error {
		client := http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true, ForceAttemptHTTP2: true}}
		response, err := client.Get("https://" + s.HTTPAddr().String() + "/healthz")
		if err == nil {
			response.Body.Close()
			if response.ProtoMajor != 2 {
				t.Errorf("https is spoken as %s", response.Proto)
			}
		}
		return err
	}
	if err := get(pool); err != nil {
		t.Errorf("https: %v", err)
	}
	_, _, renewed := certificateFor(t, dir, "second")
	future := time.Now().Add(time.Minute) // file times may have a resolution of a second
	for _, path := range []string{cert, key} {
		if err := os.Chtimes(path, future, future); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(patience); get(renewed) != nil; <-time.After(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the new certificate is not used")
		}
	}
}
