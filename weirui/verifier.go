package weirui

import (
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	minPassword = 8    // bytes
	maxPassword = 1024 // bytes

	maxIterations = 10_000_000 // more would let a line of the file occupy a core for seconds
	verifierForm  = "pbkdf2-sha256"
)

// iterations are those of new verifiers, and the least that there may be. A variable, because tests derive many keys.
var iterations = 600_000

// verifier is what is stored of a password: pbkdf2-sha256$iterations$salt$key, with salt and key in base64 without padding.
type verifier struct {
	iterations int
	salt, key  string // bytes
}

func newVerifier(password string) verifier {
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails
	v := verifier{iterations: iterations, salt: string(salt)}
	v.key = string(v.derive(password))
	return v
}

// String returns the verifier as a file has it.
func (v verifier) String() string {
	text := base64.RawStdEncoding.EncodeToString
	return verifierForm + "$" + strconv.Itoa(v.iterations) + "$" + text([]byte(v.salt)) + "$" + text([]byte(v.key))
}

func parseVerifier(text string) (v verifier, err error) {
	parts := strings.Split(text, "$")
	if len(parts) != 4 || parts[0] != verifierForm {
		return v, fmt.Errorf("it must have the form %s$iterations$salt$key, as weir ui-password prints it", verifierForm)
	}
	v.iterations, err = strconv.Atoi(parts[1])
	if err != nil || v.iterations < iterations || v.iterations > maxIterations {
		return v, fmt.Errorf("it has %s iterations: it must have %d to %d", cut(parts[1], 20), iterations, maxIterations)
	}
	salt, saltErr := base64.RawStdEncoding.DecodeString(parts[2])
	key, keyErr := base64.RawStdEncoding.DecodeString(parts[3])
	if saltErr != nil || keyErr != nil || len(salt) < 16 || len(salt) > 64 || len(key) != sha256.Size {
		return v, errors.New("its salt must have 16 to 64 bytes and its key 32, in base64 without padding")
	}
	v.salt, v.key = string(salt), string(key)
	return v, nil
}

func (v verifier) derive(password string) []byte {
	key, err := pbkdf2.Key(sha256.New, password, []byte(v.salt), v.iterations, sha256.Size)
	if err != nil {
		panic(err) // only for parameters that are not valid
	}
	return key
}

// matches reports whether the password is right. It takes as long for each password.
func (v verifier) matches(password string) bool {
	return subtle.ConstantTimeCompare(v.derive(password), []byte(v.key)) == 1
}
