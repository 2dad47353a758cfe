// Package sealed is the form in which encoded data is stored: a JSON object with the id of a key and the data in base64. docs/encryption.md
// describes it for other languages.
package sealed

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Part is a part of a job that is encoded on its own.
type Part string

// The parts of a job.
const (
	Args       Part = "args"
	Output     Part = "output"
	Error      Part = "error"
	Message    Part = "message"    // of its progress
	Checkpoint Part = "checkpoint" //
	Log        Part = "log"        // one line
)

// mark is the only key of the object. No other data may be an object that begins with it.
const mark = "weir.encrypted"

const maxKey = 128

// Bound returns the text that encoded data is bound to: data that is moved to another part, to a job of another kind or, except for args, to
// another job, does not decode. Args have the id 0, because they are encoded before the job has an id.
func Bound(part Part, id int64, kind string) []byte {
	return fmt.Appendf(nil, "weir/1/%s/%d/%s", part, id, kind)
}

type inner struct {
	Key  string `json:"key"`
	Data []byte `json:"data"`
}

// Join returns the stored form of data that was encoded with a key.
func Join(key string, data []byte) ([]byte, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	stored := make([]byte, 0, len(mark)+len(key)+base64.StdEncoding.EncodedLen(len(data))+32)
	stored = append(stored, `{"`+mark+`":{"key":"`...)
	stored = append(append(stored, key...), `","data":"`...)
	stored = base64.StdEncoding.AppendEncode(stored, data)
	return append(stored, `"}}`...), nil
}

// CheckKey checks the id of a key. It is stored in JSON as it is, without escapes.
func CheckKey(key string) error {
	const others = "._:/@+=-"
	valid := len(key) > 0 && len(key) <= maxKey
	for _, r := range key {
		valid = valid && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(others, r))
	}
	if !valid {
		return fmt.Errorf("the id of a key has 1 to %d letters, digits or %s, got %q", maxKey, others, key)
	}
	return nil
}

// Is reports whether a text has the stored form, as far as its beginning shows. PostgreSQL returns args as they are written here, apart from
// spaces and the order of keys.
func Is[T ~string | ~[]byte](text T) bool {
	const begin = `{"` + mark + `":`
	return len(text) >= len(begin) && string(text[:len(begin)]) == begin
}

// Split returns the key and the data of a stored form, and what follows it: the server may add a remark to an error.
func Split(stored []byte) (key string, data, rest []byte, err error) {
	var outer map[string]inner
	d := json.NewDecoder(bytes.NewReader(stored))
	d.DisallowUnknownFields()
	if err := d.Decode(&outer); err != nil {
		return "", nil, nil, fmt.Errorf("it is not stored as encrypted data is: %w", err)
	}
	in, ok := outer[mark]
	if !ok || len(outer) != 1 || in.Key == "" {
		return "", nil, nil, errors.New("it is not stored as encrypted data is: it must be an object with the only key " + strconv.Quote(mark) + ", which holds key and data")
	}
	return in.Key, in.Data, stored[d.InputOffset():], nil
}
