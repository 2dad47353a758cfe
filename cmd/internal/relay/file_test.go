package relay

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheExampleIsValid: the file that the command prints.
func TestTheExampleIsValid(t *testing.T) {
	t.Parallel()
	plans, err := read(write(t, Example))
	if err != nil || len(plans) != 7 {
		t.Fatalf("%d relays, %v", len(plans), err)
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestKafkasSettingsAreCheckedBeforeItConnects: what is missing, and what there is no such of.
func TestKafkasSettingsAreCheckedBeforeItConnects(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]kafkaFile{
		"brokers is empty": {},
		"password: the environment has no WEIR_NO_SUCH":   {Brokers: "x", Password: "env:WEIR_NO_SUCH"},
		"sasl, user and password belong together":         {Brokers: "x", User: "weir", Password: "secret"},
		`sasl = "gssapi": write "plain", "scram-sha-256"`: {Brokers: "x", SASL: "gssapi", User: "weir", Password: "secret"},
		"tls_ca: open no-such-file: no such file":         {Brokers: "x", TLSCA: "no-such-file"},
		"tls_ca: file_test.go has no certificate in PEM":  {Brokers: "x", TLSCA: "file_test.go"},
	} {
		if _, err := f.options("r"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestAFileThatIsWrongIsRefused: with what is wrong, and what to do.
func TestAFileThatIsWrongIsRefused(t *testing.T) {
	t.Parallel()
	const nats = "\n[relay.a.nats]\nurl = \"nats://127.0.0.1\"\nstream = \"S\"\n"
	for text, want := range map[string]string{
		"":                           "it has 0 relays: write 1 to 100, each under [relay.NAME]",
		"[relay.a]\nrout = 1" + nats: "unknown settings: relay.a.rout",
		"[relay.a]" + nats:           "it has no routes: name channels",
		"[relay.a]\nroute = [{ channels = \"c\" }]":                                                                 "it has 0 targets and 0 sources",
		"[relay.a]\nroute = [{ channels = \"c\" }]\n[relay.a.redis]\nurl = \"redis://x\"" + nats:                    "it has 2 targets and 0 sources",
		"[relay.a]\nroute = [{ channels = \"c\", queue = \"q\" }]" + nats:                                           "a route of jobs names a queue, and no channels",
		"[relay.a]\nsince = \"yesterday\"\nroute = [{ channels = \"c\" }]" + nats:                                   `since = "yesterday": write "now", "oldest"`,
		"[relay.a]\nsince = \"now\"\nroute = [{ queue = \"q\" }]" + nats:                                            "since and dead_letters are for messages",
		"[relay.a]\nroute = [{ channels = \"c\", subject = \"{queue}\" }]" + nats:                                   "{queue is not one of {channel}, {position} and {payload.FIELD}",
		"[relay.a]\nqueue = \"q\"\n[relay.a.from_nats]\nurl = \"nats://x\"\nstream = \"S\"":                         `FromConfig.Queue and Kind must be set, got "q" and ""`,
		"[relay.a]\nqueue = \"q\"\nkind = \"k\"\nsince = \"2h\"\n[relay.a.from_redis]\nurl = \"x\"\nstream = \"S\"": `since = "2h": with from_nats or from_redis, write "now" or "oldest"`,
		"[relay.\"a b\"]\nroute = [{ channels = \"c\" }]":                                                           "its name must have 1 to 100 letters",
	} {
		if _, err := read(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot %v, want %q", text, err, want)
		}
	}
}
