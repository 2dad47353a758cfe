package oidc

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// TestAUserLogsInAndOut: whoever opens a page logs in at the provider, comes back to the page, and may log out again.
func TestAUserLogsInAndOut(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"weir", "public"} {
		r := newRig(t, func(c *Config) {
			if c.ClientID = client; client == "public" {
				c.ClientSecret = "" // PKCE alone
			}
		})
		b := r.browser()
		answer, text := b.login("jobs?state=failed&queue=a%2Fb", "ada")
		if answer.StatusCode != http.StatusOK || answer.Request.URL.String() != r.url+"jobs?state=failed&queue=a%2Fb" || !strings.Contains(text, "ada, operator") {
			t.Fatalf("%s: the login leads to %s, %s: %s", client, answer.Request.URL, answer.Status, text)
		}
		if got := b.cookies(); !slices.Equal(got, []string{sessionCookie}) {
			t.Errorf("%s: the cookies are %v", client, got)
		}
		if answer, _ := b.visit("queues"); answer.Request.URL.String() != r.url+"queues" {
			t.Errorf("%s: with a session, queues leads to %s", client, answer.Request.URL)
		}
		if answer, _ := b.send(http.MethodPost, "auth/logout", nil, "Sec-Fetch-Site", "cross-site"); answer.StatusCode != http.StatusForbidden || len(b.cookies()) != 1 {
			t.Errorf("%s: another site logs the user out: %s", client, answer.Status)
		}
		if !strings.Contains(text, `action="auth/logout"`) {
			t.Errorf("%s: there is no button to log out: %s", client, text)
		}
		answer, text = b.send(http.MethodPost, "auth/logout", nil)
		if answer.StatusCode != http.StatusOK || !strings.Contains(text, "You are logged out") || !strings.Contains(text, r.config.Issuer+"/end_session?client_id="+client) {
			t.Errorf("%s: logging out: %s: %s", client, answer.Status, text)
		}
		if got := b.cookies(); len(got) != 0 {
			t.Errorf("%s: after it the cookies are %v", client, got)
		}
		if answer, _ := b.visit("queues"); !strings.HasPrefix(answer.Request.URL.String(), r.config.Issuer) {
			t.Errorf("%s: after it, queues leads to %s", client, answer.Request.URL)
		}
		log := r.log.String()
		if !strings.Contains(log, "user=ada") || !strings.Contains(log, "subject=ada-id") || !strings.Contains(log, "role=operator") || !strings.Contains(log, "address=127.0.0.1") || strings.Contains(log, secret) {
			t.Errorf("%s: the log is %s", client, log)
		}
	}
}

// TestCookiesAreForThisUIAlone: no script reads them, no other site sends them, no other path or, over https, no unencrypted connection gets them.
func TestCookiesAreForThisUIAlone(t *testing.T) {
	t.Parallel()
	for at, prefix := range map[string]string{"http://localhost:8080/ops/weir": "", "https://ops.example.com/weir": "__Secure-", "https://ops.example.com": "__Host-"} {
		a, err := newAccess(Config{Issuer: "https://login.example.com", ClientID: "weir", ClientSecret: secret, URL: at})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		if err := a.keep(w, sessionCookie, session{Name: "ada", Role: weirui.Admin, Until: time.Now().Add(time.Hour)}, time.Hour); err != nil {
			t.Fatal(err)
		}
		c := w.Result().Cookies()[0]
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		if c.Name != prefix+"weir_session" || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Secure != (u.Scheme == "https") || c.Path != u.Path+"/" || c.Domain != "" || c.MaxAge != 3600 || strings.Contains(c.Value, "ada") {
			t.Errorf("at %s the cookie is %+v", at, c)
		}
	}
}

