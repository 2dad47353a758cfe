package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAUserIsDisconnectedFromAllHubs: from every hub and protocol, by whoever calls weir.disconnect, and nobody else is; the user may connect again. A transaction that
// is rolled back disconnects nobody.
func TestAUserIsDisconnectedFromAllHubs(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	hubs := []*Server{}
	for range 2 {
		hubs = append(hubs, start(t, Config{Database: url, PGAuth: Trust, Web: web.Config{Authorizer: authorizer(t)}}))
	}
	ada, bob := tokenFor(t, "ada", []string{">"}, nil, nil), tokenFor(t, "bob", []string{">"}, nil, nil)
	var gone, stay []*socket
	var adas []*pgx.Conn
	for _, s := range hubs {
		gone, stay = append(gone, open(t, s, ada)), append(stay, open(t, s, bob))
		conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://ada@%s/db", s.PGAddr()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		if _, err := conn.Exec(t.Context(), `LISTEN x`); err != nil {
			t.Fatal(err)
		}
		adas = append(adas, conn)
	}
	events, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%s/v1/events?channel=a&access_token=%s", hubs[1].HTTPAddr(), ada), nil)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := http.DefaultClient.Do(events)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()

	client := weir.NewClient(pgtest.Pool(t, url))
	tx, err := pgtest.Pool(t, url).Begin(t.Context())
	if err == nil {
		err = client.DisconnectTx(t.Context(), tx, "bob")
	}
	if err == nil {
		err = tx.Rollback(t.Context())
	}
	if err == nil {
		err = client.Disconnect(t.Context(), "ada")
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range gone {
		if code := c.end(); code != 1008 {
			t.Errorf("at hub %d, ada's WebSocket ended with code %d", i, code)
		}
		if _, err := adas[i].WaitForNotification(t.Context()); sqlstate(err) != "57P01" {
			t.Errorf("at hub %d, ada's listener: %v", i, err)
		}
	}
	pgtest.Receive(t, func() <-chan struct{} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for b := make([]byte, 100); ; {
				if _, err := stream.Body.Read(b); err != nil {
					return
				}
			}
		}()
		return ended
	}(), "the end of ada's event stream")
	for i, c := range stay {
		if got := c.ask(`{"type":"ping"}`); got["type"] != "pong" {
			t.Errorf("at hub %d, bob: %v", i, got)
		}
	}
	if got := open(t, hubs[0], ada).ask(`{"type":"ping"}`); got["type"] != "pong" {
		t.Errorf("ada connects again: %v", got)
	}
}

