package jobs

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/weir-pg/weir/cmd/internal/web"
)

const maxKey = 255 // characters

// requestKey returns the key of a request, as a uuid; "": it has none. Each user's keys are their own: those of the same subject, whatever the token, or else
// those with the same token, or without any.
func requestKey(h http.Header, c web.Caller, g web.Grant) (string, error) {
	values := h.Values("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	name, ok := unquote(values[0])
	if len(values) > 1 || !ok || name == "" || len(name) > maxKey {
		return "", web.Fail(http.StatusBadRequest, "bad_request", "the Idempotency-Key is not valid",
			"send one, of 1 to 255 printable characters without blanks, such as a UUID; in quotation marks or not")
	}
	whose := []string{"subject", g.User}
	switch {
	case g.User == "" && c.Token == "":
		whose = []string{"anonymous"}
	case g.User == "":
		whose = []string{"token", c.Token}
	}
	hash := sha256.New()
	for _, part := range append(whose, name) {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		hash.Write([]byte(part))
	}
	return hex.EncodeToString(hash.Sum(nil)[:16]), nil
}

// unquote returns the text of a key: a string of RFC 9651, as the draft of the header wants it, or the bare text that many clients send.
func unquote(s string) (string, bool) {
	s = strings.TrimSpace(s)
	inner, quoted := strings.CutPrefix(s, `"`)
	var b strings.Builder
	for i := 0; i < len(inner); i++ {
		c := inner[i]
		switch {
		case quoted && c == '"':
			return b.String(), i == len(inner)-1
		case quoted && c == '\\':
			if i++; i == len(inner) || inner[i] != '"' && inner[i] != '\\' {
				return "", false
			}
			c = inner[i]
		case c <= ' ' || c > '~':
			return "", false
		}
		b.WriteByte(c)
	}
	return b.String(), !quoted
}
