package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// TestAHubForEverybodyGoesByItsNamesAlone: a server with a list of names refuses requests for any other name, so a foreign page can't reach it
// by pointing a name of its own to it.
func TestAHubForEverybodyGoesByItsNamesAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), func(c *Config) { c.Hosts = []string{"hub.example.com", "*.internal"} })
	for host, ok := range map[string]bool{
		"localhost": true, "localhost:8080": true, "127.0.0.1": true, "[::1]:80": true, "192.0.2.1:80": true, "hub.example.com": true,
		"HUB.example.com:443": true, "a.internal": true, "evil.test": false, "hub.example.com.evil.test": false, "": false, "localhost.evil.test": false,
	} {
		for _, path := range []string{"/v1/publish?channel=a", "/readyz"} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.server.URL+path, strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			want := http.StatusOK
			if path == "/readyz" {
				request.Method, request.Body = http.MethodGet, nil // probes may use any name
			} else if !ok {
				want = http.StatusForbidden
			}
			request.Header.Set("Origin", "http://"+host) // same origin, as far as the header shows
			recorder := httptest.NewRecorder()
			request.Host = host
			r.web.ServeHTTP(recorder, request)
			if recorder.Code != want {
				t.Errorf("%s as %q: status %d, want %d: %s", path, host, recorder.Code, want, recorder.Body)
			}
		}
	}
}

// TestOnlyTrustedProxiesSayWhoTheClientIs: the client's address is the last one noted by a trusted proxy that is not itself a trusted proxy's.
func TestOnlyTrustedProxiesSayWhoTheClientIs(t *testing.T) {
	t.Parallel()
	of := ClientBehind([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")})
	for _, try := range []struct {
		peer, list, standard, want string
	}{
		{"192.0.2.1:1", "203.0.113.9", "", "192.0.2.1"},                     // not a trusted proxy
		{"10.0.0.1:1", "", "", "10.0.0.1"},                                  // the proxy notes nothing
		{"10.0.0.1:1", "203.0.113.9", "", "203.0.113.9"},                    //
		{"10.0.0.1:1", "1.1.1.1, 203.0.113.9", "", "203.0.113.9"},           // the client made up the first
		{"10.0.0.1:1", "1.1.1.1, 203.0.113.9, 10.2.2.2", "", "203.0.113.9"}, // two proxies
		{"10.0.0.1:1", "10.9.9.9, 10.2.2.2", "", "10.9.9.9"},                // a client in the proxies' network
		{"10.0.0.1:1", "nonsense, 10.2.2.2", "", "10.2.2.2"},                //
		{"10.0.0.1:1", "203.0.113.9:4711", "", "203.0.113.9"},               //
		{"[::ffff:10.0.0.1]:1", "203.0.113.9", "", "203.0.113.9"},           //
		{"[2001:db8::1]:1", "", `for="[2001:db9::7]:80";proto=https`, "2001:db9::7"},
		{"10.0.0.1:1", "", "for=1.1.1.1, for=203.0.113.9;by=10.0.0.1", "203.0.113.9"},
		{"10.0.0.1:1", "1.1.1.1", "for=203.0.113.9", "10.0.0.1"}, // it is unknown which of them the proxy set
		{"10.0.0.1:1", "", "for=unknown", "10.0.0.1"},
	} {
		r := &http.Request{RemoteAddr: try.peer, Header: http.Header{}}
		if try.list != "" {
			r.Header.Set("X-Forwarded-For", try.list)
		}
		if try.standard != "" {
			r.Header.Set("Forwarded", try.standard)
		}
		if got := of(r); got != try.want {
			t.Errorf("%+v: %s", try, got)
		}
	}
}

// TestWhoIsEndedBeforeItIsConnectedEndsAllTheSame: a stream that an operator or an expiring grant ends before it has its connection ends as
// soon as it has one.
func TestWhoIsEndedBeforeItIsConnectedEndsAllTheSame(t *testing.T) {
	t.Parallel()
	r := newRig(t, newMemory(), nil)
	s := &stream{web: r.web, kind: eventKind{}, remote: "192.0.2.1"}
	if f := r.web.enter(s); f != nil {
		t.Fatal(f)
	}
	defer r.web.exit(s)
	s.leave(errEnded)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	s.attach(taken{Conn: ours})
	_ = theirs.SetReadDeadline(time.Now().Add(generous))
	if n, err := theirs.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("its client reads %d bytes, %v: want EOF", n, err)
	}
	if err := s.join(hub.Options{}); err != nil {
		t.Fatal(err)
	}
	if n := r.hub.Stats().Subscribers; n != 0 {
		t.Errorf("%d subscribers are left", n)
	}
}

// TestOperatorsSeeWhoIsConnectedAndEndThem: the admin handler lists clients, ends them, and is then the only one that serves metrics.
func TestOperatorsSeeWhoIsConnectedAndEndThem(t *testing.T) {
	t.Parallel()
	tokens := withSecret(t)
	r := newRig(t, newMemory(), func(c *Config) { tokens(c); c.AdminApart = true })
	claims := may([]string{">"}, nil, nil)
	claims["sub"] = "ada"
	ws, _, err := r.dial("", bearerOf(hs256(t, claims)))
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := r.dial("", bearerOf(hs256(t, may([]string{">"}, nil, nil))))
	if err != nil {
		t.Fatal(err)
	}
	admin := httptest.NewServer(r.web.Admin(AdminConfig{}))
	t.Cleanup(admin.Close)
	ask := func(method, path string, change func(*http.Request)) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, admin.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(request)
		}
		response, err := admin.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		b, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(b)
	}
	status, text := ask("GET", "/clients?user=ada", nil)
	var list struct{ Clients []Client }
	if err := json.Unmarshal([]byte(text), &list); err != nil || status != 200 || len(list.Clients) != 1 || list.Clients[0].Address != "127.0.0.1" || list.Clients[0].Protocol != "websocket" {
		t.Fatalf("%d %s", status, text)
	}
	if status, _ := ask("GET", "/clients", func(r *http.Request) { r.Host = "evil.test" }); status != 403 {
		t.Errorf("under another name: %d", status)
	}
	if status, _ := ask("DELETE", "/clients", nil); status != 400 {
		t.Errorf("ending clients without naming any: %d", status)
	}
	ws.ask(`{"type":"ping"}`) // once this is answered, the stream has its connection, and the client receives the close code
	if status, text := ask("DELETE", "/clients/"+list.Clients[0].ID, nil); status != 200 {
		t.Errorf("ending one: %d %s", status, text)
	}
	if code := ws.end(); code != "1008" {
		t.Errorf("closed with %s, want 1008", code)
	}
	if s := other.ask(`{"type":"ping"}`); s.Type != "pong" {
		t.Errorf("another client: %+v", s)
	}
	eventually(t, func() error {
		if status, _ := ask("DELETE", "/clients/"+list.Clients[0].ID, nil); status != 404 {
			return fmt.Errorf("ending a client that has disconnected: %d", status)
		}
		return nil
	})
	if status, text := ask("GET", "/metrics", nil); status != 200 || !strings.Contains(text, "weir_hub_live 1") {
		t.Errorf("metrics: %d", status)
	}
	if response, _ := r.get("/metrics", nil); response.StatusCode != 404 {
		t.Errorf("metrics on the public handler: %d", response.StatusCode)
	}
}
