// Package weircrypt encrypts what jobs store, with AES-256-GCM. Pass its codec to weir.Client.WithCodec:
//
//	codec, err := weircrypt.New(weircrypt.Key{ID: "2026-11", Secret: secret})
//	if err != nil {
//		return err
//	}
//	client := weir.NewClient(pool).WithCodec(codec)
//
// docs/encryption.md says what is encrypted, how to introduce encryption and how to rotate keys.
package weircrypt

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/sealed"
)

// Key is a key with its id, which is stored beside everything that the key encrypts. Never use an id for two keys.
type Key struct {
	ID     string // 1 to 128 letters, digits or ._:/@+=-
	Secret []byte // 32 random bytes, for example from: openssl rand -base64 32
}

// String returns the key's id. A key that is printed or logged does not show its secret.
func (k Key) String() string { return "key " + k.ID }

// GoString returns the same as String.
func (k Key) GoString() string { return k.String() }

// Codec encrypts with one key, and decrypts with several. It is a weir.Codec, and safe for concurrent use.
type Codec struct {
	first string
	keys  map[string]cipher.AEAD
}

// New returns a codec that encrypts with first, and decrypts with first and the others. To rotate keys, give all programs the new key among
// the others, then make it the first everywhere, and drop the old one when nothing is stored with it any more.
//
// Each nonce is random: a key may encrypt 4 billion texts (2^32), and should then be replaced. A job is one text, and so are its output and
// the error of each of its attempts.
func New(first Key, others ...Key) (*Codec, error) {
	c := &Codec{first: first.ID, keys: map[string]cipher.AEAD{}}
	for _, k := range append([]Key{first}, others...) {
		if err := sealed.CheckKey(k.ID); err != nil {
			return nil, fmt.Errorf("weircrypt: %w", err)
		}
		switch {
		case len(k.Secret) != 32:
			return nil, fmt.Errorf("weircrypt: the secret of key %q has %d bytes: it must be 32 random bytes", k.ID, len(k.Secret))
		case c.keys[k.ID] != nil:
			return nil, fmt.Errorf("weircrypt: there are two keys with the ID %q: give each an ID of its own", k.ID)
		}
		block, err := aes.NewCipher(k.Secret)
		if err != nil {
			return nil, fmt.Errorf("weircrypt: key %q: %w", k.ID, err)
		}
		if c.keys[k.ID], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, fmt.Errorf("weircrypt: key %q: %w", k.ID, err)
		}
	}
	return c, nil
}

// Parse returns the codec of a text such as an environment variable holds: keys separated by spaces, commas or line breaks, each an id, a
// colon and the secret in base64, after the last colon. The first key encrypts. Errors do not contain secrets.
func Parse(text string) (*Codec, error) {
	var keys []Key
	for i, field := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,\t\r\n", r) }) {
		colon := strings.LastIndexByte(field, ':') // ids may have some, base64 has none
		if colon < 0 {
			return nil, fmt.Errorf("weircrypt: key %d has no colon: write it as id:secret, with the secret in base64", i+1)
		}
		id, secret := field[:colon], field[colon+1:]
		decoded, err := base64.StdEncoding.DecodeString(secret)
		if err != nil {
			return nil, fmt.Errorf("weircrypt: the secret of key %q is not base64: make one with: openssl rand -base64 32", id)
		}
		keys = append(keys, Key{ID: id, Secret: decoded})
	}
	if len(keys) == 0 {
		return nil, errors.New("weircrypt: there is no key: write each as id:secret, with the secret in base64")
	}
	return New(keys[0], keys[1:]...)
}

// check refuses a codec without keys, which a program has that goes on after an error of Parse or New.
func (c *Codec) check() error {
	if c == nil || len(c.keys) == 0 {
		return errors.New("weircrypt: the codec is nil or has no keys: make it with Parse or New, and check their error")
	}
	return nil
}

// Encode implements weir.Codec: data is a nonce of 12 bytes, the ciphertext, and a tag of 16 bytes. bound is the additional data.
func (c *Codec) Encode(_ context.Context, plain, bound []byte) (key string, data []byte, err error) {
	if err := c.check(); err != nil {
		return "", nil, err
	}
	return c.first, c.keys[c.first].Seal(nil, nil, plain, bound), nil
}

// Decode implements weir.Codec. The error is weir.ErrUnknownKey if the codec does not have the key.
func (c *Codec) Decode(_ context.Context, key string, data, bound []byte) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	aead := c.keys[key]
	if aead == nil {
		return nil, fmt.Errorf("%w: give this program the key, or wait for those that have it", weir.ErrUnknownKey)
	}
	plain, err := aead.Open(nil, nil, data, bound)
	if err != nil {
		return nil, errors.New("it was changed, belongs elsewhere, or was encrypted with another key of this id")
	}
	return plain, nil
}