// TestRevokedTokensAreRefusedEverywhere: at all hubs, also those started later, over every transport; tokens that were issued later are accepted, and so are
// those of others. Revocations that are over are deleted.
func TestRevokedTokensAreRefusedEverywhere(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	config := Config{Database: url, PGAuth: Trust, Web: web.Config{Authorizer: authorizer(t)}}
	hubs := []*Server{start(t, config), start(t, config)}
	if _, err := pool.Exec(t.Context(), `SELECT weir.revoke('long ago', '1 millisecond')`); err != nil {
		t.Fatal(err)
	}
	issued := func(user string, ago time.Duration) string {
		return tokenFor(t, user, []string{">"}, []string{">"}, jwt.MapClaims{"iat": time.Now().Add(-ago).Unix()})
	}
	old, bobs, undated := issued("ada", time.Minute), issued("bob", time.Minute), tokenFor(t, "ada", []string{">"}, []string{">"}, jwt.MapClaims{"iat": nil})
	streams := []*socket{open(t, hubs[0], old), open(t, hubs[1], old), open(t, hubs[1], undated)}
	before, err := weir.NewClient(pool).Revoke(t.Context(), "ada", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range streams {
		if code := c.end(); code != 4401 {
			t.Errorf("stream %d ended with code %d, want 4401: a new token is needed", i, code)
		}
	}
	hubs = append(hubs, start(t, config)) // reads what was revoked before it was started
	young := tokenFor(t, "ada", []string{">"}, []string{">"}, jwt.MapClaims{"iat": before.Add(time.Second).Unix()})
	for i, s := range hubs {
		at := "http://" + s.HTTPAddr().String()
		for name, c := range map[string]struct {
			token string
			want  int
		}{"an old token": {old, 401}, "a token that does not say when it was issued": {undated, 401}, "a new token": {young, 200}, "another user's": {bobs, 200}} {
			if status, _, text := request(t, "POST", at+"/v1/publish?channel=a", c.token, "x"); status != c.want {
				t.Errorf("hub %d, POST with %s: %d %s", i, name, status, text)
			}
			if status, _, text := request(t, "GET", at+"/v1/events?channel=a", c.token, ""); status != c.want {
				t.Errorf("hub %d, event stream with %s: %d %s", i, name, status, text)
			}
			if _, err := dial(t, s, c.token); (err == nil) != (c.want == 200) || err != nil && !strings.Contains(err.Error(), "401") {
				t.Errorf("hub %d, WebSocket with %s: %v", i, name, err)
			}
		}
		if got := open(t, s, bobs).ask(`{"type":"auth","token":%q}`, old); got["code"] != "unauthorized" {
			t.Errorf("hub %d: a connection takes on a revoked token: %v", i, got)
		}
	}
	// No client can ring, or listen to hubs.
	ws := open(t, hubs[0], bobs)
	for _, r := range []string{`{"type":"publish","channel":"$weir.users","payload":""}`, `{"type":"subscribe","channels":["$weir.users"]}`} {
		if got := ws.ask("%s", r); got["code"] != "bad_request" {
			t.Errorf("%s is answered by %v", r, got)
		}
	}
	ws.ask(`{"type":"subscribe","channels":[">","*.users"]}`)
	if err := weir.NewClient(pool).Disconnect(t.Context(), "nobody"); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `SELECT weir.publish('a', 'a message for clients')`); err != nil {
		t.Fatal(err)
	}
	if got := ws.next(); got["channel"] != "a" {
		t.Errorf("a subscriber to everything receives %v", got)
	}
	var users []string
	if err := pool.QueryRow(t.Context(), `SELECT array_agg(DISTINCT user_name ORDER BY user_name) FROM weir.revocations()`).Scan(&users); err != nil || fmt.Sprint(users) != "[ada nobody]" {
		t.Errorf("revocations of %v: %v", users, err)
	}
	for _, sql := range []string{`SELECT weir.revoke('', '1 hour')`, `SELECT weir.revoke('ada', '0')`, `SELECT weir.revoke('ada', NULL)`, `SELECT weir.revoke('ada', '500 days')`, `SELECT weir.disconnect(NULL)`} {
		if _, err := pool.Exec(t.Context(), sql); sqlstate(err) != "22023" {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// TestThatUsersCantBeDisconnectedIsSaidOnce: however often the hub tries, until it can; the next time it is said again.
func TestThatUsersCantBeDisconnectedIsSaidOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	var said pgtest.Log
	s := start(t, Config{Database: url, Logger: said.Logger(), Web: web.Config{Authorizer: authorizer(t)}})
	client := weir.NewClient(pool)
	ada := tokenFor(t, "ada", []string{">"}, nil, nil)
	var works, result string
	if err := pool.QueryRow(t.Context(), `SELECT pg_get_functiondef(f), pg_get_function_result(f) FROM (SELECT 'weir.revocations()'::regprocedure) AS x (f)`).Scan(&works, &result); err != nil {
		t.Fatal(err)
	}
	fails := `CREATE OR REPLACE FUNCTION weir.revocations() RETURNS ` + result + ` LANGUAGE plpgsql AS $$
		BEGIN PERFORM nextval('public.tries'); RAISE EXCEPTION 'not now'; END $$`
	for round := 1; round <= 2; round++ {
		if _, err := pool.Exec(t.Context(), `DROP SEQUENCE IF EXISTS public.tries; CREATE SEQUENCE public.tries; `+fails); err != nil {
			t.Fatal(err)
		}
		pgtest.Eventually(t, func() error {
			var tries int
			if err := pool.QueryRow(t.Context(), `SELECT last_value FROM public.tries`).Scan(&tries); err != nil || tries >= 5 {
				return err
			}
			return errors.Join(fmt.Errorf("it has tried %d times", tries), client.Disconnect(t.Context(), "ada")) // which makes it try at once
		})
		awaitLine(t, &said, "users can't be disconnected now", round)
		there := open(t, s, ada)
		if _, err := pool.Exec(t.Context(), works); err != nil {
			t.Fatal(err)
		}
		if err := client.Disconnect(t.Context(), "ada"); err != nil {
			t.Fatal(err)
		}
		if code := there.end(); code != 1008 {
			t.Errorf("ada's WebSocket ended with code %d", code)
		}
	}
}
