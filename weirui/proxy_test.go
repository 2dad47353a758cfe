package weirui_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

func TestAProxySaysWhoTheUserIs(t *testing.T) {
	t.Parallel()
	from := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::1/128")}
	users := weirui.Roles{"ada": weirui.Admin, "grace": weirui.Operator}
	groups := weirui.Roles{"ops": weirui.Operator, "dba": weirui.Admin, weirui.Everyone: weirui.Viewer}
	header := func(pairs ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(pairs); i += 2 {
				r.Header.Add(pairs[i], pairs[i+1])
			}
		}
	}
	for _, c := range []struct {
		what   string
		config weirui.ProxyConfig
		from   string
		header []string
		status int // 0: let in
		role   weirui.Role
	}{
		{"a user with a role", weirui.ProxyConfig{Roles: users}, here, []string{"Remote-User", "ada"}, 0, weirui.Admin},
		{"over IPv6", weirui.ProxyConfig{Roles: users}, "[2001:db8::1]:9", []string{"Remote-User", "grace"}, 0, weirui.Operator},
		{"an address as IPv6 has it", weirui.ProxyConfig{Roles: users}, "[::ffff:192.0.2.1]:9", []string{"Remote-User", "ada"}, 0, weirui.Admin},
		{"a user without a role", weirui.ProxyConfig{Roles: users}, here, []string{"Remote-User", "eve"}, http.StatusForbidden, 0},
		{"a user of the name of a role", weirui.ProxyConfig{Roles: users}, here, []string{"Remote-User", "admin"}, http.StatusForbidden, 0},
		{"a user of the name of the rest", weirui.ProxyConfig{Roles: users}, here, []string{"Remote-User", "*"}, http.StatusForbidden, 0},
		{"whoever reaches it over TCP if only a socket is trusted", weirui.ProxyConfig{Roles: users, From: []netip.Prefix{}}, here, []string{"Remote-User", "ada"}, http.StatusForbidden, 0},
		{"somebody else", weirui.ProxyConfig{Roles: users}, far, []string{"Remote-User", "ada"}, http.StatusForbidden, 0},
		{"somebody else who is forwarded", weirui.ProxyConfig{Roles: users}, far, []string{"Remote-User", "ada", "X-Forwarded-For", "192.0.2.1"}, http.StatusForbidden, 0},
		{"without the header", weirui.ProxyConfig{Roles: users}, here, nil, http.StatusUnauthorized, 0},
		{"with an empty header", weirui.ProxyConfig{Roles: users}, here, []string{"Remote-User", " "}, http.StatusUnauthorized, 0},
		{"with the client's header, too", weirui.ProxyConfig{Roles: users}, here, []string{"Remote-User", "ada", "Remote-User", "eve"}, http.StatusUnauthorized, 0},
		{"groups", weirui.ProxyConfig{Roles: groups, RoleHeader: "Remote-Groups"}, here, []string{"Remote-User", "ada", "Remote-Groups", "staff, ops ,other"}, 0, weirui.Operator},
		{"the greatest role", weirui.ProxyConfig{Roles: groups, RoleHeader: "Remote-Groups"}, here, []string{"Remote-User", "ada", "Remote-Groups", "dba,ops"}, 0, weirui.Admin},
		{"all others", weirui.ProxyConfig{Roles: groups, RoleHeader: "Remote-Groups"}, here, []string{"Remote-User", "ada", "Remote-Groups", "staff"}, 0, weirui.Viewer},
		{"a user of the name of a group", weirui.ProxyConfig{Roles: groups, RoleHeader: "Remote-Groups"}, here, []string{"Remote-User", "dba"}, 0, weirui.Viewer},
		{"roles", weirui.ProxyConfig{RoleHeader: "Remote-Role"}, here, []string{"Remote-User", "ada", "Remote-Role", "operator"}, 0, weirui.Operator},
		{"no such role", weirui.ProxyConfig{RoleHeader: "Remote-Role"}, here, []string{"Remote-User", "ada", "Remote-Role", "root"}, http.StatusForbidden, 0},
		{"no role", weirui.ProxyConfig{RoleHeader: "Remote-Role"}, here, []string{"Remote-User", "admin"}, http.StatusForbidden, 0},
	} {
		d := &door{T: t, log: &pgtest.Log{}}
		if c.config.Header, c.config.Logger = "Remote-User", d.log.Logger(); c.config.From == nil {
			c.config.From = from
		}
		var err error
		if d.access, err = weirui.Proxy(c.config); err != nil {
			t.Fatal(err)
		}
		user, w := d.knock(c.from, header(c.header...))
		if user.Role != c.role || c.status != 0 && w.Code != c.status || c.role != 0 && user.Name != c.header[1] {
			t.Errorf("%s: %v, %d: %s", c.what, user, w.Code, w.Body)
		}
		if logged := d.log.String(); (c.status != 0) != strings.Contains(logged, "address=") {
			t.Errorf("%s: logged is %q", c.what, logged)
		}
	}
}

