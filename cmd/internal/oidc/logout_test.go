package oidc

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// TestALogoutEndsTheSession: a copy of the cookie is of no use after it, and the user's other sessions go on.
func TestALogoutEndsTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b, other := r.browser(), r.browser()
	b.login("queues", "ada")
	other.login("queues", "ada")
	cookie := b.answers[len(b.answers)-1].Request.Header.Get("Cookie")
	withCopy := func() (*http.Response, string) {
		return r.browser().send(http.MethodGet, "queues", nil, "Cookie", cookie, "Accept", "application/json")
	}
	if answer, text := withCopy(); answer.StatusCode != http.StatusOK {
		t.Fatalf("before the logout, a copy of the cookie is answered with %s: %s", answer.Status, text)
	}
	if answer, text := b.send(http.MethodPost, "auth/logout", nil); answer.StatusCode != http.StatusOK || !strings.Contains(text, "You are logged out here") {
		t.Fatalf("the logout: %s: %s", answer.Status, text)
	}
	if answer, text := withCopy(); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("after the logout, a copy of the cookie is answered with %s: %s", answer.Status, text)
	}
	if answer, _ := other.visit("queues"); answer.Request.URL.String() != r.url+"queues" {
		t.Errorf("the user's other session is led to %s", answer.Request.URL)
	}
	if log := r.log.String(); !strings.Contains(log, "has logged out") {
		t.Errorf("the log does not say who has logged out: %s", log)
	}
}

// TestEndedSessionsAreBounded: what is remembered of logouts is bounded, and no session that has ended comes to life again.
func TestEndedSessionsAreBounded(t *testing.T) {
	t.Parallel()
	var v revoked
	now := time.Now()
	at := func(i int) session {
		return session{ID: strconv.Itoa(i), Role: weirui.Viewer, Until: now.Add(sessionFor - time.Minute)}
	}
	for i := range 2*revokedAtMost + 10 {
		v.add(at(i), now)
	}
	if len(v.until) > revokedAtMost {
		t.Errorf("%d sessions are remembered", len(v.until))
	}
	for _, i := range []int{0, revokedAtMost, 2*revokedAtMost + 9} {
		if !v.has(at(i)) {
			t.Errorf("session %d has come to life again", i)
		}
	}
	if v.has(session{ID: "new", Until: now.Add(sessionFor + time.Second)}) {
		t.Error("a session that began later has ended")
	}
}

// TestAProviderThatHangsDelaysNobodyForLong: logins are answered while it is being asked, the server starts, and sessions go on.
func TestAProviderThatHangsDelaysNobodyForLong(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	asked, ended := make(chan struct{}, 10), make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		asked <- struct{}{}
		<-q.Context().Done() // the client has given up
		close(ended)
	}))
	t.Cleanup(hangs.Close)
	c := r.config
	c.Issuer = hangs.URL
	got, err := New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	a := got.(*access)
	pgtest.Receive(t, asked, "the question to the provider")
	visit := func(method, path, accept string) int {
		q := httptest.NewRequest(method, path, nil)
		q.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		a.Identify(w, q)
		return w.Code
	}
	for range 50 {
		if code := visit(http.MethodGet, "/queues", "text/html"); code != http.StatusBadGateway {
			t.Errorf("a login is answered with %d", code)
		}
	}
	if code := visit(http.MethodPost, "/auth/logout", "text/html"); code != http.StatusOK {
		t.Errorf("a logout is answered with %d", code)
	}
	select {
	case <-ended:
		t.Error("they have waited until the provider was given up")
	default:
	}
	if len(asked) > 0 {
		t.Errorf("the provider was asked %d times more meanwhile", len(asked))
	}
}
