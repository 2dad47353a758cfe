package ui

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const patience = time.Minute

// launch starts a hub process with a UI.
func launch(t *testing.T, s server.Config, c Config) (*server.Server, error) {
	t.Helper()
	c.Database = s.Database
	if c.Logger = s.Logger; c.Logger == nil {
		var log pgtest.Log
		c.Logger = log.Logger()
		s.Logger = c.Logger
	}
	var err error
	if s.UI, err = New(c); err != nil {
		t.Fatal(err)
	}
	s.Name, s.ListenHTTP = t.Name(), "127.0.0.1:0"
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	started, err := server.Start(ctx, s)
	if err == nil {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := started.Stop(ctx); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
	}
	return started, err
}

func start(t *testing.T, s server.Config, c Config) *server.Server {
	t.Helper()
	started, err := launch(t, s, c)
	if err != nil {
		t.Fatal(err)
	}
	return started
}

// as returns the database's URL for a new user with a role.
func as(t *testing.T, database, role string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	user := "weir_client_" + strings.ToLower(rand.Text())
	if _, err := conn.Exec(t.Context(), fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'secret' IN ROLE %s`, user, role)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if conn, err := pgx.Connect(context.Background(), database); err == nil {
			_, _ = conn.Exec(context.Background(), `DROP ROLE `+user)
			_ = conn.Close(context.Background())
		}
	})
	u.User = url.UserPassword(user, "secret")
	return u.String()
}

// ask sends a request, and returns the answer with its text.
func ask(t *testing.T, method, at string, header ...string) (*http.Response, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			q.Host = header[i+1]
		}
		q.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(text)
}

// TestTheHubServesTheUI: below /ui/, or at an address of its own and there alone.
func TestTheHubServesTheUI(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	below := start(t, server.Config{Database: database, Web: web.Config{Anonymous: true}}, Config{Open: weirui.Viewer})
	hub := "http://" + below.HTTPAddr().String()
	if below.UIURL() != hub+"/ui/" {
		t.Errorf("the UI is at %s", below.UIURL())
	}
	if answer, text := ask(t, "GET", hub+"/ui/queues"); answer.StatusCode != http.StatusOK || !strings.Contains(text, "viewer") {
		t.Errorf("%s: %s", answer.Status, text)
	}
	if answer, _ := ask(t, "GET", hub+"/ui"); answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != "ui/" {
		t.Errorf("/ui leads to %q", answer.Header.Get("Location"))
	}
	if answer, _ := ask(t, "GET", hub+"/ui/static/weir.css"); answer.StatusCode != http.StatusOK {
		t.Errorf("the style sheet: %s", answer.Status)
	}
	apart := start(t, server.Config{Database: database, Web: web.Config{Anonymous: true}}, Config{Open: weirui.Viewer, Listen: "127.0.0.1:0"})
	if answer, _ := ask(t, "GET", apart.UIURL()+"queues"); answer.StatusCode != http.StatusOK {
		t.Errorf("at an address of its own: %s", answer.Status)
	}
	if answer, _ := ask(t, "GET", "http://"+apart.HTTPAddr().String()+"/ui/queues"); answer.StatusCode != http.StatusNotFound {
		t.Errorf("the UI is at the hub's address, too: %s", answer.Status)
	}
	browser := httptest.NewTLSServer(nil) // for its certificate, which the client trusts
	defer browser.Close()
	key, err := x509.MarshalPKCS8PrivateKey(browser.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: browser.TLS.Certificates[0].Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key}}
	dir := t.TempDir()
	for name, block := range files {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	encrypted := start(t, server.Config{Database: database, TLSCert: filepath.Join(dir, "cert.pem"), TLSKey: filepath.Join(dir, "key.pem")}, Config{Open: weirui.Viewer, Listen: "127.0.0.1:0"})
	if answer, err := browser.Client().Get(encrypted.UIURL() + "queues"); err != nil || answer.StatusCode != http.StatusOK || answer.TLS == nil {
		t.Errorf("over TLS at %s: %v, %v", encrypted.UIURL(), answer, err)
	}
	for _, address := range []string{"0.0.0.0:0", "[::]:0"} {
		_, err := launch(t, server.Config{Database: database, Web: web.Config{Anonymous: true}}, Config{Open: weirui.Viewer, Listen: address})
		if err == nil || !strings.Contains(err.Error(), "lets everybody in") {
			t.Errorf("an open UI is served at %s: %v", address, err)
		}
	}
}

// TestTheHubsRulesDontOpenTheUI: pages that may use the hub can't read the UI or act in it, and what reaches the hub under a foreign name doesn't reach an open UI.
func TestTheHubsRulesDontOpenTheUI(t *testing.T) {
	t.Parallel()
	s := start(t, server.Config{Database: pgtest.Database(t), Web: web.Config{Anonymous: true, Origins: []string{"*"}, Hosts: []string{"*"}}}, Config{Open: weirui.Admin})
	hub := "http://" + s.HTTPAddr().String()
	const page = "https://evil.example"
	if answer, _ := ask(t, "POST", hub+"/v1/publish", "Origin", page); answer.Header.Get("Access-Control-Allow-Origin") != page {
		t.Fatal("the page may not use the hub, so this test proves nothing")
	}
	for _, method := range []string{"GET", "OPTIONS", "POST"} {
		answer, _ := ask(t, method, hub+"/ui/queues", "Origin", page, "Access-Control-Request-Method", "POST")
		for name := range answer.Header {
			if strings.HasPrefix(name, "Access-Control") {
				t.Errorf("%s is answered with %s", method, name)
			}
		}
	}
	if answer, _ := ask(t, "POST", hub+"/ui/queues/mail/pause", "Origin", page); answer.StatusCode != http.StatusForbidden {
		t.Errorf("another site pauses a queue: %s", answer.Status)
	}
	if answer, _ := ask(t, "GET", hub+"/ui/queues", "Host", "evil.example"); answer.StatusCode != http.StatusForbidden {
		t.Errorf("under a foreign name: %s", answer.Status)
	}
	for _, name := range []string{"localhost:8080", "127.0.0.1", "[::1]:8080"} {
		if answer, _ := ask(t, "GET", hub+"/ui/queues", "Host", name); answer.StatusCode != http.StatusOK {
			t.Errorf("as %s: %s", name, answer.Status)
		}
	}
}

// TestTheUINeedsARoleOfItsOwn: the hub's user is not enough, the error says what to grant, and the UI may have another user for the same database.
func TestTheUINeedsARoleOfItsOwn(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	hub := as(t, database, "weir_hub")
	user, err := url.Parse(hub)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(user.Path, "/")
	_, err = launch(t, server.Config{Database: hub}, Config{Open: weirui.Viewer})
	for _, want := range []string{"GRANT weir_operate TO " + user.User.Username(), "--ui-database " + name + "=URL"} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	second := pgtest.Database(t)
	_, err = launch(t, server.Config{Database: hub}, Config{Open: weirui.Viewer, Others: map[string]string{"second": as(t, second, "weir_hub")}})
	if err == nil || strings.Contains(err.Error(), "\n") || strings.Count(err.Error(), "; and the web UI may not read the database") != 1 {
		t.Errorf("that two databases may not be read is said as %v", err)
	}
	var log pgtest.Log
	other := pgtest.Database(t)
	s := start(t, server.Config{Database: hub, Logger: log.Logger()}, Config{Open: weirui.Viewer, Others: map[string]string{
		name: as(t, database, "weir_operate"), "other": as(t, other, "weir_operate"), "gone": "postgres://nobody@127.0.0.1:1/none",
	}})
	for path, want := range map[string]int{"db/" + name + "/queues": 200, "db/other/queues": 200, "db/none/queues": 404} {
		if answer, text := ask(t, "GET", s.UIURL()+path); answer.StatusCode != want {
			t.Errorf("%s: %s: %s", path, answer.Status, text)
		}
	}
	if answer, _ := ask(t, "GET", s.UIURL()+"db/gone/queues"); answer.StatusCode < 500 {
		t.Errorf("a database that can't be reached: %s", answer.Status)
	}
	if text := log.String(); !strings.Contains(text, "can't read a database yet") || !strings.Contains(text, "database=gone") {
		t.Errorf("the log is %s", text)
	}
}

// TestTheUISeesTheHub: its channels and its clients, which it can disconnect.
func TestTheUISeesTheHub(t *testing.T) {
	t.Parallel()
	s := start(t, server.Config{Database: pgtest.Database(t), Web: web.Config{Anonymous: true}}, Config{Open: weirui.Admin})
	for _, path := range []string{"", "ui", "ui/", "ui/static/none", "metrics", "healthz", "v1/ws", "v1/events", "v1/none"} {
		if answer, _ := ask(t, "GET", "http://"+s.HTTPAddr().String()+"/"+path); answer.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("a cache may keep /%s: %s, %q", path, answer.Status, answer.Header.Get("Cache-Control"))
		}
	}
	if _, text := ask(t, "GET", "http://"+s.HTTPAddr().String()+"/"); !strings.Contains(text, "the web UI is at /ui/") {
		t.Errorf("the hub's first page does not lead to its UI: %s", text)
	}
	q, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.HTTPAddr().String()+"/v1/events?channel=orders.*&channel=mail", nil)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	h := hub{s}
	pgtest.Until(t, "the channels have subscribers", func() bool {
		return slices.Equal(h.Channels("", 10), []weirui.Channel{{Name: "mail", Subscribers: 1}, {Name: "orders.*", Subscribers: 1}})
	})
	clients := h.Clients()
	if len(clients) != 1 || clients[0].Address != "127.0.0.1" || clients[0].Protocol == "" {
		t.Fatalf("the clients are %+v", clients)
	}
	if _, err := time.Parse(time.RFC3339, clients[0].Since); err != nil {
		t.Error(err)
	}
	if h.End("web-0") || h.End("nobody") || !h.End(clients[0].ID) {
		t.Error("another client is disconnected than is named")
	}
	if _, err := io.Copy(io.Discard, stream.Body); errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	pgtest.Until(t, "it is gone", func() bool { return len(h.Clients()) == 0 && len(h.Channels("", 10)) == 0 })
}

// TestTheUISeesTheDoctor: what it finds, with evidence and what to do, and what it can't examine.
func TestTheUISeesTheDoctor(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	if _, err := pgtest.Pool(t, database).Exec(t.Context(), `SELECT weir.enqueue('q', 'k') FROM generate_series(1, 1000)`); err != nil {
		t.Fatal(err)
	}
	s := start(t, server.Config{Database: as(t, database, "weir_hub, weir_operate"), Doctor: true}, Config{Open: weirui.Viewer})
	d := doctor{s}
	var found []weirui.Finding
	pgtest.Eventually(t, func() (err error) {
		found, err = d.Findings(t.Context())
		if err == nil && !slices.ContainsFunc(found, func(f weirui.Finding) bool { return f.Code == "lane-backlog" }) {
			err = errors.New("the backlog is not found")
		}
		return err
	})
	for _, f := range found {
		if f.Title == "" || f.Text == "" || f.Severity == "" || f.Code != "unchecked" && (len(f.Evidence) == 0 || len(f.Fix) == 0) {
			t.Errorf("a finding lacks something: %+v", f)
		}
	}
	if last := found[len(found)-1]; last.Code != "unchecked" || len(last.Evidence) == 0 {
		t.Errorf("it does not say what it can't examine: %+v", last)
	}
	if text, err := json.Marshal(found); err != nil || !strings.Contains(string(text), `"evidence"`) {
		t.Errorf("%s, %v", text, err)
	}
	without := start(t, server.Config{Database: database}, Config{Open: weirui.Viewer})
	if without.Examines() {
		t.Error("a hub without a doctor examines")
	}
}
