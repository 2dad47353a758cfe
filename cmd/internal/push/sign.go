package push

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of Standard Webhooks (https://www.standardwebhooks.com).
const (
	headerID        = "webhook-id"
	headerTimestamp = "webhook-timestamp"
	headerSignature = "webhook-signature"
)

const (
	tolerance     = 5 * time.Minute // how far a callback's timestamp may be from now
	maxSignatures = 10              // of one callback that are compared
	maxIDBytes    = 256
)

// secret is a key with which both sides sign.
type secret []byte

const secretPrefix = "whsec_"

// parseSecret parses whsec_ and 24 to 64 bytes in base64.
func parseSecret(text string) (secret, error) {
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	if !ok {
		return nil, errors.New("it must begin with whsec_")
	}
	s, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, errors.New("what follows whsec_ is not base64")
	}
	if len(s) < 24 || len(s) > 64 {
		return nil, fmt.Errorf("it has %d bytes; it must have 24 to 64", len(s))
	}
	return s, nil
}

// signature signs what was sent under an id at a time, in seconds since 1970.
func (s secret) signature(id, at string, body []byte) []byte {
	mac := hmac.New(sha256.New, s)
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	return mac.Sum(nil)
}

// sign adds the headers to a request, with a signature by each secret.
func sign(h http.Header, secrets []secret, id string, now time.Time, body []byte) {
	at := strconv.FormatInt(now.Unix(), 10)
	signatures := make([]string, len(secrets))
	for i, s := range secrets {
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(s.signature(id, at, body))
	}
	h.Set(headerID, id)
	h.Set(headerTimestamp, at)
	h.Set(headerSignature, strings.Join(signatures, " "))
}

// signed is what the headers of a callback say.
type signed struct {
	id, at     string
	signatures [][]byte
}

// readSigned reads the headers. Everything but the signature itself is checked, so that a request with others costs no more.
func readSigned(h http.Header, now time.Time) (s signed, err error) {
	s.id, s.at = h.Get(headerID), h.Get(headerTimestamp)
	if s.id == "" || s.at == "" || h.Get(headerSignature) == "" {
		return s, errors.New("it lacks webhook-id, webhook-timestamp or webhook-signature")
	}
	if len(s.id) > maxIDBytes || strings.Contains(s.id, ".") {
		return s, fmt.Errorf("its webhook-id has more than %d bytes, or a dot", maxIDBytes)
	}
	seconds, err := strconv.ParseInt(s.at, 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != s.at {
		return s, fmt.Errorf("its webhook-timestamp must be a number of seconds since 1970, got %.30q", s.at)
	}
	if off := now.Sub(time.Unix(seconds, 0)); off > tolerance || off < -tolerance {
		return s, fmt.Errorf("its webhook-timestamp is more than %v from this server's time", tolerance)
	}
	for n, part := range strings.Fields(h.Get(headerSignature)) {
		if n == maxSignatures {
			break
		}
		if version, encoded, _ := strings.Cut(part, ","); version == "v1" {
			if b, err := base64.StdEncoding.DecodeString(encoded); err == nil {
				s.signatures = append(s.signatures, b)
			}
		}
	}
	if len(s.signatures) == 0 {
		return s, errors.New("its webhook-signature has no signature of version v1")
	}
	return s, nil
}

// by reports whether one of the signatures was made with one of the secrets.
func (s signed) by(secrets []secret, body []byte) bool {
	good := false
	for _, k := range secrets {
		want := k.signature(s.id, s.at, body)
		for _, got := range s.signatures {
			good = hmac.Equal(want, got) || good
		}
	}
	return good
}
