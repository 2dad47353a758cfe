package relay

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/natstest"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTheExampleIsValid: the file that the command prints.
func TestTheExampleIsValid(t *testing.T) {
	t.Parallel()
	plans, err := read(write(t, Example))
	if err != nil || len(plans) != 10 {
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

// TestNATSsSettingsAreCheckedBeforeItConnects: and a password is in no error.
func TestNATSsSettingsAreCheckedBeforeItConnects(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]natsFile{
		"url is empty": {},
		"url: the environment has no WEIR_NO_SUCH":  {URL: "env:WEIR_NO_SUCH"},
		"url is not valid: write it as nats://user": {URL: "nats://weir:sec ret@127.0.0.1:4222"},
		"credentials: open no-such-file: no such":   {URL: "nats://127.0.0.1:4222", Credentials: "no-such-file"},
		"error loading or parsing rootCA file":      {URL: "nats://127.0.0.1:4222", TLSCA: "no-such-file"},
	} {
		if _, err := f.dial("r", slog.Default()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sec") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestANATSThatIsNotThereIsNamed: with why nobody connects, rather than with what fills up meanwhile.
func TestANATSThatIsNotThereIsNamed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	l.Close()
	locked := natstest.Start(t, &server.Options{Username: "weir", Password: "secret"}).Addr().String()
	plain := natstest.Start(t, nil).Addr().String()
	text := ""
	for name, url := range map[string]string{"dead": dead, "locked": "weir:wrong@" + locked, "plain": plain} {
		text += strings.ReplaceAll("[relay.NAME]\nroute = [{ channels = \"c\" }]\n[relay.NAME.nats]\nurl = \"nats://"+url+"\"\nstream = \"S\"\n", "NAME", name)
	}
	var log pgtest.Log
	relays, err := Open(t.Context(), Config{Path: write(t, text), Log: log.Logger(), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	defer relays.Close()
	ctx, stop := context.WithCancel(t.Context())
	pool, done := pgtest.Pool(t, pgtest.Database(t)), make(chan error, 1)
	go func() { done <- relays.Run(ctx, pool) }()
	pgtest.Until(t, "the log says what is wrong", func() bool {
		return log.Count("stream S: not connected to NATS") >= 2 && log.Count("connection refused") > 0 && log.Count("Authorization Violation") > 0 && log.Count("JetStream is not enabled there") > 0
	})
	stop()
	if err := <-done; err != nil || log.Count("buffer") > 0 || log.Count("wrong@") > 0 {
		t.Errorf("%v, %s", err, log.String())
	}
}

// TestAFileThatIsWrongIsRefused: with what is wrong, and what to do.
func TestAFileThatIsWrongIsRefused(t *testing.T) {
	t.Parallel()
	const nats = "\n[relay.a.nats]\nurl = \"nats://127.0.0.1\"\nstream = \"S\"\n"
	for text, want := range map[string]string{
		"":                           "it has 0 relays: write 1 to 100, each under [relay.NAME]",
		"[relay.a]\nrout = 1" + nats: "unknown settings: relay.a.rout (line 2)",
		"[relay.a]" + nats:           "it has no routes: name channels",
		"[relay.a]\nroute = [{ channels = \"c\" }]":                                                                                  "it has 0 targets and 0 sources",
		"[relay.a]\nroute = [{ channels = \"c\" }]\n[relay.a.redis]\nurl = \"redis://x\"" + nats:                                     "it has 2 targets and 0 sources",
		"[relay.a]\nroute = [{ channels = \"c\", queue = \"q\" }]" + nats:                                                            "a route of jobs names a queue, and no channels",
		"[relay.a]\nsince = \"yesterday\"\nroute = [{ channels = \"c\" }]" + nats:                                                    `since = "yesterday": write "now", "oldest"`,
		"[relay.a]\nsince = \"now\"\nroute = [{ queue = \"q\" }]" + nats:                                                             "since and dead_letters are for messages",
		"[relay.a]\nroute = [{ queue = \"q.>.x\" }]" + nats:                                                                          `queue: pattern "q.>.x": > may only be its last word`,
		"[relay.a]\nroute = [{ channels = \"c\", subject = \"{queue}\" }]" + nats:                                                    "{queue} is not one of {channel}, {position} and {payload.FIELD}",
		"[relay.a]\nqueue = \"q\"\n[relay.a.from_nats]\nurl = \"nats://x\"\nstream = \"S\"":                                          `FromConfig.Queue and Kind must be set, got "q" and ""`,
		"[relay.a]\nqueue = \"q\"\nkind = \"k\"\nsince = \"2h\"\n[relay.a.from_redis]\nurl = \"x\"\nstream = \"S\"":                  `since = "2h": with from_nats, from_redis or from_kafka, write "now" or "oldest"`,
		"[relay.a]\nroute = [{ channels = \"c\" }]\n[relay.a.redis]\nurl = \"x\"\nform = \"sidekiq\"":                                `with form = "sidekiq" a route of messages names the class of the jobs`,
		"[relay.a]\nroute = [{ channels = \"c\", headers = { priority = \"1\" } }]\n[relay.a.redis]\nurl = \"x\"\nform = \"bullmq\"": `with form = "bullmq" a route has the headers name and attempts, and no "priority"`,
		"[relay.\"a b\"]\nroute = [{ channels = \"c\" }]":                                                                            "its name must have 1 to 100 letters",
	} {
		if _, err := read(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot %v, want %q", text, err, want)
		}
	}
}
