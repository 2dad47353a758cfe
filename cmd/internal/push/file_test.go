package push_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/push"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAWrongFileIsRefusedAndSaysWhy: a hub does not start with it, and no secret is shown.
func TestAWrongFileIsRefusedAndSaysWhy(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	secret := newSecret()
	good := "url = \"https://e.example/jobs\"\nqueues = {q = 1}\nsecrets = [\"" + secret + "\"]\n"
	for _, try := range []struct{ text, says string }{
		{"x", "line 1"},
		{"colour = 1", "unknown settings: colour"},
		{"[endpoint.e]\n" + good + "colour = 1", "unknown settings: endpoint.e.colour"},
		{"callback_url = \"ftp://x\"", "callback_url"},
		{"[endpoint.\"a b\"]\n" + good, "its name must have"},
		{"[endpoint.e]\n" + strings.Replace(good, "https:", "file:", 1), "use an http or https URL"},
		{"[endpoint.e]\n" + strings.Replace(good, "e.example", "user:geheim@e.example", 1), "it contains a password"},
		{"[endpoint.e]\n" + strings.Replace(good, "{q = 1}", "{}", 1), "it has no queues"},
		{"[endpoint.e]\n" + strings.Replace(good, "{q = 1}", "{q = 0}", 1), "give it at least 1"},
		{"[endpoint.e]\n" + strings.Replace(good, "{q = 1}", "{\"q \" = 1}", 1), "is no name of a queue"},
		{"[endpoint.e]\n" + strings.Replace(good, "{q = 1}", "{q = 400, r = 400}", 1), "at most 500"},
		{"[endpoint.e]\n" + strings.Replace(good, "{q = 1}", "{\"q.*\" = 1}", 1), "is a pattern, and not the name of a queue"},
		{"[endpoint.e]\n" + good + "kinds = [\"a\", \"*\"]", "kinds has a pattern"},
		{"[endpoint.e]\n" + good + "kinds = []", "kinds is empty"},
		{"[endpoint.e]\n" + strings.Replace(good, `"`+secret+`"`, "", 1), "0 secrets"},
		{"[endpoint.e]\n" + strings.Replace(good, secret, "geheim", 1), "one is not valid: it must begin with whsec_"},
		{"[endpoint.e]\n" + strings.Replace(good, secret, "whsec_AAAA", 1), "it has 3 bytes"},
		{"[endpoint.e]\n" + strings.Replace(good, secret, "whsec_geheim!", 1), "not base64"},
		{"[endpoint.e]\n" + strings.Replace(good, secret, "env:WEIR_NO_SUCH_VARIABLE", 1), "the environment has no WEIR_NO_SUCH_VARIABLE"},
		{"[endpoint.e]\n" + strings.Replace(good, secret, "file:/no/such/file", 1), "no such file"},
		{"[endpoint.e]\n" + good + "headers = {\"webhook-id\" = \"x\"}", "header webhook-id"},
		{"[endpoint.e]\n" + good + "headers = {x = \"a\\r\\nb\"}", "header x"},
		{"[endpoint.e]\n" + good + "timeout = \"0.5s\"", "timeout must be 1s to"},
		{"[endpoint.e]\n" + good + "timeout = 30", "not a valid duration"},
		{"[endpoint.e]\n" + good + "timeout = \"long\"", "not a valid duration"},
		{"[endpoint.e]\n" + good + "accepted_timeout = \"169h\"", "accepted_timeout must be"},
		{"# " + strings.Repeat("x", 1<<20), "longer than"},
	} {
		path := filepath.Join(t.TempDir(), "push.toml")
		if err := os.WriteFile(path, []byte(try.text), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), generous)
		s, err := server.Start(ctx, server.Config{Database: database, Name: "x", ListenHTTP: "127.0.0.1:0", Jobs: true, PushFile: path, Logger: slog.New(slog.DiscardHandler)})
		cancel()
		if err == nil {
			_ = s.Stop(t.Context())
			t.Errorf("%.200s: it is accepted", try.text)
		} else if !strings.Contains(err.Error(), try.says) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%.200s: %v, want %s", try.text, err, try.says)
		}
	}
}

// TestTheGuideShowsTheFile: docs/push.md contains the example, which can be read.
func TestTheGuideShowsTheFile(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../../docs/push.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(guide), push.Example) {
		t.Error("docs/push.md lacks the example")
	}
	dir := t.TempDir()
	old, path := filepath.Join(dir, "old"), filepath.Join(dir, "push.toml")
	text := strings.NewReplacer("/run/secrets/mailer-old", old, "env:MAILER_SECRET", newSecret(), "env:MAILER_AUTHORIZATION", "env:PATH").Replace(push.Example)
	for name, text := range map[string]string{old: newSecret(), path: text} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), generous)
	defer cancel()
	s, err := server.Start(ctx, server.Config{Database: pgtest.Database(t), Name: "x", ListenHTTP: "127.0.0.1:0", Jobs: true, PushFile: path, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Error(err)
	}
}
