package weirui_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// rig is a UI on a database of its own.
type rig struct {
	*testing.T
	pool   *pgxpool.Pool
	client *weir.Client
	ui     *weirui.UI
	server *httptest.Server
	role   weirui.Role // of whoever asks
	user   string      // whoever that is
}

// Identify implements weirui.Access.
func (r *rig) Identify(http.ResponseWriter, *http.Request) (weirui.User, bool) {
	return weirui.User{Name: r.user, Role: r.role}, true
}

func newRig(t *testing.T, change ...func(*weirui.Config)) *rig {
	t.Helper()
	r := &rig{T: t, pool: pgtest.Pool(t, pgtest.Database(t)), role: weirui.Admin, user: "ada"}
	r.client = weir.NewClient(r.pool)
	c := weirui.Config{Databases: []weirui.Database{{Pool: r.pool}}, Access: r, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&c)
	}
	ui, err := weirui.New(c)
	if err != nil {
		t.Fatal(err)
	}
	r.ui = ui
	mux := http.NewServeMux()
	mux.Handle("/some/where/", http.StripPrefix("/some/where", ui))
	r.server = httptest.NewServer(mux)
	t.Cleanup(r.server.Close)
	return r
}

// ask sends a request to a path of the UI, and returns the answer with its text.
func (r *rig) ask(method, path, body string, header ...string) (*http.Response, string) {
	r.Helper()
	request, err := http.NewRequestWithContext(r.Context(), method, r.server.URL+"/some/where/"+path, strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	if method == "POST" {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request)
	if err != nil {
		r.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		r.Fatal(err)
	}
	return answer, string(text)
}

// page returns a page, which must be there.
func (r *rig) page(path string) string {
	r.Helper()
	answer, text := r.ask("GET", path, "")
	if answer.StatusCode != http.StatusOK {
		r.Fatalf("GET %s: %s: %s", path, answer.Status, text)
	}
	return text
}

// data decodes a page's JSON.
func (r *rig) data(path string, into any) {
	r.Helper()
	answer, text := r.ask("GET", path, "", "Accept", "application/json")
	if answer.StatusCode != http.StatusOK {
		r.Fatalf("GET %s: %s: %s", path, answer.Status, text)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		r.Fatalf("GET %s: %v in %s", path, err, text)
	}
}

// do does an action, which must succeed, and returns what it says.
func (r *rig) do(path string, form url.Values) string {
	r.Helper()
	answer, text := r.ask("POST", path, form.Encode(), "Accept", "application/json")
	var said struct{ Said string }
	if answer.StatusCode != http.StatusOK || json.Unmarshal([]byte(text), &said) != nil {
		r.Fatalf("POST %s: %s: %s", path, answer.Status, text)
	}
	return said.Said
}

type note struct {
	Text     string `json:"text"`
	Password string `json:"password,omitempty"`
}

func (note) Kind() string { return "note" }

// enqueue enqueues a job, and returns its id.
func (r *rig) enqueue(args weir.Args, o *weir.Options) int64 {
	r.Helper()
	j, err := r.client.Enqueue(r.Context(), args, o)
	if err != nil {
		r.Fatal(err)
	}
	return j.ID
}

// fail works all jobs of a queue, each of which fails for good with the error.
func (r *rig) fail(queue string, failure func(note) error) {
	r.Helper()
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(_ context.Context, j *weir.Job[note]) error { return weir.Fail(failure(j.Args)) })
	w, err := r.client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{queue: 10}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.Fatal(err)
	}
	ctx, stop := context.WithCancel(r.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	pgtest.Eventually(r.T, func() error {
		page, err := r.client.Jobs(r.Context(), weir.JobsParams{Queue: queue, States: []weir.State{weir.StateAvailable, weir.StateRunning}})
		if err == nil && len(page.Jobs) > 0 {
			err = fmt.Errorf("job %d has not ended", page.Jobs[0].ID)
		}
		return err
	})
	stop()
	if err := <-done; err != nil {
		r.Fatal(err)
	}
}
