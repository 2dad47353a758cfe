package weirui

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// redacted is indented JSON without the values of secret fields.
func (u *UI) redacted(text json.RawMessage) string {
	if len(text) == 0 {
		return ""
	}
	hidden := u.redact(text)
	var b bytes.Buffer
	if json.Indent(&b, hidden, "", "  ") != nil {
		return string(hidden)
	}
	return b.String()
}

// redact replaces the values of secret fields. What it returns is written anew, so that nothing is in it that was not looked at, such as the
// first of two fields of the same name.
func (u *UI) redact(text json.RawMessage) json.RawMessage {
	if len(text) == 0 {
		return text
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() { // no JSON, or several values
		return json.RawMessage(u.hideIn(string(text)))
	}
	v, _ = u.hide(v)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return json.RawMessage(`"` + hidden + `"`)
	}
	return bytes.TrimSpace(b.Bytes())
}

// hide returns a value without those of secret fields, and reports whether there were any. It changes maps and slices in place.
func (u *UI) hide(v any) (shown any, found bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if u.secret[plainName(name)] {
				v[name] = hidden
				found = true
			} else if now, any := u.hide(value); any {
				v[name] = now
				found = true
			}
		}
	case []any:
		for i, value := range v {
			if now, any := u.hide(value); any {
				v[i] = now
				found = true
			}
		}
	case string: // JSON in a text
		if now := u.hideIn(v); now != v {
			return now, true
		}
	}
	return v, found
}

// hidden stands for the value of a secret field.
const hidden = "[redacted]"

// hideIn replaces what looks like the value of a secret field in a text that is not JSON as a whole.
func (u *UI) hideIn(text string) string {
	return inText.ReplaceAllStringFunc(text, func(pair string) string {
		m := inText.FindStringSubmatch(pair)
		if !u.secret[plainName(m[2])] {
			return pair
		}
		return m[1] + `"` + hidden + `"`
	})
}

// inText matches a name in quotes with its value: a text, a number, or what stands in brackets or braces up to the first that closes.
var inText = regexp.MustCompile(`("((?:[^"\\]|\\.){1,100})"\s*:\s*)("(?:[^"\\]|\\.)*"?|\[[^\]]*\]?|\{[^}]*\}?|[^\s,}\]"]+)`)

// plainName is a field's name without what people write in different ways.
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(name))
}
