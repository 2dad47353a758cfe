package jobs_test

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const generous = time.Minute

var secret = []byte("0123456789abcdef0123456789abcdef")

// rig is a database with hubs that serve jobs, and clients with tokens.
type rig struct {
	t        testing.TB
	database string
	through  string // a pooler, for hubs; "": none
	pool     *pgxpool.Pool
	hubs     []string // their URLs
}

func newRig(t testing.TB, hubs int) *rig {
	t.Helper()
	r := &rig{t: t, database: pgtest.Database(t)}
	r.pool = pgtest.Pool(t, r.database)
	for range hubs {
		r.start()
	}
	return r
}

// start starts one more hub; each change changes its configuration.
func (r *rig) start(changes ...func(*web.Config)) *server.Server {
	r.t.Helper()
	tokens, err := web.NewJWT(web.JWTConfig{Secret: secret})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), generous)
	defer cancel()
	config := web.Config{Authorizer: tokens}
	for _, change := range changes {
		change(&config)
	}
	s, err := server.Start(ctx, server.Config{Database: cmp.Or(r.through, r.database), Name: r.t.Name(), ListenHTTP: "127.0.0.1:0", Jobs: true, Web: config, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.hubs = append(r.hubs, "http://"+s.HTTPAddr().String())
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), generous)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			r.t.Error(err)
		}
	})
	return s
}

// token allows a user to enqueue into these queues.
func token(t testing.TB, user string, queues ...string) string {
	t.Helper()
	c := jwt.MapClaims{"weir": map[string]any{"enqueue": queues}}
	if user != "" {
		c["sub"] = user
	}
	return signed(t, c)
}

// signed returns a token with these claims, which is like no other.
func signed(t testing.TB, c jwt.MapClaims) string {
	t.Helper()
	c["exp"], c["jti"] = time.Now().Add(time.Hour).Unix(), time.Now().String()
	s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, c).SignedString(secret)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// answer is what a hub answers.
type answer struct {
	Status   int
	Body     string
	Header   http.Header
	Jobs     []result
	Code     string
	Error    string
	Hint     string
	ID       int64
	State    string
	Kind     string
	Args     json.RawMessage
	Priority int
	RunAt    string `json:"run_at"`
	Canceled bool   `json:"cancel_requested"`
}

type result struct {
	ID        int64
	Duplicate bool
}

// call sends a request with pairs of header names and values.
func (r *rig) call(hub int, method, path, token, body string, header ...string) answer {
	r.t.Helper()
	a, err := send(r.t.Context(), r.hubs[hub], method, path, token, body, header...)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func send(ctx context.Context, hub, method, path, token, body string, header ...string) (a answer, err error) {
	request, err := http.NewRequestWithContext(ctx, method, hub+path, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		return a, err
	}
	if len(b) > 0 {
		err = json.Unmarshal(b, &a)
	}
	a.Status, a.Body, a.Header = response.StatusCode, string(b), response.Header
	return a, err
}

// count returns what a statement counts.
func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(r.t.Context(), sql, args...).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// want fails the test if the answer has another status, or lacks a part.
func (a answer) want(t testing.TB, what string, status int, parts ...string) {
	t.Helper()
	if a.Status != status {
		t.Errorf("%s: %d %s, want %d", what, a.Status, a.Body, status)
	}
	for _, part := range parts {
		if !strings.Contains(a.Body, part) {
			t.Errorf("%s: %s lacks %q", what, a.Body, part)
		}
	}
}

// gathered makes requests at the same time, which gather: the first ones wait for a lock until all are on their way.
func (r *rig) gathered(requests int, request func(n int)) {
	r.t.Helper()
	tx, err := r.pool.Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := tx.Exec(r.t.Context(), `LOCK TABLE weir.job IN SHARE ROW EXCLUSIVE MODE`); err != nil { // the first ones wait, and the others gather
		r.t.Fatal(err)
	}
	var clients, sent sync.WaitGroup
	sent.Add(requests)
	for n := range requests {
		clients.Go(func() {
			sent.Done()
			request(n)
		})
	}
	sent.Wait()
	pgtest.Until(r.t, "some wait for the lock", func() bool {
		return r.count(`SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'weir.job'::regclass`) > 0
	})
	if err := tx.Rollback(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	clients.Wait()
}
