package presence

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// frame is what hubs tell each other.
type frame struct {
	Hub   string         `json:"hub"`             // this life of it
	Seq   int64          `json:"seq"`             // of the last frame with changes
	N     int64          `json:"n"`               // of this frame
	At    string         `json:"at"`              // the hub's position in the log when it made the frame
	Hello bool           `json:"hello,omitempty"` // the others are to announce all of their members
	Beat  bool           `json:"beat,omitempty"`  // nothing has changed since Seq
	Reset bool           `json:"reset,omitempty"` // all of the hub's members follow, in this frame and those up to Done
	Done  bool           `json:"done,omitempty"`
	Users []entry        `json:"users,omitempty"` // who joined and left, in this order
	More  map[string]int `json:"more,omitempty"`  // members of channels that are counted, and not listed
}

// entry is a user who joins or leaves a channel.
type entry struct {
	Channel string          `json:"c"`
	User    string          `json:"u"`
	Info    json.RawMessage `json:"i,omitempty"`
	Left    bool            `json:"l,omitempty"`
}

const macBytes = 16

// sign returns the payload of a message.
func sign(f frame, secret []byte) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // see size
	if err := e.Encode(f); err != nil {
		return nil, err
	}
	text := bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
	return append([]byte(hex.EncodeToString(mac(text, secret))), text...), nil
}

// frameBytes bounds the entries of a frame: with the rest, its payload has fewer bytes than the setting message_bytes can forbid, which are 8000.
const frameBytes = 7000

// size returns at least the number of bytes of an entry in a frame. It is less than frameBytes, as names and infos are bounded.
func (e entry) size() int {
	n := len(e.Info) + 40
	for _, text := range []string{e.Channel, e.User} {
		for i := range len(text) {
			switch c := text[i]; {
			case c < ' ':
				n += 6
			case c == '"', c == '\\', c > '~':
				n += 2
			default:
				n++
			}
		}
	}
	return n
}

func mac(text, secret []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("weir presence "))
	h.Write(text)
	return h.Sum(nil)[:macBytes]
}

// verify returns the frame in a payload that a hub has signed.
func verify(payload, secret []byte) (f frame, ok bool) {
	if len(payload) < 2*macBytes {
		return f, false
	}
	signed, err := hex.DecodeString(string(payload[:2*macBytes]))
	text := payload[2*macBytes:]
	if err != nil || !hmac.Equal(signed, mac(text, secret)) || json.Unmarshal(text, &f) != nil {
		return f, false
	}
	return f, f.Hub != ""
}
