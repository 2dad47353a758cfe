package pgwire

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
)

// alpn is the protocol requested by clients that start with TLS directly.
const alpn = "postgresql"

// tlsConn is the connection below TLS. It returns bytes read before TLS began, and records the certificate in use.
type tlsConn struct {
	net.Conn
	early []byte
	shown []byte // the certificate, in DER
}

func (t *tlsConn) Read(b []byte) (int, error) {
	if len(t.early) > 0 {
		n := copy(b, t.early)
		t.early = t.early[n:]
		return n, nil
	}
	return t.Conn.Read(b)
}

// withALPN returns a configuration that also offers the protocol, and records the certificate it uses: channel binding needs
// its hash, and Go's TLS does not report which one was chosen.
func withALPN(config *tls.Config) *tls.Config {
	config = config.Clone()
	if !slices.Contains(config.NextProtos, alpn) {
		config.NextProtos = append([]string{alpn}, config.NextProtos...)
	}
	get, certificates := config.GetCertificate, config.Certificates
	config.Certificates = nil // otherwise GetCertificate is not called for clients without SNI
	config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		certificate, err := choose(hello, get, certificates)
		if t, ok := hello.Conn.(*tlsConn); ok && certificate != nil && len(certificate.Certificate) > 0 {
			t.shown = certificate.Certificate[0]
		}
		return certificate, err
	}
	if of := config.GetConfigForClient; of != nil {
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			special, err := of(hello)
			if special != nil {
				special = withALPN(special)
			}
			return special, err
		}
	}
	return config
}

// choose selects a certificate as crypto/tls does with GetCertificate and Certificates.
func choose(
	hello *tls.ClientHelloInfo, get func(*tls.ClientHelloInfo) (*tls.Certificate, error), certificates []tls.Certificate,
) (*tls.Certificate, error) {
	if get != nil {
		if certificate, err := get(hello); certificate != nil || err != nil {
			return certificate, err
		}
	}
	for i := range certificates {
		if hello.SupportsCertificate(&certificates[i]) == nil {
			return &certificates[i], nil
		}
	}
	if len(certificates) > 0 {
		return &certificates[0], nil
	}
	return nil, nil
}

// upgrade answers an SSLRequest.
func (c *conn) upgrade(ctx context.Context) error {
	if len(c.in.rest()) > 0 { // it may have been injected, to be mistaken for encrypted input
		return errorf(protocolViolation, "received unencrypted data after SSL request")
	}
	c.answer = append(c.buffer(), 'S')
	c.flush()
	_, err := c.handshake(ctx, nil)
	return err
}

// direct starts TLS without an SSLRequest.
func (c *conn) direct(ctx context.Context) error {
	if c.server.config.TLS == nil {
		return errorf(protocolViolation, "this hub does not use TLS")
	}
	t, err := c.handshake(ctx, c.in.rest())
	if err == nil && t.ConnectionState().NegotiatedProtocol != alpn {
		err = errorf(protocolViolation, "received direct SSL connection request without ALPN protocol negotiation extension")
	}
	return err
}

func (c *conn) handshake(ctx context.Context, early []byte) (*tls.Conn, error) {
	t := tls.Server(&tlsConn{Conn: c.raw, early: early}, c.server.config.TLS)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	c.net, c.in.from = t, t
	return t, nil
}

// endPoint returns the channel binding tls-server-end-point (RFC 5929): the hash of the certificate, or nil without TLS.
func (c *conn) endPoint() []byte {
	t, ok := c.net.(*tls.Conn)
	if !ok {
		return nil
	}
	under, ok := t.NetConn().(*tlsConn)
	if !ok || under.shown == nil {
		return nil
	}
	certificate, err := x509.ParseCertificate(under.shown)
	if err != nil {
		return nil
	}
	hash := crypto.SHA256
	switch certificate.SignatureAlgorithm {
	case x509.SHA384WithRSA, x509.ECDSAWithSHA384, x509.SHA384WithRSAPSS:
		hash = crypto.SHA384
	case x509.SHA512WithRSA, x509.ECDSAWithSHA512, x509.SHA512WithRSAPSS:
		hash = crypto.SHA512
	case x509.PureEd25519: // it has no hash function, so the binding is undefined
		return nil
	}
	h := hash.New()
	h.Write(under.shown)
	return h.Sum(nil)
}
