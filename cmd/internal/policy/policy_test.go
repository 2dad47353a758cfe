package policy

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
)

func parse(t *testing.T, text string) *Set {
	t.Helper()
	s, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTheFirstEntryThatMatchesDecides: alone, for a channel; for a pattern, every entry that decides on one of its channels has to allow it.
func TestTheFirstEntryThatMatchesDecides(t *testing.T) {
	t.Parallel()
	s := parse(t, `{"channels": [
		{"match": "inbox.{user}.>", "subscribe": "self", "publish": "nobody"},
		{"match": "news.internal", "subscribe": "nobody"},
		{"match": "news.*", "subscribe": "anyone", "payload_bytes": 10, "history": 5},
		{"match": "team.>", "subscribe": "user", "publish": "user", "history": 0, "presence": true},
		{"match": "open.>", "subscribe": "anyone", "publish": "anyone"}
	]}`)
	for _, c := range []struct {
		do     Action
		filter string
		user   string
		want   Verdict
	}{
		{Subscribe, "inbox.ada.new", "ada", Allow}, {Subscribe, "inbox.ada.>", "ada", Allow}, {Subscribe, "inbox.ada.*", "ada", Allow},
		{Subscribe, "inbox.ada.new", "bob", Refuse}, {Subscribe, "inbox.*.new", "ada", Refuse}, {Subscribe, "inbox.>", "ada", Refuse},
		{Subscribe, "inbox.ada.new", "", Refuse}, {Subscribe, "inbox.*.x", "*", Refuse}, {Subscribe, "inbox.a.b.c", "a.b", Refuse},
		{Publish, "inbox.ada.new", "ada", Refuse},
		{Subscribe, "news.internal", "ada", Refuse}, {Subscribe, "news.sport", "", Allow}, {Subscribe, "news.*", "", Refuse}, {Publish, "news.sport", "ada", Ask},
		{Subscribe, "team.a", "ada", Allow}, {Subscribe, "team.>", "ada", Allow}, {Publish, "team.a", "", Refuse},
		{Subscribe, "open.>", "", Allow}, {Subscribe, "open.a.b", "", Allow},
		{Subscribe, "other", "", Ask}, {Subscribe, "other.*", "", Ask}, {Subscribe, ">", "ada", Refuse}, {Subscribe, "*", "ada", Ask}, {Subscribe, "*.x", "", Refuse},
	} {
		f, err := hub.ParseFilter(c.filter)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Decide(c.do, f, c.user); got != c.want {
			t.Errorf("action %d on %s by %q: verdict %d, want %d", c.do, c.filter, c.user, got, c.want)
		}
	}
	if s.Payload("news.sport", 100) != 10 || s.Payload("team.a", 100) != 100 || s.Payload("other", 100) != 100 {
		t.Error("payload_bytes is not that of the entry that matches")
	}
	if s.HistoryOf(hub.Channel("news.sport"), 20) != 5 || s.HistoryOf(hub.Pattern("*.sport"), 20) != 0 || s.HistoryOf(hub.Channel("other"), 20) != 20 {
		t.Error("history is not the least of the entries that decide")
	}
	if !s.PresenceOf("team.a") || s.PresenceOf("news.a") || s.PresenceOf("other") {
		t.Error("presence is not that of the entry that matches")
	}
	var none *Set
	if none.Decide(Publish, hub.Channel("x"), "") != Ask || none.Payload("x", 7) != 7 || none.Publish("x", []string{"x"}) != nil {
		t.Error("no policies change something")
	}
}

// TestRatesAreOfAUserOnAnEntry: the channels of an entry share a rate, and each user has their own.
func TestRatesAreOfAUserOnAnEntry(t *testing.T) {
	t.Parallel()
	s := parse(t, `{"channels": [{"match": "chat.*", "publish_rate": 0.001, "publish_burst": 3}, {"match": "bulk", "publish_rate": 1}]}`)
	if err := s.Publish("ada", []string{"chat.1", "chat.2", "other", "other"}); err != nil {
		t.Fatal(err)
	}
	var exceeded *RateError
	if err := s.Publish("ada", []string{"chat.3", "chat.3"}); !errors.As(err, &exceeded) || exceeded.Match != "chat.*" || exceeded.After <= 0 || exceeded.Burst != 3 {
		t.Errorf("four messages at once: %v", err)
	}
	if err := s.Publish("ada", []string{"chat.3"}); err != nil {
		t.Errorf("a refused request has been counted: %v", err)
	}
	if err := s.Publish("bob", []string{"chat.1", "chat.1", "chat.1"}); err != nil {
		t.Errorf("another user: %v", err)
	}
	if err := s.Publish("eve", []string{"chat.1", "chat.1", "chat.2", "chat.3"}); !errors.As(err, &exceeded) || exceeded.After != 0 || exceeded.Burst != 3 || exceeded.Count != 4 {
		t.Errorf("more than a burst, which is never allowed: %+v", exceeded)
	}
}

// TestAMistakeInTheFileIsNamed: with its entry, its value, and what to write instead.
func TestAMistakeInTheFileIsNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"channels": [{"match": "a", "subscribe": "all"}]}`:                   `entry 1 ("a"): "all" may not subscribe or publish`,
		`{"channels": [{"match": "a.>.b"}]}`:                                   `> may only be its last word`,
		`{"channels": [{"match": "a", "subscribe": "self"}]}`:                  `needs one word {user}`,
		`{"channels": [{"match": "a", "publish_rate": 0}]}`:                    `publish_rate is 0`,
		`{"channels": [{"match": "a", "publish_burst": 5}]}`:                   `needs publish_rate`,
		`{"channels": [{"match": "a", "history": -1}]}`:                        `history is -1`,
		`{"channels": [{"match": "a", "subscribers": 0}]}`:                     `subscribers is 0`,
		`{"channels": [{"match": "a", "histroy": 1}]}`:                         `histroy`,
		`{"channels": [{"match": "a.>"}, {"match": "b"}, {"match": "a.b.*"}]}`: `entry 3 ("a.b.*") never applies, because "a.>" comes before it`,
		`{"channels": [{"match": "a.{user}"}, {"match": "a.*"}]}`:              `never applies`,
		`{}`:                   `no member "channels"`,
		`{"channels": []} []`:  `something follows`,
		`{"channels": [null]}`: `null`,
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// TestTheFileIsReadAgainWhenItChanges: and while it has a mistake, or is missing, what it contained before stays in force.
func TestTheFileIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "channels.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"channels": [{"match": "a", "history": 1}]}`)
	f, err := Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	history := func() int { return f.Set().HistoryOf(hub.Channel("a"), 100) }
	if history() != 1 || f.Version() != 0 {
		t.Fatalf("history %d, version %d", history(), f.Version())
	}
	write(`{"channels": [{"match": "a", "history": "many"}]}`)
	pgtest.Until(t, "the mistake has been found", func() bool {
		_ = f.Set()
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.failed != ""
	})
	if history() != 1 {
		t.Errorf("with a mistake in the file, the history is %d", history())
	}
	write(`{"channels": [{"match": "a", "history": 2}]}`)
	pgtest.Until(t, "the file has been read again", func() bool { return history() == 2 })
	if f.Version() != 1 {
		t.Errorf("version %d after one change", f.Version())
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), nil); err == nil {
		t.Error("a missing file is accepted at the start")
	}
}

// TestAnotherFileBeginsWithWhatIsInForce: also while the file has a mistake. Who has used up a rate in one has not in the other.
func TestAnotherFileBeginsWithWhatIsInForce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "channels.json")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"channels": [{"match": "news", "publish_rate": 0.001, "publish_burst": 1}]}`)
	log := slog.New(slog.DiscardHandler)
	f, err := Open(path, log)
	if err != nil {
		t.Fatal(err)
	}
	write(`half a`)
	for what, one := range map[string]*File{"the first": f, "another": f.Again(log)} {
		if err := one.Set().Publish("ada", []string{"news"}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		var exceeded *RateError
		if err := one.Set().Publish("ada", []string{"news"}); !errors.As(err, &exceeded) {
			t.Errorf("%s: a second message: %v", what, err)
		}
	}
	if none := (*File)(nil).Again(log); none != nil {
		t.Error("no file became one")
	}
}
