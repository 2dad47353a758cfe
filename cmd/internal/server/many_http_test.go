package server

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestPagesCanReadWhyADatabaseIsRefused: one that can't takes it for a lost connection, and tries again for ever. Pages of foreign origins start no hub.
func TestPagesCanReadWhyADatabaseIsRefused(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	short, _ := namesOf(t, database)
	var l list
	l.set(database, "postgres://ada@127.0.0.1:1/gone")
	m := startMany(t, &l, ManyConfig{Config: Config{ListenAdmin: "127.0.0.1:0", Web: web.Config{Authorizer: authorizer(t), Origins: []string{"app.example.com"}}}})
	token := func(name string) string {
		return tokenFor(t, "ada", nil, nil, jwt.MapClaims{"weir": map[string]any{"subscribe": []string{"news"}, "databases": []string{name}}})
	}
	ask := func(address net.Addr, name, origin, token string) *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://%s/databases/%s/v1/events?channel=news", address, name), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Origin", "https://"+origin)
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer
	}
	for _, c := range []struct {
		name, origin, token string
		want                int
	}{
		{short, "app.example.com", "none", http.StatusUnauthorized}, {short, "app.example.com", token("gone"), http.StatusForbidden}, {short, "evil.example.com", token(short), http.StatusForbidden},
		{"nowhere", "app.example.com", token("nowhere"), http.StatusNotFound}, {"gone", "app.example.com", token("gone"), http.StatusServiceUnavailable},
	} {
		answer := ask(m.HTTPAddr(), c.name, c.origin, c.token)
		if answer.StatusCode != c.want || answer.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s, of a page of %s: %s with %v, want %d which it can read", c.name, c.origin, answer.Status, answer.Header, c.want)
		}
	}
	for _, name := range []string{short, "nowhere", "gone"} {
		if status, body := at(t, m, "OPTIONS", name, "/v1/events", ""); status != http.StatusNoContent {
			t.Errorf("what a browser asks first, at %s: %d: %s", name, status, body)
		}
	}
	if m.Hub(database) != nil {
		t.Error("a page that is refused has started a hub")
	}
	if answer := ask(m.AdminAddr(), "nowhere", "app.example.com", ""); answer.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a page can read what operators are told: %v", answer.Header)
	}
}

// TestWhoIsNoOperatorStartsNoHub: where operators have tokens, they alone make a hub start to ask it for its clients.
func TestWhoIsNoOperatorStartsNoHub(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	short, _ := namesOf(t, database)
	var l list
	l.set(database)
	tokens := filepath.Join(t.TempDir(), "operators")
	if err := os.WriteFile(tokens, []byte("the token of an operator\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := startMany(t, &l, ManyConfig{Config: Config{ListenAdmin: "127.0.0.1:0", AdminTokenFile: tokens, Web: web.Config{Authorizer: authorizer(t)}}})
	ask := func(path, token string) int {
		request, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://%s/databases/%s%s", m.AdminAddr(), short, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	for path, want := range map[string]int{"/clients": http.StatusUnauthorized, "/users/revoke": http.StatusUnauthorized, "/nothing": http.StatusNotFound, "/metrics": http.StatusOK, "/readyz": http.StatusOK} {
		if got := ask(path, "another token of somebody"); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	if m.Hub(database) != nil {
		t.Error("who is no operator has started a hub")
	}
	if got := ask("/clients", "the token of an operator"); got != http.StatusOK {
		t.Errorf("an operator: %d", got)
	}
}

// TestMetricsAreGatheredAtOnce: from all hubs, so that databases that don't answer delay a scrape no longer than one of them does.
func TestMetricsAreGatheredAtOnce(t *testing.T) {
	t.Parallel()
	const hubs = 3
	begun, all := make(chan struct{}, hubs), make(chan struct{})
	go func() { // ends when all have begun, or the test does
		for range hubs {
			select {
			case <-begun:
			case <-t.Context().Done():
				return
			}
		}
		close(all)
	}()
	var some []prometheus.Gatherer
	for i := range hubs {
		registry := prometheus.NewRegistry()
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "asked"}, func() float64 {
			begun <- struct{}{}
			select {
			case <-all:
				return 1
			case <-time.After(patience):
				return 0
			}
		}))
		some = append(some, labelled{registry, fmt.Sprintf("app%d", i)})
	}
	families, err := atOnce(some).Gather()
	if err != nil || len(families) != 1 || len(families[0].Metric) != hubs {
		t.Fatalf("%v, %v", families, err)
	}
	for _, metric := range families[0].Metric {
		if metric.GetGauge().GetValue() != 1 {
			t.Errorf("%v was gathered after another one", metric)
		}
	}
}

// deadlines is a ResponseWriter that remembers whether what is read has a deadline.
type deadlines struct {
	*httptest.ResponseRecorder
	set bool
}

func (d *deadlines) SetReadDeadline(time.Time) error {
	d.set = true
	return nil
}

// TestNoBodyIsAwaitedForEver: net/http reads a body to its end before the next request, whatever is wrong with the path.
func TestNoBodyIsAwaitedForEver(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/databases/app/v1/publish", "/databases/app//publish", "/nothing"} {
		rw := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		cleanly(http.NewServeMux()).ServeHTTP(rw, httptest.NewRequest("POST", path, strings.NewReader("{}")))
		if rw.Code != http.StatusNotFound || !rw.set {
			t.Errorf("%s: %d, and the body has a deadline: %t", path, rw.Code, rw.set)
		}
	}
}
