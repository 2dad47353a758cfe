package web

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestErrorsSpeakOfJSONAndNotOfGo(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"type":`:                             "it is not valid JSON at byte 8",
		`hello`:                                "it is not valid JSON at byte 1",
		`{"type":"subscribe","channels":5}`:    "expected a list",
		`{"type":"publish","payload":{"a":1}}`: `"payload" has the wrong JSON type: object`,
		`[1]`:                                  "it has the wrong JSON type: array",
		`"subscribe"`:                          "it has the wrong JSON type: string",
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
