package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/weir-pg/weir/cmd/internal/natstest"
	"github.com/weir-pg/weir/internal/hub"
)

// TestEmbeddedServersJoinBySecretOrCertificate: hubs whose servers know the same secret, or have certificates signed by the same CA, form a
// cluster; other hubs stay outside, and read for themselves.
func TestEmbeddedServersJoinBySecretOrCertificate(t *testing.T) {
	t.Parallel()
	mine, theirs := certificates(t), certificates(t)
	for name, c := range map[string]struct{ inside, outside Embedded }{
		"secret":             {Embedded{Secret: secret}, Embedded{Secret: secret + "!"}},
		"certificate":        {Embedded{TLS: mine}, Embedded{TLS: theirs}},
		"both, wrong secret": {Embedded{TLS: mine, Secret: secret}, Embedded{TLS: mine, Secret: secret + "!"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			start := func(e Embedded, routes ...string) *node {
				e.Listen, e.Routes = "127.0.0.1:-1", routes
				return s.join(Config{Embedded: &e})
			}
			one := start(c.inside)
			at := one.cluster.Address()
			nodes := []*node{one, start(c.inside, at), start(c.inside, at)}
			settle(t, nodes...)
			stranger := start(c.outside, at)
			var boxes []*box
			for _, n := range append(nodes, stranger) {
				_, b := subscribe(t, n, hub.Position{}, ">")
				boxes = append(boxes, b)
			}
			for i := range 20 {
				s.publish("c", fmt.Sprint(i))
			}
			for _, b := range boxes {
				want := s.wait(b, filters(t, ">")...)
				same(t, "hub", b.messages(), want)
			}
			settle(t, stranger)
			if n := one.cluster.Stats().Hubs; n != 3 {
				t.Errorf("the cluster has %d hubs", n)
			}
		})
	}
}

// TestEmbeddedServerLetsNobodyIn: the embedded server refuses clients from outside the process, even with the routes' secret, and by default
// listens only on loopback.
func TestEmbeddedServerLetsNobodyIn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	n := s.join(Config{Embedded: &Embedded{Listen: "127.0.0.1:-1", Secret: secret}})
	at := n.cluster.server.ClientURL()
	if !strings.HasPrefix(at, "nats://127.0.0.1:") {
		t.Errorf("the client port is at %s", at)
	}
	for _, options := range [][]nats.Option{nil, {nats.UserInfo(routeUser, secret)}, {nats.Token(secret)}} {
		if conn, err := nats.Connect(at, options...); err == nil {
			conn.Close()
			t.Error("a client from outside was accepted")
		}
	}
	if options, err := serverOptions(&Config{Embedded: &Embedded{Secret: secret}, Database: "d"}, ident{}); err != nil || options.Cluster.Host != "127.0.0.1" {
		t.Errorf("by default it listens on %s: %v", options.Cluster.Host, err)
	}
}

// TestMistakesAreNamed: Start names what is wrong with a configuration, and never quotes secrets.
func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	source := &counting{}
	for want, c := range map[string]Config{
		"Source is nil":                   {Database: "d", URL: "nats://h"},
		`"a b" is not a valid name`:       {Source: source, Database: "a b", URL: "nats://h"},
		"either the URL":                  {Source: source, Database: "d"},
		"more than one of token":          {Source: source, Database: "d", URL: "nats://h", Token: "t", User: "u"},
		`"http" is not a valid scheme`:    {Source: source, Database: "d", URL: "http://user:hunter2@h:1"},
		"use the form nats://":            {Source: source, Database: "d", URL: "nats://user:hunter2@h:port"},
		"needs a secret or certificates":  {Source: source, Database: "d", Embedded: &Embedded{}},
		"at least 16 are required":        {Source: source, Database: "d", Embedded: &Embedded{Secret: "hunter2"}},
		`"nowhere" is not a valid`:        {Source: source, Database: "d", Embedded: &Embedded{Secret: secret, Listen: "nowhere"}},
		`"elsewhere" is not a valid`:      {Source: source, Database: "d", Embedded: &Embedded{Secret: secret, Routes: []string{"elsewhere"}}},
		"needs three files":               {Source: source, Database: "d", Embedded: &Embedded{TLS: TLS{CA: "ca.pem"}}},
		"no such file":                    {Source: source, Database: "d", URL: "nats://h", TLS: TLS{CA: "missing.pem"}},
		"read NATS credentials":           {Source: source, Database: "d", URL: "nats://h", Credentials: "missing.creds"},
		"read the NATS nkey missing.seed": {Source: source, Database: "d", URL: "nats://h", NKey: "missing.seed"},
		"apply only to the URL":           {Source: source, Database: "d", Token: "t", Embedded: &Embedded{Secret: secret}},
	} {
		c.Logger = logger(t)
		_, err := Start(t.Context(), c)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("for %s: %v", want, err)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = Start(t.Context(), Config{Source: source, Database: "d", Logger: logger(t), Embedded: &Embedded{Secret: secret, Listen: taken.Addr().String()}})
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("for a port in use: %v", err)
	}
}

// TestExternalNATSWithTLSAndPassword: a hub presents its certificate and password to a server that requires both.
func TestExternalNATSWithTLSAndPassword(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	files := certificates(t)
	config, err := mutual(files)
	if err != nil {
		t.Fatal(err)
	}
	ns := natstest.Start(t, &server.Options{TLSConfig: config, TLSTimeout: 5, Username: "weir", Password: secret})
	url := "tls://" + ns.Addr().String()
	one := s.join(Config{URL: url, TLS: files, User: "weir", Password: secret})
	two := s.join(Config{URL: strings.Replace(url, "tls://", "tls://weir:"+strings.ReplaceAll(secret, " ", "%20")+"@", 1), TLS: files})
	settle(t, one, two)
	for _, c := range []Config{{URL: url, TLS: files}, {URL: url, TLS: files, User: "weir", Password: "wrong"}, {URL: url, User: "weir", Password: secret}} {
		n := s.join(c)
		until(t, "a hub that NATS refuses reads for itself", func() bool { return n.Live() })
		if stats := n.cluster.Stats(); stats.Connected || stats.Role != Serving {
			t.Errorf("its state is %+v", stats)
		}
		n.end()
	}
}

// certificates creates a CA and a certificate signed by it, for servers and clients on 127.0.0.1.
func certificates(t testing.TB) TLS {
	t.Helper()
	dir := t.TempDir()
	var ca *x509.Certificate
	var caKey *ecdsa.PrivateKey
	make := func(name string, template *x509.Certificate) (certFile, keyFile string) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		if ca == nil {
			ca, caKey = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
		if err != nil {
			t.Fatal(err)
		}
		if ca == template {
			if ca, err = x509.ParseCertificate(der); err != nil {
				t.Fatal(err)
			}
		}
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write := func(file, kind string, der []byte) string {
			file = filepath.Join(dir, file)
			if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
				t.Fatal(err)
			}
			return file
		}
		return write(name+".pem", "CERTIFICATE", der), write(name+".key", "PRIVATE KEY", keyDER)
	}
	var files TLS
	files.CA, _ = make("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	files.Cert, files.Key = make("hub", &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return files
}
