package relay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/pgtest"
)

// killEachSideOfWebhooks kills a relay, the hub that pushes, the endpoint, and PostgreSQL. The endpoint may get a message again, but then with the same webhook-id: so one that goes by it does the work of each message once.
func killEachSideOfWebhooks(t *testing.T) {
	pg := pgtest.Installed(t, nil)
	pool := pgtest.Pool(t, pg.URL("postgres"))
	if _, err := pool.Exec(t.Context(), `SELECT weir.set('hooks', 'backoff', '50 milliseconds')`); err != nil {
		t.Fatal(err)
	}
	dir, address, secret := t.TempDir(), pgtest.Address(t), newSecret()
	got := &deliveries{file: filepath.Join(dir, "got"), first: map[string]delivery{}}
	push := filepath.Join(dir, "push.toml")
	if err := os.WriteFile(push, fmt.Appendf(nil, "[endpoint.shop]\nurl = \"http://%s\"\nqueues = { hooks = 16 }\nsecrets = [%q]\n", address, secret), 0o600); err != nil {
		t.Fatal(err)
	}
	webhooks := &end{"webhooks", messagesTo("hooks") + fmt.Sprintf("database = { url = %q, kind = \"order\" }", pg.URL("postgres")), func() int { return len(got.read(t)) }, func(n int) []string {
		arrive(t, n, "at the endpoint", func() int { return len(got.read(t)) })
		allCompleted(t, pool, "hooks") // so none is sent again from here on
		return got.read(t)
	}}
	published := publishing(t, publisher(t, pool, `weir.publish('orders', it::text)`))
	endpoint := killable(t, "endpoint", address, got.file, secret)
	hub := killable(t, "hub", pg.URL("postgres"), push)
	relays := twoRelays(t, pg.URL("postgres"), []*end{webhooks})

	killed := map[string]int{}
	for n := range *kills {
		progress(t, []*end{webhooks})
		switch n % 4 {
		case 0:
			killed["PostgreSQL"]++
			killPostgres(t, pg)
		case 1:
			killed["relays"]++
			relays[n/4%2].replace(t)
		case 2:
			killed["the hub"]++
			hub.replace(t)
		case 3:
			killed["the endpoint"]++
			endpoint.replace(t)
		}
	}
	progress(t, []*end{webhooks})
	made := published()
	t.Logf("killed: %v", killed)
	webhooks.has(t, made, false)
	t.Logf("%d requests, of which %d were repeats", len(got.first)+got.repeats, got.repeats)
}

// delivery is a request that the endpoint got.
type delivery struct {
	ID       string `json:"id"` // webhook-id
	N        int    `json:"n"`
	Position string `json:"position"`
	Signed   bool   `json:"signed"`
}

// deliveries are what the endpoint has stored, one in a line.
type deliveries struct {
	file    string
	offset  int64               // up to which it was read
	first   map[string]delivery // by id
	lines   []string            // of these, as they came
	repeats int
}

// read returns a line for each webhook-id: the first of it.
func (d *deliveries) read(t *testing.T) []string {
	t.Helper()
	f, err := os.Open(d.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	more, err := io.ReadAll(io.NewSectionReader(f, d.offset, 1<<62))
	if err != nil {
		t.Fatal(err)
	}
	more = wholeLines(more)
	d.offset += int64(len(more))
	for line := range bytes.Lines(more) {
		var one delivery
		if err := json.Unmarshal(line, &one); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		first, again := d.first[one.ID]
		switch {
		case one.ID == "" || one.Position == "" || !one.Signed:
			t.Errorf("a request without id, position or signature: %s", line)
		case !again:
			d.first[one.ID] = one
			d.lines = append(d.lines, string(line))
		case one != first:
			t.Errorf("%+v came again as %+v", first, one)
		default:
			d.repeats++
		}
	}
	return d.lines
}

// wholeLines returns text up to its last line feed.
func wholeLines(text []byte) []byte { return text[:bytes.LastIndexByte(text, '\n')+1] }

// asEndpoint stores each request in a file before it answers, until the process is killed.
func asEndpoint(address, file, secret string) error {
	verifier, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if err := f.Truncate(int64(len(wholeLines(text)))); err != nil { // the process was killed while it wrote, and before it answered
		return err
	}
	return http.ListenAndServe(address, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the hub was killed
		}
		var h webhook
		if err := json.Unmarshal(body, &h); err != nil {
			fail(err)
		}
		line, err := json.Marshal(delivery{r.Header.Get(standardwebhooks.HeaderWebhookID), h.Args.Payload.N, h.Args.Position, verifier.Verify(body, r.Header) == nil})
		if err != nil {
			fail(err)
		}
		if _, err := f.Write(append(line, '\n')); err != nil {
			fail(err)
		}
		<-time.After(5 * time.Millisecond) // so that many a kill finds requests that are stored and not yet answered
	}))
}

// asHub pushes jobs to the endpoints of a file, until the process is killed.
func asHub(database, file string) error {
	hub, err := server.Start(context.Background(), server.Config{
		Database: database, Name: "hub", ListenHTTP: "127.0.0.1:0", Jobs: true, PushFile: file, JobsLease: 3 * time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	return <-hub.Failed()
}
