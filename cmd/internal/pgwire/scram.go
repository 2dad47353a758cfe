package pgwire

import (
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/text/secure/precis"
)

// verifier is what a server stores about a password (RFC 5803). It does not reveal the password, but with it one could impersonate the
// server.
type verifier struct {
	iterations           int
	salt                 []byte
	storedKey, serverKey []byte
	mock                 bool // of no user: no proof matches
}

const scramPrefix = plainSCRAM + "$"

// parseVerifier parses a verifier as PostgreSQL stores it.
func parseVerifier(s string) (*verifier, error) {
	bad := fmt.Errorf("its password is not stored as a SCRAM-SHA-256 verifier: set password_encryption to scram-sha-256 and set the password again")
	rest, ok := strings.CutPrefix(s, scramPrefix)
	parameters, keys, ok2 := strings.Cut(rest, "$")
	iterations, salt, ok3 := strings.Cut(parameters, ":")
	stored, server, ok4 := strings.Cut(keys, ":")
	if !ok || !ok2 || !ok3 || !ok4 {
		return nil, bad
	}
	v := &verifier{}
	var err error
	if v.iterations, err = strconv.Atoi(iterations); err != nil || v.iterations < 1 {
		return nil, bad
	}
	for _, part := range []struct {
		to   *[]byte
		text string
		size int
	}{{&v.salt, salt, 0}, {&v.storedKey, stored, sha256.Size}, {&v.serverKey, server, sha256.Size}} {
		*part.to, err = base64.StdEncoding.DecodeString(part.text)
		if err != nil || len(*part.to) == 0 || part.size > 0 && len(*part.to) != part.size {
			return nil, bad
		}
	}
	return v, nil
}

// String formats the verifier as PostgreSQL stores it.
func (v *verifier) String() string {
	b64 := base64.StdEncoding.EncodeToString
	return scramPrefix + strconv.Itoa(v.iterations) + ":" + b64(v.salt) + "$" + b64(v.storedKey) + ":" + b64(v.serverKey)
}

const iterations = 4096 // PostgreSQL's default

// newVerifier returns a verifier of a password.
func newVerifier(password string, salt []byte) (*verifier, error) {
	if prepared, err := precis.OpaqueString.String(password); err == nil {
		password = prepared // otherwise it is used unchanged, as in PostgreSQL
	}
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return nil, err
	}
	stored := sha256.Sum256(mac(salted, "Client Key"))
	return &verifier{iterations: iterations, salt: salt, storedKey: stored[:], serverKey: mac(salted, "Server Key")}, nil
}

// saltOf returns the salt of a user without a stored one: always the same, on every hub with the same secret.
func saltOf(secret []byte, user string) []byte { return mac(secret, "salt of "+user)[:16] }

// mock returns a verifier for a user that does not exist, indistinguishable from a real one.
func mock(secret []byte, user string, iterations int) *verifier {
	return &verifier{iterations: iterations, salt: saltOf(secret, user), storedKey: make([]byte, sha256.Size), serverKey: make([]byte, sha256.Size), mock: true}
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// scram is the server's side of one exchange (RFC 5802, RFC 7677).
type scram struct {
	verifier *verifier
	binding  []byte // tls-server-end-point; nil: there is no TLS
	bound    bool   // the client has chosen the mechanism with channel binding

	gs2         string // the header of the client's first message
	clientFirst string // the rest of it
	serverFirst string
	nonce       string
}

// first answers the client's first message.
func (s *scram) first(message []byte) ([]byte, error) {
	text := string(message)
	flag, rest, ok := strings.Cut(text, ",")
	identity, bare, ok2 := strings.Cut(rest, ",")
	if !ok || !ok2 {
		return nil, malformed("header")
	}
	switch {
	case s.bound && flag != "p=tls-server-end-point":
		return nil, errorf(protocolViolation, "unsupported SCRAM channel-binding type: only tls-server-end-point is supported")
	case s.bound || flag == "n":
	case flag == "y" && s.binding != nil:
		return nil, errorf(badAuthorization, "SCRAM channel binding negotiation error").
			hint("The client supports channel binding but thinks the server does not; the server does. Somebody may be in between.")
	case flag != "y":
		return nil, malformed("channel-binding flag")
	}
	if identity != "" {
		return nil, errorf(unsupported, "client uses authorization identity, but it is not supported")
	}
	// The user name is that of the startup message, as in PostgreSQL.
	name, nonce, ok := strings.Cut(bare, ",")
	if !ok || !strings.HasPrefix(name, "n=") {
		return nil, malformed("user name")
	}
	nonce, extensions, _ := strings.Cut(nonce, ",")
	nonce, ok = strings.CutPrefix(nonce, "r=")
	if !ok || nonce == "" || strings.ContainsFunc(nonce, func(r rune) bool { return r < '!' || r > '~' }) {
		return nil, malformed("nonce")
	}
	if strings.HasPrefix(extensions, "m=") {
		return nil, errorf(unsupported, "client requires an unsupported SCRAM extension")
	}
	own := make([]byte, 18)
	randomBytes(own)
	s.gs2, s.clientFirst = text[:len(text)-len(bare)], bare
	s.nonce = nonce + base64.StdEncoding.EncodeToString(own)
	s.serverFirst = "r=" + s.nonce + ",s=" + base64.StdEncoding.EncodeToString(s.verifier.salt) + ",i=" + strconv.Itoa(s.verifier.iterations)
	return []byte(s.serverFirst), nil
}

// last checks the client's proof, and answers with the server's.
func (s *scram) last(message []byte) (answer []byte, ok bool, err error) {
	text := string(message)
	at := strings.LastIndex(text, ",p=")
	if at < 0 {
		return nil, false, malformed("proof")
	}
	proof, err := base64.StdEncoding.DecodeString(text[at+len(",p="):])
	if err != nil || len(proof) != sha256.Size {
		return nil, false, malformed("proof")
	}
	binding, nonce, _ := strings.Cut(text[:at], ",")
	nonce, _, _ = strings.Cut(nonce, ",")
	header := []byte(s.gs2)
	if s.bound {
		header = append(header, s.binding...)
	}
	bound, found := strings.CutPrefix(binding, "c=")
	if raw, err := base64.StdEncoding.DecodeString(bound); err != nil || !found || !bytes.Equal(raw, header) {
		return nil, false, errorf(badAuthorization, "SCRAM channel binding check failed")
	}
	if nonce != "r="+s.nonce {
		return nil, false, malformed("nonce")
	}
	signed := s.clientFirst + "," + s.serverFirst + "," + text[:at]
	key := mac(s.verifier.storedKey, signed)
	subtle.XORBytes(key, key, proof)
	stored := sha256.Sum256(key)
	if subtle.ConstantTimeCompare(stored[:], s.verifier.storedKey) != 1 || s.verifier.mock {
		return nil, false, nil
	}
	return []byte("v=" + base64.StdEncoding.EncodeToString(mac(s.verifier.serverKey, signed))), true, nil
}
