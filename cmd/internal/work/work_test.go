package work_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) {
	if database := os.Getenv(childOf); database != "" {
		serveHub(database)
		return
	}
	pgtest.Main(m)
}

// generous is longer than anything here takes on a busy machine.
const generous = 60 * time.Second

// site is a hub that serves jobs, and its database.
type site struct {
	t        *testing.T
	database string
	pool     *pgxpool.Pool
	server   *server.Server
	url      string
}

func newSite(t *testing.T, change func(*server.Config)) *site {
	t.Helper()
	s := &site{t: t, database: pgtest.Database(t)}
	s.pool = pgtest.Pool(t, s.database)
	s.server = s.hub(change)
	s.url = "http://" + s.server.HTTPAddr().String()
	return s
}

// hub starts a hub on the site's database.
func (s *site) hub(change func(*server.Config)) *server.Server {
	s.t.Helper()
	c := server.Config{Database: s.database, Name: "hub", ListenHTTP: "127.0.0.1:0", Jobs: true, Logger: slog.New(slog.DiscardHandler), Web: web.Config{Anonymous: true}}
	if change != nil {
		change(&c)
	}
	h, err := server.Start(s.t.Context(), c)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), generous)
		defer cancel()
		if err := h.Stop(ctx); err != nil {
			s.t.Error(err)
		}
	})
	return h
}

// at returns the site as seen through another hub.
func (s *site) at(h *server.Server) *site {
	other := *s
	other.server, other.url = h, "http://"+h.HTTPAddr().String()
	return &other
}

type job struct {
	Token, Queue, Kind string
	ID                 int64
	Attempt            int
	Args               json.RawMessage
	Checkpoint         json.RawMessage
}

type interrupted struct{ Token, Reason string }

type answer struct {
	Worker   string
	Lease    float64
	Jobs     []job
	Cancel   []interrupted
	Quiet    bool
	Warnings []string
	Results  []struct {
		Token, Refusal, Detail string
		Recorded               bool
	}
	Ended bool
	Code  string
	Error string
}

// call sends a request with a JSON body, and returns the status and the answer.
func (s *site) call(method, path string, body any) (int, answer) {
	s.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), generous)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Error(err)
		return 0, answer{}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Error(err)
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		s.t.Errorf("%s: %s", path, text)
	}
	return response.StatusCode, a
}

type m = map[string]any

// take takes jobs.
func (s *site) take(body m) answer {
	s.t.Helper()
	status, a := s.call("POST", "/v1/work/take", body)
	if status != 200 {
		s.t.Fatalf("take: %d %+v", status, a)
	}
	return a
}

// record records ends, and returns their refusals.
func (s *site) record(ends ...m) []string {
	s.t.Helper()
	status, a := s.call("POST", "/v1/work/record", m{"ends": ends})
	if status != 200 || len(a.Results) != len(ends) {
		s.t.Fatalf("record: %d %+v", status, a)
	}
	refusals := make([]string, len(ends))
	for i, r := range a.Results {
		if refusals[i] = r.Refusal; r.Recorded != (r.Refusal == "") {
			s.t.Errorf("%+v", r)
		}
	}
	return refusals
}

func (s *site) enqueue(queue, kind, args string) (id int64) {
	s.t.Helper()
	if err := s.pool.QueryRow(context.Background(), `SELECT weir.enqueue($1, $2, $3)`, queue, kind, args).Scan(&id); err != nil {
		s.t.Fatal(err)
	}
	return id
}

// state returns a job's state, attempt, error and output.
func (s *site) state(id int64) string {
	var text string
	if err := s.pool.QueryRow(context.Background(), `SELECT concat_ws(' ', state, attempt, error, output) FROM weir.job_info($1)`, id).Scan(&text); err != nil {
		return err.Error()
	}
	return text
}

// until waits until a job has a state.
func (s *site) until(id int64, want string) {
	s.t.Helper()
	pgtest.Until(s.t, fmt.Sprintf("job %d is %s", id, want), func() bool { return strings.HasPrefix(s.state(id), want) })
}

// TestJobsAreTakenAndRecordedOverHTTP: a worker gets a job that is enqueued while it waits, with all of its fields, and its end is what it says.
func TestJobsAreTakenAndRecordedOverHTTP(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	taken := make(chan answer, 1)
	go func() { taken <- s.take(m{"queues": m{"mail": 4}, "wait": 50}) }()
	ok := s.enqueue("mail", "welcome", `{"account": 7}`)
	a := pgtest.Receive(t, taken, "take answers")
	if len(a.Jobs) != 1 || a.Jobs[0].ID != ok || a.Jobs[0].Kind != "welcome" || string(a.Jobs[0].Args) != `{"account":7}` || a.Jobs[0].Attempt != 1 || a.Worker == "" || a.Lease != 30 {
		t.Fatalf("%+v", a)
	}
	if r := s.record(m{"token": a.Jobs[0].Token, "output": "sent"}); r[0] != "" {
		t.Fatal(r)
	}
	s.until(ok, "completed 1 sent")
	failed, snoozed, final, odd := s.enqueue("mail", "a", "{}"), s.enqueue("mail", "b", "{}"), s.enqueue("mail", "c", "{}"), s.enqueue("mail", "d", "{}")
	tokens := map[int64]string{}
	for len(tokens) < 4 {
		for _, j := range s.take(m{"queues": m{"mail": 4}, "worker": a.Worker, "held": values(tokens)}).Jobs {
			tokens[j.ID] = j.Token
		}
	}
	r := s.record(m{"token": tokens[failed], "outcome": "failed", "error": "no\u0000pe"}, m{"token": "nonsense"}, m{"token": tokens[snoozed], "outcome": "snoozed", "delay": 3600},
		m{"token": tokens[final], "outcome": "failed", "error": "never", "final": true}, m{"token": tokens[odd], "outcome": "odd"}, m{"token": tokens[odd], "more": 1}, m{"token": tokens[odd], "output": m{"n": 1}})
	if got := strings.Join(r, ","); got != ",invalid,,,invalid,invalid," {
		t.Errorf("refusals %q", got)
	}
	s.until(failed, "scheduled 2 no\uFFFDpe")
	s.until(snoozed, "scheduled 1")
	s.until(final, "failed 1 never")
	s.until(odd, `completed 1 {"n":1}`)
}

