package web

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"
)

// keySet holds public keys (RFC 7517) from a file or a URL. It is read periodically, and a key that has been removed is no longer valid. While
// the set can't be read, the previous keys remain valid for a while; after that no key is.
type keySet struct {
	from string
	read func(context.Context) ([]byte, error)
	pace
	log *slog.Logger

	mu       sync.Mutex
	raw      []byte // the set as last read
	keys     []publicKey
	revision uint64        // counts changes
	tried    time.Time     // when the last read ended
	good     time.Time     // when the last successful read ended
	loading  chan struct{} // closed when the current read ends; nil: none is in progress
}

// pace is how often a set is read.
type pace struct {
	every time.Duration // between reads
	soon  time.Duration // between reads caused by a missing key
	hold  time.Duration // how long keys remain valid after the last successful read
	wait  bool          // whether find waits for every read that is due, not only for those caused by a missing key
}

var (
	filePace = pace{every: time.Second, soon: time.Second, hold: 10 * time.Second, wait: true}
	urlPace  = pace{every: time.Minute, soon: 10 * time.Second, hold: 15 * time.Minute}
)

type publicKey struct {
	id, method string
	key        any
}

const (
	keysTimeout = 5 * time.Second
	maxKeys     = 1 << 20 // bytes
	minRSA      = 2048    // bits
)

func openKeySet(c JWTConfig) (*keySet, error) {
	s := &keySet{from: c.KeysFile, read: fileReader(c.KeysFile), pace: filePace, log: c.Logger}
	if s.log == nil {
		s.log = slog.Default()
	}
	if c.KeysURL != "" {
		client, err := keysClient(c.KeysURL)
		if err != nil {
			return nil, err
		}
		s.from, s.read, s.pace = c.KeysURL, client, urlPace
	}
	s.mu.Lock()
	loaded := s.load()
	s.mu.Unlock()
	<-loaded
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.keys) > 0:
	case c.KeysURL != "" && s.good.IsZero():
		s.log.Warn("weir: the keys for tokens can't be read yet, so all tokens are refused until they can", "from", s.from)
	default:
		return nil, fmt.Errorf(`web: no key for RS256 or ES256 could be read from %s: it must contain a JWK set such as {"keys": [{"kty": "RSA", …}]}`, s.from)
	}
	return s, nil
}

func fileReader(path string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readKeys(f)
	}
}

func readKeys(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxKeys+1))
	if err == nil && len(b) > maxKeys {
		err = fmt.Errorf("it is longer than %d bytes", maxKeys)
	}
	return b, err
}

// keysClient returns a function that reads keys over HTTPS: anyone who could change them in transit could forge tokens.
func keysClient(address string) (func(context.Context) ([]byte, error), error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopbackName(u.Hostname())) {
		return nil, fmt.Errorf("web: %q is not a valid URL for keys: use an https URL, or http on a loopback address", address)
	}
	client := &http.Client{Timeout: keysTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return func(ctx context.Context) ([]byte, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return nil, err
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("the server answered %s: it must answer 200", response.Status)
		}
		return readKeys(response.Body)
	}, nil
}

func loopbackName(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// find returns the key with the given id. Without an id it returns the only key for the method.
func (s *keySet) find(method, id string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh(s.every, s.wait || s.old()) // nobody may have asked for long
	s.drop()
	found := s.matching(method, id)
	if len(found) == 0 && !s.wait {
		s.refresh(s.soon, true)
		found = s.matching(method, id)
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("no %s key has id %.100q", method, id)
	case len(found) > 1:
		return nil, errors.New("it has no kid, and several keys could have signed it")
	}
	return found[0], nil
}

func (s *keySet) matching(method, id string) (found []any) {
	for _, k := range s.keys {
		if k.method == method && (id == "" || k.id == id) {
			found = append(found, k.key)
		}
	}
	return found
}

// changes returns how often the keys have changed.
func (s *keySet) changes() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh(s.every, false)
	if s.tried.After(s.good) { // otherwise nobody has asked for long, and they are being read
		s.drop()
	}
	return s.revision
}

// old reports whether the keys were read too long ago to be used. The caller holds mu, as of drop.
func (s *keySet) old() bool { return time.Since(s.good) > s.hold }

// drop drops keys that are too old.
func (s *keySet) drop() {
	if len(s.keys) > 0 && s.old() {
		s.log.Error("weir: the keys for tokens have not been readable for too long: all tokens are refused", "from", s.from, "for", s.hold)
		s.set(nil, nil)
	}
}

// refresh reads the keys if the last read is older than age. The caller holds mu, which is released while waiting.
func (s *keySet) refresh(age time.Duration, wait bool) {
	if time.Since(s.tried) >= age || s.loading != nil {
		loading := s.load()
		if wait {
			s.mu.Unlock()
			<-loading
			s.mu.Lock()
		}
	}
}

// load starts reading the keys, unless a read is in progress, and returns a channel that is closed when the read ends, at most keysTimeout
// later; its goroutine ends then too. The caller holds mu.
func (s *keySet) load() chan struct{} {
	if s.loading != nil {
		return s.loading
	}
	done := make(chan struct{})
	s.loading = done
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), keysTimeout)
		defer cancel()
		raw, err := s.read(ctx)
		var keys []publicKey
		if err == nil {
			keys, err = parseKeys(raw)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tried, s.loading = time.Now(), nil
		if err != nil {
			s.log.Warn("weir: the keys for tokens can't be read; the previous ones remain valid for a while", "from", s.from, "for", s.hold, "error", err)
			return
		}
		s.good = s.tried
		if !bytes.Equal(raw, s.raw) {
			s.set(raw, keys)
		}
	}()
	return done
}

func (s *keySet) set(raw []byte, keys []publicKey) {
	if s.raw != nil && len(keys) == 0 {
		s.log.Warn("weir: the key set for tokens is empty now, so all tokens are refused", "from", s.from)
	}
	s.raw, s.keys = raw, keys
	s.revision++
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

// parseKeys parses a JWK set. It leaves out keys for other purposes; a malformed key is an error.
func parseKeys(b []byte) ([]publicKey, error) {
	var set struct {
		Keys *[]jwk `json:"keys"`
	}
	if err := json.Unmarshal(b, &set); err != nil {
		return nil, fmt.Errorf("it is not a JWK set: %w", err)
	}
	if set.Keys == nil {
		return nil, errors.New(`it is not a JWK set: it has no member "keys"`)
	}
	var keys []publicKey
	for _, k := range *set.Keys {
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
		return nil, fmt.Errorf("it has %d bits; at least %d are required", bits, minRSA)
	}
	if exponent.BitLen() > 31 || exponent.Int64() < 3 || exponent.Bit(0) == 0 {
		return nil, fmt.Errorf("its exponent %.20s is not valid", exponent)
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
			return nil, fmt.Errorf("a coordinate has %d bytes; those of P-256 have %d", len(b), size)
		}
		point = append(point, b...)
	}
	return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
}