func TestRolesComeFromAClaim(t *testing.T) {
	t.Parallel()
	groups := weirui.Roles{"ops": weirui.Admin}
	for _, c := range []struct {
		name   string
		change func(*Config)
		role   weirui.Role
	}{
		{"ada", func(c *Config) { c.Roles = groups }, weirui.Admin},
		{"grace", func(c *Config) { c.Roles = groups }, weirui.Nobody},
		{"grace", func(c *Config) { c.Roles = weirui.Roles{"staff": weirui.Viewer, "ops": weirui.Admin} }, weirui.Viewer},
		{"eve", func(c *Config) { c.Roles = weirui.Roles{"ops": weirui.Admin, weirui.Everyone: weirui.Viewer} }, weirui.Viewer},
		{"eve", func(c *Config) { c.Roles = nil }, weirui.Nobody},
		{"ada", func(c *Config) { c.RoleClaim, c.Roles = "email", weirui.Roles{"ada@example.org": weirui.Admin} }, weirui.Admin},
		{"eve", func(c *Config) { c.RoleClaim, c.Roles = "email", weirui.Roles{"eve@example.org": weirui.Admin} }, weirui.Nobody}, // it is not verified
		{"ada", func(c *Config) { c.RoleClaim, c.Roles = "none", groups }, weirui.Nobody},
	} {
		r := newRig(t, c.change)
		b := r.browser()
		answer, text := b.login("", c.name)
		if c.role != weirui.Nobody {
			if answer.StatusCode != http.StatusOK || !strings.Contains(text, c.name+", "+c.role.String()) {
				t.Errorf("%s with %v: %s: %s", c.name, r.config.Roles, answer.Status, text)
			}
			continue
		}
		if answer.StatusCode != http.StatusForbidden || !strings.Contains(text, c.name+" has no role here") || len(b.cookies()) != 0 {
			t.Errorf("%s with %v: %s with %v: %s", c.name, r.config.Roles, answer.Status, b.cookies(), text)
		}
		if log := r.log.String(); !strings.Contains(log, "user="+c.name) || !strings.Contains(log, "give one to a value of the claim") {
			t.Errorf("the log does not say what to do: %s", log)
		}
	}
}

// TestASessionEnds: after its time, scripts and programs are told so, and whoever opens a page is sent to the provider.
func TestASessionEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.browser()
	b.login("queues", "ada")
	cookie := b.answers[len(b.answers)-1].Request.Header.Get("Cookie")
	others := map[string]func(*Config){
		"the same":           func(*Config) {},
		"another secret":     func(c *Config) { c.ClientSecret += "!" },
		"other roles":        func(c *Config) { c.Roles = weirui.Roles{"ops": weirui.Viewer} },
		"another client":     func(c *Config) { c.ClientID = "other" },
		"another provider":   func(c *Config) { c.Issuer += "/other" },
		"another claim":      func(c *Config) { c.RoleClaim = "roles" },
		"without a secret":   func(c *Config) { c.ClientSecret = "" },
		"at another address": func(c *Config) { c.URL = "http://localhost/" },
	}
	for what, change := range others {
		c := r.config
		change(&c)
		a, err := newAccess(c)
		if err != nil {
			t.Fatal(err)
		}
		q := httptest.NewRequest(http.MethodGet, "/queues", nil)
		q.Header.Set("Cookie", cookie)
		if s, ok := a.session(q); ok != (what == "the same") || ok && (s.Name != "ada" || s.Role != weirui.Operator) {
			t.Errorf("a server with %s takes the session for %v, %v", what, s, ok)
		}
	}
	for _, header := range [][]string{{"Weir-Fragment", "1"}, {"Accept", "application/json"}} {
		if answer, _ := b.send(http.MethodGet, "queues", nil, header...); answer.StatusCode != http.StatusOK {
			t.Errorf("with %v: %s", header, answer.Status)
		}
	}
	r.ahead.Store(int64(sessionFor - time.Minute))
	if answer, _ := b.visit("queues"); answer.Request.URL.String() != r.url+"queues" {
		t.Errorf("before its end, the session leads to %s", answer.Request.URL)
	}
	r.ahead.Store(int64(sessionFor))
	for _, header := range [][]string{{"Weir-Fragment", "1", "Accept", "text/html"}, {"Accept", "application/json"}} {
		if answer, _ := b.send(http.MethodGet, "queues", nil, header...); answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("after it, with %v: %s", header, answer.Status)
		}
	}
	if answer, text := b.send(http.MethodPost, "queues/mail/pause", nil); answer.StatusCode != http.StatusUnauthorized || !strings.Contains(text, `href="../../auth/login"`) {
		t.Errorf("an action after it: %s: %s", answer.Status, text)
	}
	if answer, _ := b.visit("queues"); !strings.HasPrefix(answer.Request.URL.String(), r.config.Issuer) {
		t.Errorf("after it, queues leads to %s", answer.Request.URL)
	}
}

