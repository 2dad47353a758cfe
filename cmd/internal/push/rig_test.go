package push_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// generous is longer than anything here takes on a busy machine.
const generous = time.Minute

// pushed is what an endpoint gets.
type pushed struct {
	ID       int64
	Queue    string
	Kind     string
	Args     struct{ N int }
	Attempt  int
	Token    string
	Callback string
	Enqueued time.Time `json:"enqueued_at"`

	header http.Header
	body   []byte
}

// webhookID is the id of a request, which all of its job have.
func (p pushed) webhookID() string { return fmt.Sprintf("job_%d_%d", p.ID, p.Enqueued.UnixMicro()) }

// endpoint is a service that gets jobs. It checks signatures with the library that endpoints use.
type endpoint struct {
	t       testing.TB
	secret  string
	server  *httptest.Server
	handle  func(http.ResponseWriter, *http.Request, pushed)
	mu      sync.Mutex
	secrets []string // any of which may have signed
	got     []pushed
	running int
	most    int // requests at once
}

func newSecret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return "whsec_" + base64.StdEncoding.EncodeToString(b)
}

func newService(t testing.TB, handle func(http.ResponseWriter, *http.Request, pushed)) *endpoint {
	t.Helper()
	e := &endpoint{t: t, secret: newSecret(), handle: handle}
	e.secrets = []string{e.secret}
	e.server = httptest.NewServer(e)
	t.Cleanup(func() {
		e.server.CloseClientConnections()
		e.server.Close()
	})
	return e
}

func (e *endpoint) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the hub has given up
	}
	p := pushed{header: r.Header, body: body}
	if err := json.Unmarshal(body, &p); err != nil {
		e.t.Errorf("the body is no job: %v: %s", err, body)
	}
	e.mu.Lock()
	good := false
	for _, secret := range e.secrets {
		good = good || verify(secret, body, r.Header) == nil
	}
	if !good {
		e.t.Errorf("a request is not signed with a secret of the endpoint: %v", r.Header)
	}
	e.got = append(e.got, p)
	e.running++
	e.most = max(e.most, e.running)
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.running--
		e.mu.Unlock()
	}()
	e.handle(rw, r, p)
}

func (e *endpoint) requests() []pushed {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]pushed(nil), e.got...)
}

func verify(secret string, body []byte, h http.Header) error {
	wh, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return err
	}
	return wh.Verify(body, h)
}

// rig is a database, a hub, and its file of endpoints.
type rig struct {
	t        testing.TB
	database string
	pool     *pgxpool.Pool
	file     string
	hub      *server.Server
	url      string
	listen   string // where the next hub listens
	log      pgtest.Log
}

// newRig starts a hub with this text as its file, in which HUB is its address.
func newRig(t testing.TB, file string) *rig {
	t.Helper()
	r := &rig{t: t, database: pgtest.Database(t), file: filepath.Join(t.TempDir(), "push.toml"), listen: "127.0.0.1:0"}
	r.pool = pgtest.Pool(t, r.database)
	if strings.Contains(file, "HUB") {
		r.listen = pgtest.Address(t)
		file = strings.ReplaceAll(file, "HUB", r.listen)
	}
	r.write(file)
	r.hub = r.start()
	r.listen = "127.0.0.1:0"
	r.url = "http://" + r.hub.HTTPAddr().String()
	return r
}

// start starts one more hub with the file.
func (r *rig) start() *server.Server {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), generous)
	defer cancel()
	s, err := server.Start(ctx, server.Config{
		Database: r.database, Name: r.t.Name(), ListenHTTP: r.listen, Jobs: true, PushFile: r.file, JobsLease: 3 * time.Second, Web: web.Config{}, Logger: r.log.Logger(), Drain: 5 * time.Second,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.stop(s) })
	return s
}

func (r *rig) stop(s *server.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), generous)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		r.t.Error(err)
	}
}

// write replaces the file, as a deployment does.
func (r *rig) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.file+".new", []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.file+".new", r.file); err != nil {
		r.t.Fatal(err)
	}
}

// of returns the part of the file for an endpoint; more is further lines.
func (e *endpoint) of(name, queues string, more ...string) string {
	return fmt.Sprintf("[endpoint.%s]\nurl = %q\nqueues = {%s}\nsecrets = [%q]\n%s\n", name, e.server.URL+"/jobs?key=of-the-endpoint", queues, e.secret, strings.Join(more, "\n"))
}

// enqueue enqueues n jobs, and returns their ids.
func (r *rig) enqueue(queue, kind string, n int) (ids []int64) {
	r.t.Helper()
	err := r.pool.QueryRow(r.t.Context(), `SELECT weir.enqueue_many(array_agg($1::text), array_agg($2::text), array_agg(jsonb_build_object('n', i))) FROM generate_series(1, $3::int) i`, queue, kind, n).Scan(&ids)
	if err != nil {
		r.t.Fatal(err)
	}
	return ids
}

// state is how a job stands.
type state struct {
	State, Output, Error string
	Attempt              int
	RunAt                *time.Time
}

func (r *rig) job(id int64) (s state) {
	r.t.Helper()
	err := r.pool.QueryRow(r.t.Context(), `SELECT state, coalesce(output, ''), coalesce(error, errors -> -1 ->> 'error', ''), attempt, run_at FROM weir.job_info($1)`, id).Scan(&s.State, &s.Output, &s.Error, &s.Attempt, &s.RunAt)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// until waits until a job is in a state.
func (r *rig) until(id int64, want string) (s state) {
	r.t.Helper()
	pgtest.Eventually(r.t, func() error {
		if s = r.job(id); s.State != want {
			return fmt.Errorf("job %d is %+v, want %s; the log: %s", id, s, want, r.log.String())
		}
		return nil
	})
	return s
}

// report sends a callback. Each change changes the request.
func (r *rig) report(hub, endpoint, secret string, body any, changes ...func(*http.Request)) (int, string) {
	r.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), generous)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, hub+"/v1/push/"+endpoint+"/callback", bytes.NewReader(b))
	if err != nil {
		r.t.Fatal(err)
	}
	signAt(r.t, request.Header, secret, "msg_1", time.Now(), b)
	for _, change := range changes {
		change(request)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, strings.TrimSpace(string(answer))
}

// signAt signs with the library that endpoints use.
func signAt(t testing.TB, h http.Header, secret, id string, at time.Time, body []byte) {
	t.Helper()
	wh, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := wh.Sign(id, at, body)
	if err != nil {
		t.Fatal(err)
	}
	h.Set(standardwebhooks.HeaderWebhookID, id)
	h.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	h.Set(standardwebhooks.HeaderWebhookSignature, signature)
}