func TestWhatAProxyLacksIsNamed(t *testing.T) {
	t.Parallel()
	from, roles := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, weirui.Roles{"ada": weirui.Admin}
	for want, c := range map[string]weirui.ProxyConfig{
		"Header is empty":                {From: from, Roles: roles},
		"Roles is empty":                 {Header: "Remote-User", From: from},
		"everybody may pass for anybody": {Header: "Remote-User", Roles: roles, From: []netip.Prefix{netip.MustParsePrefix("::/0")}},
		`"ada" has the role "nobody"`:    {Header: "Remote-User", From: from, Roles: weirui.Roles{"ada": weirui.Nobody}},
	} {
		if _, err := weirui.Proxy(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestTheUIWorksBehindAProxyAtAPath: a reverse proxy that serves the UI at another path, and reaches it over TCP or a Unix socket, says who the user is; links, redirections and
// forms lead to the proxy's path.
func TestTheUIWorksBehindAProxyAtAPath(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	client := weir.NewClient(pool)
	for network, from := range map[string][]netip.Prefix{"tcp": {netip.MustParsePrefix("127.0.0.1/32")}, "unix": nil} {
		access, err := weirui.Proxy(weirui.ProxyConfig{Header: "X-Forwarded-User", From: from, Roles: weirui.Roles{"ada": weirui.Admin}})
		if err != nil {
			t.Fatal(err)
		}
		ui, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: pool}}, Access: access})
		if err != nil {
			t.Fatal(err)
		}
		job, err := client.Enqueue(t.Context(), note{Text: "hello"}, &weir.Options{Queue: "mail"})
		if err != nil {
			t.Fatal(err)
		}
		address := "127.0.0.1:0"
		if network == "unix" {
			address = filepath.Join(t.TempDir(), "ui.sock")
		}
		listener, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		behind := &httptest.Server{Listener: listener, Config: &http.Server{Handler: ui}}
		behind.Start()
		t.Cleanup(behind.Close)
		transport := &http.Transport{}
		if network == "unix" {
			transport.DialContext = (&unixDialer{address}).dial
		}
		t.Cleanup(transport.CloseIdleConnections)
		front := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "ui.internal"
			if network == "tcp" {
				r.Out.URL.Host = listener.Addr().String()
			}
			r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, "/ops/weir")
			r.Out.URL.RawPath = strings.TrimPrefix(r.In.URL.RawPath, "/ops/weir")
			r.Out.Header.Set("X-Forwarded-User", "ada")
		}})
		t.Cleanup(front.Close)
		browser := http.Client{}
		get := func(path string) *http.Response {
			answer, err := browser.Get(front.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			return answer
		}
		for _, path := range []string{"/ops/weir/", "/ops/weir/queues/mail", "/ops/weir/static/weir.css"} {
			if answer := get(path); answer.StatusCode != http.StatusOK || answer.Request.URL.Path != path {
				t.Errorf("%s: GET %s: %s at %s", network, path, answer.Status, answer.Request.URL)
			}
		}
		answer, err := browser.PostForm(front.URL+"/ops/weir/jobs/"+itoa(job.ID)+"/cancel", url.Values{"back": {"jobs/" + itoa(job.ID)}, "sure": {"yes"}})
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if want := "/ops/weir/jobs/" + itoa(job.ID); answer.StatusCode != http.StatusOK || answer.Request.URL.Path != want {
			t.Errorf("%s: a form leads to %s, %s, want %s", network, answer.Request.URL, answer.Status, want)
		}
		if found, err := client.Job(t.Context(), job.ID); err != nil || found.State != weir.StateCancelled {
			t.Errorf("%s: the job is %v, %v", network, found, err)
		}
	}
}

type unixDialer struct{ path string }

func (d *unixDialer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", d.path)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