// TestOnlyTheBrowserThatBeganALoginEndsIt: an answer of the provider counts once, for a login that the browser has begun a short time ago.
func TestOnlyTheBrowserThatBeganALoginEndsIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	refused := func(what string, b *browser, path string, status int, want string) {
		t.Helper()
		answer, text := b.visit(path)
		if answer.StatusCode != status || !strings.Contains(text, want) || slices.Contains(b.cookies(), sessionCookie) {
			t.Errorf("%s: %s with %v: %s", what, answer.Status, b.cookies(), text)
		}
	}
	// asked returns a browser that has been asked to log in, with a parameter that somebody has changed.
	asked := func(parameter string) (*browser, string) {
		b := r.browser()
		b.stay(true)
		answer, _ := b.visit("queues")
		to, err := url.Parse(answer.Header.Get("Location"))
		if err != nil {
			t.Fatal(err)
		}
		if q := to.Query(); parameter != "" {
			q.Set(parameter, someState())
			to.RawQuery = q.Encode()
		}
		b.stay(false)
		_, text := b.visit(to.String())
		return b, text
	}
	// begun returns a browser that the provider sends back with a code, and where to.
	begun := func(changed string) (*browser, string) {
		b, text := asked(changed)
		b.stay(true)
		answer, _ := b.send(http.MethodPost, r.config.Issuer+"/login/username", url.Values{"id": {loginID.FindStringSubmatch(text)[1]}, "username": {"ada"}, "password": {"adaada"}})
		answer, _ = b.visit(r.config.Issuer + answer.Header.Get("Location")[strings.Index(answer.Header.Get("Location"), "/auth/callback"):])
		b.stay(false)
		return b, answer.Header.Get("Location")
	}
	const notBegun = "was not begun in this browser"
	b, back := begun("")
	if !strings.HasPrefix(back, r.url+"auth/callback?code=") {
		t.Fatalf("the provider sends the browser to %s", back)
	}
	refused("another browser", r.browser(), back, http.StatusBadRequest, notBegun)
	refused("without a state", b, "auth/callback?code=x", http.StatusBadRequest, notBegun)
	refused("another state", b, "auth/callback?code=x&state="+someState(), http.StatusBadRequest, notBegun)
	refused("a strange state", b, "auth/callback?code=x&state=weir", http.StatusBadRequest, notBegun)
	if answer, _ := b.visit(back); answer.Request.URL.String() != r.url+"queues" {
		t.Fatalf("the browser itself is led to %s", answer.Request.URL)
	}
	b.send(http.MethodPost, "auth/logout", nil)
	refused("once more", b, back, http.StatusBadRequest, notBegun)

	b, back = begun("")
	r.ahead.Store(int64(loginWithin + time.Second))
	refused("too late", b, back, http.StatusBadRequest, notBegun)
	r.ahead.Store(0)

	b, back = begun("")
	u, err := url.Parse(back)
	if err != nil {
		t.Fatal(err)
	}
	refused("another code", b, "auth/callback?code=guess&state="+u.Query().Get("state"), http.StatusBadGateway, "The login has failed")
	for _, parameter := range []string{"nonce", "code_challenge"} { // somebody replaces it, to pass a login on
		b, back := begun(parameter)
		refused("another "+parameter, b, back, http.StatusBadGateway, "The login has failed")
	}
	refused("the code after another", b, back, http.StatusBadRequest, notBegun)

	// The code of one browser in the login of another: PKCE and the nonce are those of the other.
	_, theirs := begun("")
	their, err := url.Parse(theirs)
	if err != nil {
		t.Fatal(err)
	}
	one := r.browser()
	one.visit("queues")
	location, err := url.Parse(one.answers[0].Header.Get("Location"))
	if err != nil {
		t.Fatal(err)
	}
	refused("a code of another login", one, "auth/callback?code="+url.QueryEscape(their.Query().Get("code"))+"&state="+location.Query().Get("state"), http.StatusBadGateway, "The login has failed")

	b, back = begun("")
	u, err = url.Parse(back)
	if err != nil {
		t.Fatal(err)
	}
	refused("the provider's refusal", b, "auth/callback?error=access_denied&error_description=%3Cb%3Eno&state="+u.Query().Get("state"), http.StatusForbidden, "access_denied")
	if _, text := b.visit("auth/callback?error=%3Cb%3E&state=" + someState()); strings.Contains(text, "<b>") {
		t.Errorf("the page is not escaped: %s", text)
	}
	log := r.log.String()
	if !strings.Contains(log, "a login to the UI has failed") || strings.Contains(log, their.Query().Get("code")) || strings.Contains(log, secret) {
		t.Errorf("the log is %s", log)
	}
}

