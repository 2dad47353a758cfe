package presence

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestMembersAreAnnouncedWhateverMessagesMayHave: with the smallest limit of a message's payload, and members of whom as much is known as may be.
func TestMembersAreAnnouncedWhateverMessagesMayHave(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	if _, err := pgtest.Pool(t, url).Exec(t.Context(), `SELECT weir.set('message_bytes', '8000')`); err != nil {
		t.Fatal(err)
	}
	a, b := start(t, url, "secret"), start(t, url, "secret")
	info, err := json.Marshal(strings.Repeat("ü", 511))
	if err != nil {
		t.Fatal(err)
	}
	channel := "room." + strings.Repeat("\x01", 250)
	const users = 100
	for i := range users {
		if !a.Enter(channel, fmt.Sprintf("%s%05d", strings.Repeat("<", 250), i), info) {
			t.Fatal("a name of 255 bytes is too long")
		}
	}
	if a.Enter(channel, strings.Repeat("n", 256), nil) {
		t.Error("a name of 256 bytes is none that can be announced")
	}
	for _, n := range []node{a, b} {
		pgtest.Until(t, "all members are known", func() bool { return n.List(channel, "", 0).Count == users })
	}
	for _, e := range []entry{
		{Channel: channel, User: strings.Repeat("\x02", maxUser), Info: info, Left: true}, {Channel: `"\/<>&` + "\u007f\u2028\u00e4😀", User: "\t\n\u0080", Info: json.RawMessage(`"<>&"`)}, {},
	} {
		text, err := sign(frame{Users: []entry{e}}, nil)
		without, err2 := sign(frame{Users: []entry{}}, nil)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if n := len(text) - len(without) - len(`,"users":[]`); n > e.size() || e.size() > frameBytes {
			t.Errorf("%+v has %d bytes; its size is %d", e, n, e.size())
		}
	}
}