func values(m map[int64]string) []string {
	all := []string{}
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

// socket is a session over a WebSocket.
type socket struct {
	t        *testing.T
	conn     *websocket.Conn
	frames   chan frame // what it has received; closed when the connection has ended
	warnings chan string
	pings    atomic.Int32 // that it got
	why      error        // why it has ended
}

type frame struct {
	Type, Worker, Code, Error string
	ID                        any
	Jobs                      []job
	Attempts                  []interrupted
	Warnings                  []string
	Results                   []struct {
		Token, Refusal string
		Recorded       bool
	}
}

// connect connects, and opens no session yet.
func (s *site) connect(query string) *socket {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), generous)
	defer cancel()
	k := &socket{t: s.t, frames: make(chan frame, 1000), warnings: make(chan string, 1000)}
	conn, _, err := websocket.Dial(ctx, strings.Replace(s.url, "http", "ws", 1)+"/v1/work/ws"+query, &websocket.DialOptions{
		Subprotocols:   []string{"weir.work.v1"},
		OnPingReceived: func(context.Context, []byte) bool { k.pings.Add(1); return true },
	})
	if err != nil {
		s.t.Fatal(err)
	}
	conn.SetReadLimit(64 << 20)
	s.t.Cleanup(func() { _ = conn.CloseNow() })
	k.conn = conn
	go k.receive()
	return k
}

func (s *site) dial(open m) (*socket, frame) {
	s.t.Helper()
	k := s.connect("")
	open["type"] = "open"
	k.send(open)
	f := k.next()
	if f.Type != "opened" {
		s.t.Fatalf("%+v", f)
	}
	return k, f
}

func (k *socket) send(v any) {
	k.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		k.t.Fatal(err)
	}
	k.write(b)
}

func (k *socket) write(b []byte) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), generous)
	defer cancel()
	if err := k.conn.Write(ctx, websocket.MessageText, b); err != nil {
		k.t.Fatal(err)
	}
}

// receive reads, and so answers pings, until the connection ends.
func (k *socket) receive() {
	defer close(k.frames)
	for {
		_, b, err := k.conn.Read(context.Background())
		var f frame
		if err == nil {
			err = json.Unmarshal(b, &f)
		}
		if err != nil {
			k.why = err
			return
		}
		if f.Type == "warning" { // whenever a test takes its time to enqueue the first job
			for _, text := range f.Warnings {
				k.warnings <- text
			}
			continue
		}
		k.frames <- f
	}
}

func (k *socket) next() frame {
	k.t.Helper()
	select {
	case f, ok := <-k.frames:
		if !ok {
			k.t.Fatal(k.why)
		}
		return f
	case <-time.After(generous):
		k.t.Fatal("there is no frame")
	}
	return frame{}
}

// ended waits until the connection has ended, and returns its code.
func (k *socket) ended() websocket.StatusCode {
	for range k.frames {
	}
	var c websocket.CloseError
	errors.As(k.why, &c)
	return c.Code
}

// TestJobsAreWorkedOverAWebSocket: a session has as many jobs at once as it has slots, and gets another when one was recorded.
func TestJobsAreWorkedOverAWebSocket(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	const n = 100
	for range n {
		s.enqueue("mail", "welcome", "{}")
	}
	k, _ := s.dial(m{"queues": m{"mail": 7}})
	held, recorded := map[string]bool{}, 0
	for recorded < n {
		f := k.next()
		switch f.Type {
		case "jobs":
			var ends []m
			for _, j := range f.Jobs {
				if held[j.Token] = true; len(held) > 7 {
					t.Fatalf("it has %d jobs, with 7 slots", len(held))
				}
				ends = append(ends, m{"token": j.Token})
			}
			for _, j := range f.Jobs {
				delete(held, j.Token)
			}
			k.send(m{"type": "record", "id": 1, "ends": ends})
		case "recorded":
			for _, r := range f.Results {
				if !r.Recorded {
					t.Fatalf("%+v", r)
				}
				recorded++
			}
		default:
			t.Fatalf("%+v", f)
		}
	}
	k.send(m{"type": "stop", "id": "bye"})
	if f := k.next(); f.Type != "stopped" || f.ID != "bye" {
		t.Errorf("%+v", f)
	}
	if code := k.ended(); code != websocket.StatusNormalClosure {
		t.Errorf("closed with %d", code)
	}
}
