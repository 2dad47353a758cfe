package oidc

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the provider logs each request there
	os.Exit(pgtest.Run(m))
}

// people are the users of the provider, whose password is their name twice.
type people map[string]*storage.User

func (p people) GetUserByID(id string) *storage.User { return p[id] }
func (people) ExampleClientID() string               { return "service" }
func (p people) GetUserByUsername(name string) *storage.User {
	for _, u := range p {
		if u.Username == name {
			return u
		}
	}
	return nil
}

// provides is the storage of a provider with a claim of its own.
type provides struct {
	*storage.Storage
	groups map[string]any // by user's id
}

// SetUserinfoFromToken adds the claim to the answers of the userinfo endpoint.
func (p provides) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, token, subject, origin string) error {
	err := p.Storage.SetUserinfoFromToken(ctx, info, token, subject, origin)
	if groups := p.groups[subject]; groups != nil {
		info.AppendClaims("groups", groups)
	}
	return err
}

const secret = "not to be told to anybody"

// rig is a UI behind a proxy at a path, with an OpenID provider.
type rig struct {
	*testing.T
	config Config
	access *access
	log    *pgtest.Log
	url    string       // of the UI, as browsers reach it
	ahead  atomic.Int64 // of the clock, in ns
	down   atomic.Bool  // the provider
}

func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{T: t, log: &pgtest.Log{}}
	front := httptest.NewUnstartedServer(nil)
	r.url = "http://" + front.Listener.Addr().String() + "/ops/weir/"

	var provider http.Handler
	op := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if r.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		provider.ServeHTTP(w, q)
	}))
	t.Cleanup(op.Close)
	users := people{}
	for _, name := range []string{"ada", "grace", "eve"} {
		users[name+"-id"] = &storage.User{ID: name + "-id", Username: name, Password: name + name, Email: name + "@example.org", EmailVerified: name != "eve"}
	}
	clients := map[string]*storage.Client{"weir": storage.WebClient("weir", secret, r.url+"auth/callback"), "public": storage.NativeClient("public", r.url+"auth/callback")}
	provider = exampleop.SetupServer(op.URL, provides{storage.NewStorageWithClients(users, clients), map[string]any{"ada-id": []string{"staff", "ops"}, "grace-id": "staff", "eve-id": nil}}, nil, false)

	r.config = Config{Issuer: op.URL, ClientID: "weir", ClientSecret: secret, URL: r.url, Roles: weirui.Roles{"ops": weirui.Operator, "staff": weirui.Viewer}, Logger: r.log.Logger()}
	for _, f := range change {
		f(&r.config)
	}
	var err error
	if r.access, err = newAccess(r.config); err != nil {
		t.Fatal(err)
	}
	r.access.now = func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }
	ui, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: pgtest.Pool(t, pgtest.Database(t))}}, Access: r.access, Logger: r.config.Logger})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/ui/", http.StripPrefix("/ui", ui))
	behind := httptest.NewServer(mux)
	t.Cleanup(behind.Close)
	to, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	front.Config.Handler = &httputil.ReverseProxy{Rewrite: func(q *httputil.ProxyRequest) {
		q.Out.URL.Scheme, q.Out.URL.Host = to.Scheme, to.Host
		q.Out.URL.Path = strings.Replace(q.In.URL.Path, "/ops/weir", "/ui", 1)
		q.Out.URL.RawPath = strings.Replace(q.In.URL.RawPath, "/ops/weir", "/ui", 1)
	}}
	front.Start()
	t.Cleanup(front.Close)
	return r
}

// browser keeps cookies and follows redirections.
type browser struct {
	*rig
	client  http.Client
	answers []*http.Response // without their bodies, since the last call of visit or send
}

func (r *rig) browser() *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		r.Fatal(err)
	}
	b := &browser{rig: r}
	b.client = http.Client{Jar: jar, Transport: b, Timeout: time.Minute}
	return b
}

// RoundTrip implements http.RoundTripper.
func (b *browser) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Header.Get("Accept") == "" {
		q.Header.Set("Accept", "text/html,*/*")
	}
	answer, err := http.DefaultTransport.RoundTrip(q)
	if err == nil {
		b.answers = append(b.answers, answer)
	}
	return answer, err
}

// send sends a request, to the UI if its address is a path.
func (b *browser) send(method, to string, form url.Values, header ...string) (*http.Response, string) {
	b.Helper()
	if !strings.Contains(to, "://") {
		to = b.url + to
	}
	q, err := http.NewRequestWithContext(b.Context(), method, to, strings.NewReader(form.Encode()))
	if err != nil {
		b.Fatal(err)
	}
	if method == http.MethodPost {
		q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	b.answers = nil
	answer, err := b.client.Do(q)
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		b.Fatal(err)
	}
	return answer, string(text)
}

func (b *browser) visit(path string) (*http.Response, string) {
	b.Helper()
	return b.send(http.MethodGet, path, nil)
}

var loginID = regexp.MustCompile(`name="id" value="([^"]+)"`)

// login visits a page, logs in at the provider, and returns where that leads to.
func (b *browser) login(path, name string) (*http.Response, string) {
	b.Helper()
	answer, text := b.visit(path)
	id := loginID.FindStringSubmatch(text)
	if id == nil {
		b.Fatalf("%s leads to %s, not to the provider: %s", path, answer.Request.URL, text)
	}
	return b.send(http.MethodPost, b.config.Issuer+"/login/username", url.Values{"id": {id[1]}, "username": {name}, "password": {name + name}})
}

// stay makes the browser follow no redirections, or follow them again.
func (b *browser) stay(yes bool) {
	b.client.CheckRedirect = nil
	if yes {
		b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
}

// cookies are the names of the browser's cookies.
func (b *browser) cookies() (names []string) {
	at, err := url.Parse(b.url)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range b.client.Jar.Cookies(at) {
		names = append(names, c.Name)
	}
	return names
}

// someState is a state that no login has.
func someState() string { return rand.Text() }