// TestNobodyMakesASession: a cookie that was changed, or made for something else, is none.
func TestNobodyMakesASession(t *testing.T) {
	t.Parallel()
	a, err := newAccess(Config{Issuer: "https://login.example.com", ClientID: "weir", ClientSecret: secret, URL: "http://localhost/"})
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(`{"id":"1","name":"ada","role":3,"until":"2999-01-01T00:00:00Z"}`)
	good := a.seal.close(sessionCookie, text)
	flipped := []byte(good)
	flipped[len(flipped)/2] ^= 1
	for what, value := range map[string]string{"good": good, "changed": string(flipped), "of a login": a.seal.close(loginCookie+"ABCDEFGH", text), "plain": string(text), "empty": "", "short": good[:10], "a tail": good + "AAAA"} {
		q := httptest.NewRequest(http.MethodGet, "/", nil)
		q.AddCookie(&http.Cookie{Name: sessionCookie, Value: value})
		if s, ok := a.session(q); ok != (what == "good") {
			t.Errorf("a cookie that is %s is the session %v, %v", what, s, ok)
		}
	}
}

// TestALoginLeadsOnlyIntoTheUI: whatever address somebody is made to open, the login ends below the UI.
func TestALoginLeadsOnlyIntoTheUI(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"/", "/queues", "/queues/a%2Fb", "/jobs?state=failed&key=%2F%2Fevil.example", "//evil.example/", "///evil.example", "/%2F%2Fevil.example/", "/%2Fevil.example", "/\\evil.example", "/%5Cevil.example", "/../evil", "/%2e%2e/%2e%2e/evil", "/queues/../../evil",
		"/queues/%2e%2e/%2e%2e/%2e%2e/evil", "/https://evil.example/", "/https:evil.example", "/javascript:alert(1)", "/?//evil.example", "/" + strings.Repeat("x", 5000), "/%0d%0aLocation:%20https://evil.example", "/%09/evil.example",
	} {
		q := httptest.NewRequest(http.MethodGet, "http://ui.internal/", nil)
		u, err := url.ParseRequestURI(path)
		if err != nil {
			continue // no request has such a path
		}
		q.URL = u
		back := pathOf(q)
		at, err := url.Parse("https://ops.example.com/weir/auth/callback")
		if err != nil {
			t.Fatal(err)
		}
		to, err := at.Parse("../" + back)
		if err != nil {
			t.Errorf("%q leads to %q: %v", path, back, err)
			continue
		}
		if to.Scheme != "https" || to.Host != "ops.example.com" || !strings.HasPrefix(to.Path, "/weir/") || strings.ContainsAny(back, "\r\n\t\\") || len(back) > 1000 {
			t.Errorf("%q leads to %q, which is %s", path, back, to)
		}
		// Browsers take %2e for a dot.
		if to, err = at.Parse("../" + strings.ReplaceAll(back, "%2e", ".")); err != nil || !strings.HasPrefix(to.Path, "/weir/") {
			t.Errorf("%q leads browsers to %s, %v", path, to, err)
		}
	}
	if back := pathOf(httptest.NewRequest(http.MethodGet, "/queues/a%2Fb?x=1", nil)); back != "queues/a%2Fb?x=1" {
		t.Errorf("a page of the UI is %q", back)
	}
}

