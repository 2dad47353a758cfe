package hub

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// scramUser is a user as whom many clients log in with SCRAM-SHA-256 (RFC 5802). The result of PBKDF2, which takes milliseconds and is the same
// for all of them, is computed once per salt; each client does the rest.
type scramUser struct {
	password string

	mu   sync.Mutex
	keys map[string]*scramKeys // by salt and number of iterations
}

type scramKeys struct{ client, stored, server []byte }

func (u *scramUser) keysFor(salt string, iterations int) (*scramKeys, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	name := fmt.Sprintf("%s %d", salt, iterations)
	if k := u.keys[name]; k != nil {
		return k, nil
	}
	raw, err := base64.StdEncoding.DecodeString(salt)
	if err != nil {
		return nil, fmt.Errorf("the server's salt: %w", err)
	}
	salted, err := pbkdf2.Key(sha256.New, u.password, raw, iterations, sha256.Size)
	if err != nil {
		return nil, err
	}
	client := mac(salted, "Client Key")
	stored := sha256.Sum256(client)
	k := &scramKeys{client: client, stored: stored[:], server: mac(salted, "Server Key")}
	if u.keys == nil {
		u.keys = map[string]*scramKeys{}
	}
	u.keys[name] = k
	return k, nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// scramExchange is the exchange of one client.
type scramExchange struct {
	user      *scramUser
	firstBare string
	signature []byte // the expected signature of the server
}

const scramHeader = "n,," // no channel binding, no other user

// first returns the client's first message.
func (x *scramExchange) first() []byte {
	x.firstBare = "n=,r=" + rand.Text()
	return []byte(scramHeader + x.firstBare)
}

// answer returns the client's answer to the server's challenge.
func (x *scramExchange) answer(challenge string) ([]byte, error) {
	var nonce, salt string
	var iterations int
	for attribute := range strings.SplitSeq(challenge, ",") {
		switch name, value, _ := strings.Cut(attribute, "="); name {
		case "r":
			nonce = value
		case "s":
			salt = value
		case "i":
			iterations, _ = strconv.Atoi(value)
		}
	}
	if !strings.HasPrefix(nonce, strings.TrimPrefix(x.firstBare, "n=,r=")) || iterations < 1 {
		return nil, fmt.Errorf("the server's SCRAM challenge %q is not valid", challenge)
	}
	keys, err := x.user.keysFor(salt, iterations)
	if err != nil {
		return nil, err
	}
	bare := "c=" + base64.StdEncoding.EncodeToString([]byte(scramHeader)) + ",r=" + nonce
	all := x.firstBare + "," + challenge + "," + bare
	proof := mac(keys.stored, all)
	subtle.XORBytes(proof, proof, keys.client)
	x.signature = mac(keys.server, all)
	return []byte(bare + ",p=" + base64.StdEncoding.EncodeToString(proof)), nil
}

// check checks that the server knows the user's verifier too.
func (x *scramExchange) check(final string) error {
	signature, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(final, "v="))
	if err != nil || !hmac.Equal(signature, x.signature) {
		return errors.New("the server does not know the user's SCRAM verifier")
	}
	return nil
}
