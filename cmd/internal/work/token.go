package work

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
)

// key identifies an attempt: the worker in the database that claimed it, its batch, and its job.
type key struct {
	worker        int32
	lane, seq, id int64
}

// compare orders attempts.
func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.worker, other.worker), cmp.Compare(k.lane, other.lane), cmp.Compare(k.seq, other.seq), cmp.Compare(k.id, other.id))
}

const (
	keyBytes = 4 + 3*8
	macBytes = 12
)

// signer signs and checks tokens. All hubs of a database have the same secret.
type signer struct{ secret []byte }

// newSigner derives a secret of its own for one purpose.
func newSigner(secret, purpose string) signer {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(purpose))
	return signer{mac.Sum(nil)}
}

func (s signer) mac(b []byte) []byte {
	mac := hmac.New(sha256.New, s.secret)
	mac.Write(b)
	return mac.Sum(nil)[:macBytes]
}

// token returns the token of an attempt.
func (s signer) token(k key) string {
	b := make([]byte, 0, keyBytes+macBytes)
	b = binary.BigEndian.AppendUint32(b, uint32(k.worker))
	for _, v := range []int64{k.lane, k.seq, k.id} {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return base64.RawURLEncoding.EncodeToString(append(b, s.mac(b)...))
}

var errToken = errors.New("it is not a token of this database: pass tokens unchanged, as take returned them")

// parse returns the attempt that a token names.
func (s signer) parse(token string) (k key, err error) {
	var b [keyBytes + macBytes]byte
	if len(token) != base64.RawURLEncoding.EncodedLen(len(b)) {
		return k, errToken
	}
	if _, err := base64.RawURLEncoding.Strict().Decode(b[:], []byte(token)); err != nil || !hmac.Equal(s.mac(b[:keyBytes]), b[keyBytes:]) {
		return k, errToken
	}
	k.worker = int32(binary.BigEndian.Uint32(b[:]))
	for i, v := range []*int64{&k.lane, &k.seq, &k.id} {
		*v = int64(binary.BigEndian.Uint64(b[4+8*i:]))
	}
	return k, nil
}