// TestWithoutTheProviderNobodyLogsIn: the server starts, says what is wrong, and works when the provider does.
func TestWithoutTheProviderNobodyLogsIn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.down.Store(true)
	if _, err := New(t.Context(), r.config); err != nil {
		t.Errorf("the server does not start: %v", err)
	}
	if log := r.log.String(); !strings.Contains(log, "the UI's identity provider can't be reached") || !strings.Contains(log, r.config.Issuer) {
		t.Errorf("the log is %s", log)
	}
	b := r.browser()
	for range 20 {
		if answer, text := b.visit("queues"); answer.StatusCode != http.StatusBadGateway || !strings.Contains(text, "can&#39;t be reached") {
			t.Errorf("%s: %s", answer.Status, text)
		}
	}
	r.down.Store(false)
	pgtest.Until(t, "the provider is reached", func() bool { answer, _ := b.visit("queues"); return answer.StatusCode == http.StatusOK })
	if answer, _ := b.login("queues", "ada"); answer.Request.URL.String() != r.url+"queues" {
		t.Errorf("the login leads to %s", answer.Request.URL)
	}
}

// TestEachTabMayLogIn: logins that were begun at the same time all end, and those that never end don't fill the browser with cookies.
func TestEachTabMayLogIn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.browser()
	var ids []string
	for i := range 4 {
		_, text := b.visit(fmt.Sprintf("jobs?key=%d", i))
		ids = append(ids, loginID.FindStringSubmatch(text)[1])
	}
	for i, id := range ids {
		answer, _ := b.send(http.MethodPost, r.config.Issuer+"/login/username", url.Values{"id": {id}, "username": {"ada"}, "password": {"adaada"}})
		if want := fmt.Sprintf("%sjobs?key=%d", r.url, i); answer.Request.URL.String() != want {
			t.Errorf("tab %d is led to %s", i, answer.Request.URL)
		}
	}
	b = r.browser()
	for range 50 {
		b.visit("queues")
		if n := len(b.cookies()); n > loginsOpen {
			t.Fatalf("the browser has %d cookies", n)
		}
	}
}

func TestWhatTheConfigurationLacksIsNamed(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"the client's ID is missing":            func(c *Config) { c.ClientID = "" },
		`"login" is not an issuer`:              func(c *Config) { c.Issuer = "login" },
		`"" is not the address of the UI`:       func(c *Config) { c.URL = "" },
		"is not encrypted":                      func(c *Config) { c.URL = "http://ops.example.com/" },
		`"https://ops.example.com/?x=1" is not`: func(c *Config) { c.URL = "https://ops.example.com/?x=1" },
		"the client's secret has 5 bytes":       func(c *Config) { c.ClientSecret = "short" },
	} {
		c := Config{Issuer: "https://login.example.com", ClientID: "weir", ClientSecret: secret, URL: "https://ops.example.com/"}
		change(&c)
		if _, err := New(context.Background(), c); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "short") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
