package web

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestErrorsSpeakOfJSONAndNotOfGo(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"type":`:                             "it is not JSON, as its byte 8 shows",
		`hello`:                                "it is not JSON, as its byte 1 shows",
		`{"type":"subscribe","channels":5}`:    "a list was expected",
		`{"type":"publish","payload":{"a":1}}`: `"payload" can't be JSON's object`,
		`[1]`:                                  "it can't be JSON's array",
		`"subscribe"`:                          "it can't be JSON's string",
	} {
		var r request
		err := json.Unmarshal([]byte(body), &r)
		if err == nil {
			t.Errorf("%s was read", body)
			continue
		}
		got := unreadable(err)
		if got != want || strings.Contains(got, "Go ") {
			t.Errorf("%s: %s, want %s (%v)", body, got, want, err)
		}
	}
}
