package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"sync"
	"time"
)

// keySet is a file of public keys (RFC 7517). It is read again when it changes.
type keySet struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	keys    []publicKey
	looked  time.Time
	changed time.Time
	size    int64
}

type publicKey struct {
	id, method string
	key        any
}

const (
	lookEvery = time.Second // at the file, at most
	minRSA    = 2048        // bits
)

func openKeySet(path string, log *slog.Logger) (*keySet, error) {
	s := &keySet{path: path, log: log}
	if log == nil {
		s.log = slog.Default()
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	return s, nil
}

// find returns the key that a token names. A token that names none gets the only key there is for its method.
func (s *keySet) find(method, id string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.looked) >= lookEvery {
		if err := s.load(); err != nil {
			s.log.Warn("weir: the keys for tokens can't be read again, those read before still count", "error", err)
		}
	}
	var found []any
	for _, k := range s.keys {
		if k.method == method && (id == "" || k.id == id) {
			found = append(found, k.key)
		}
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("there is no %s key with id %.100q", method, id)
	case len(found) > 1:
		return nil, errors.New("several keys may have signed it, and it names none")
	}
	return found[0], nil
}

// load reads the file unless it is as it was.
func (s *keySet) load() error {
	s.looked = time.Now()
	info, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("web: look at the keys for tokens: %w", err)
	}
	if info.ModTime().Equal(s.changed) && info.Size() == s.size {
		return nil
	}
	b, err := os.ReadFile(s.path)
	if err != nil {
		return fmt.Errorf("web: read the keys for tokens: %w", err)
	}
	keys, err := parseKeys(b)
	if err != nil {
		return fmt.Errorf("web: read the keys for tokens from %s: %w", s.path, err)
	}
	s.keys, s.changed, s.size = keys, info.ModTime(), info.Size()
	return nil
}

type jwk struct {
	Type  string `json:"kty"`
	ID    string `json:"kid"`
	Use   string `json:"use"`
	Curve string `json:"crv"`
	Alg   string `json:"alg"`
	N     string `json:"n"`
	E     string `json:"e"`
	X     string `json:"x"`
	Y     string `json:"y"`
}

// parseKeys reads a JWK set. Keys that are for something else are left out; one that is damaged is an error.
func parseKeys(b []byte) ([]publicKey, error) {
	var set struct {
		Keys []jwk `json:"keys"`
	}
	if err := json.Unmarshal(b, &set); err != nil {
		return nil, fmt.Errorf("it is no JWK set: %w", err)
	}
	var keys []publicKey
	for _, k := range set.Keys {
		if k.Use != "" && k.Use != "sig" {
			continue
		}
		var key any
		var err error
		method := ""
		switch {
		case k.Type == "RSA" && (k.Alg == "" || k.Alg == "RS256"):
			method = "RS256"
			key, err = k.rsa()
		case k.Type == "EC" && k.Curve == "P-256" && (k.Alg == "" || k.Alg == "ES256"):
			method = "ES256"
			key, err = k.ecdsa()
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("key %.100q: %w", k.ID, err)
		}
		keys = append(keys, publicKey{k.ID, method, key})
	}
	if len(keys) == 0 {
		return nil, errors.New(`it has no key for RS256 or ES256: it must look like {"keys": [{"kty": "RSA", …}]}`)
	}
	return keys, nil
}

func (k jwk) rsa() (*rsa.PublicKey, error) {
	n, err := base64.RawURLEncoding.DecodeString(k.N)
	if err != nil {
		return nil, fmt.Errorf("n: %w", err)
	}
	e, err := base64.RawURLEncoding.DecodeString(k.E)
	if err != nil {
		return nil, fmt.Errorf("e: %w", err)
	}
	key := &rsa.PublicKey{N: new(big.Int).SetBytes(n)}
	exponent := new(big.Int).SetBytes(e)
	if bits := key.N.BitLen(); bits < minRSA {
		return nil, fmt.Errorf("it has %d bits, at least %d are needed", bits, minRSA)
	}
	if exponent.BitLen() > 31 || exponent.Int64() < 3 || exponent.Bit(0) == 0 {
		return nil, fmt.Errorf("its exponent %.20s is none", exponent)
	}
	key.E = int(exponent.Int64())
	return key, nil
}

func (k jwk) ecdsa() (*ecdsa.PublicKey, error) {
	const size = 32
	point := []byte{4}
	for _, coordinate := range []string{k.X, k.Y} {
		b, err := base64.RawURLEncoding.DecodeString(coordinate)
		if err != nil {
			return nil, err
		}
		if len(b) != size {
			return nil, fmt.Errorf("a coordinate has %d bytes, P-256 has %d", len(b), size)
		}
		point = append(point, b...)
	}
	return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
}
