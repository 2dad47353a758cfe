package work_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/sleep"
)

// childOf, in the environment, makes this program a hub on that database, to be killed.
const childOf = "WEIR_TEST_HUB_DATABASE"

// serveHub runs a hub until standard input ends. It prints its address.
func serveHub(database string) {
	h, err := server.Start(context.Background(), server.Config{
		Database: database, Name: fmt.Sprintf("child %d", os.Getpid()), ListenHTTP: "127.0.0.1:0", Jobs: true, JobsLease: 3 * time.Second,
		Logger: slog.New(slog.DiscardHandler), Web: web.Config{Anonymous: true},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(h.HTTPAddr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = h.Stop(context.Background())
}

// child is a hub in a process of its own.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
	url string
}

func startChild(t *testing.T, database string) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childOf+"="+database)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return &child{cmd, in, "http://" + strings.TrimSpace(line)}
}

// hubs are hubs behind a load balancer that passes each call to any of them.
type hubs struct {
	mu  sync.Mutex
	all []*child
}

func (h *hubs) any() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all[rand.IntN(len(h.all))].url
}

// post sends a request to any hub; an error means that its answer is not known.
func (h *hubs) post(ctx context.Context, what string, body m) (a answer, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.any()+"/v1/work/"+what, bytes.NewReader(b))
	if err != nil {
		return a, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	if b, err = io.ReadAll(response.Body); err != nil {
		return a, err
	}
	if response.StatusCode != http.StatusOK {
		return a, fmt.Errorf("%s: %s", response.Status, b)
	}
	return a, json.Unmarshal(b, &a)
}

// TestNothingIsLostThoughHubsAndWorkersAreKilled: hubs are killed, and workers vanish with what they hold, while each call may reach any hub: every job completes, and none is recorded twice.
func TestNothingIsLostThoughHubsAndWorkersAreKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t, shortLease)
	const part, workers, enough = 600, 6, 3
	jobs := 0
	enqueue := func() {
		t.Helper()
		if _, err := s.pool.Exec(t.Context(), `SELECT weir.enqueue_many(queue => array_agg('q' || n % 3), kind => array_agg('any'::text), args => array_agg('{}'::jsonb)) FROM generate_series(1, $1) n`, part); err != nil {
			t.Fatal(err)
		}
		jobs += part
	}
	enqueue()
	h := &hubs{}
	for range 3 {
		h.all = append(h.all, startChild(t, s.database))
	}
	ctx, stop := context.WithTimeout(t.Context(), 4*time.Minute)
	defer stop()
	recorded := &tally{jobs: map[string]int64{}, ended: map[int64]map[string]bool{}}
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				if i%2 == 0 {
					h.takeFor(ctx, recorded)
				} else {
					h.socketFor(ctx, recorded)
				}
			}
		})
	}
	var kills atomic.Int64
	all.Go(func() {
		for sleep.For(ctx, 700*time.Millisecond) {
			fresh := startChild(t, s.database)
			h.mu.Lock()
			i := rand.IntN(len(h.all))
			old := h.all[i]
			h.all[i] = fresh
			h.mu.Unlock()
			_ = old.cmd.Process.Kill()
			_ = old.cmd.Wait()
			kills.Add(1)
		}
	})
	left := func() (n int) {
		if err := s.pool.QueryRow(ctx, `SELECT count(*) FROM generate_series(1, $1) id, weir.job_info(id) j WHERE j.state <> 'completed'`, jobs).Scan(&n); err != nil {
			return -1
		}
		return n
	}
	begin, n := time.Now(), left()
	for ctx.Err() == nil {
		if n == 0 {
			if kills.Load() >= enough && recorded.haveVanished() >= enough {
				break
			}
			enqueue() // chance has it that few were killed yet
		}
		sleep.For(ctx, time.Second)
		n = left()
	}
	stop()
	all.Wait()
	for _, c := range h.all {
		_ = c.in.Close()
		_ = c.cmd.Wait()
	}
	t.Logf("%d jobs in %s: %d hubs were killed, and %d workers vanished", jobs, time.Since(begin).Round(time.Second), kills.Load(), recorded.vanished)
	if n != 0 {
		t.Errorf("%d jobs have not completed", n)
	}
	if kills.Load() < enough || recorded.vanished < enough {
		t.Error("too few were killed for the test to mean anything")
	}
	if len(recorded.ended) < jobs/2 { // of the others, the answer was lost
		t.Errorf("only %d jobs were said to be recorded", len(recorded.ended))
	}
	for id, tokens := range recorded.ended {
		if len(tokens) > 1 {
			t.Errorf("job %d was recorded as completed in %d attempts", id, len(tokens))
		}
	}
}

// tally keeps which attempts were said to be recorded.
type tally struct {
	mu       sync.Mutex
	jobs     map[string]int64          // by token
	ended    map[int64]map[string]bool // tokens of each job
	vanished int
}

func (t *tally) haveVanished() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.vanished
}

func (t *tally) got(j job) {
	t.mu.Lock()
	t.jobs[j.Token] = j.ID
	t.mu.Unlock()
}

func (t *tally) add(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := t.jobs[token]
	if t.ended[id] == nil {
		t.ended[id] = map[string]bool{}
	}
	t.ended[id][token] = true
}

func (t *tally) vanish() {
	t.mu.Lock()
	t.vanished++
	t.mu.Unlock()
}

var wanted = m{"q0": 2, "q1": 2, "q2": 2}

// takeFor works by calls of take, as a worker should, until it vanishes.
func (h *hubs) takeFor(ctx context.Context, recorded *tally) {
	worker, held := "", map[string]job{}
	for ctx.Err() == nil {
		tokens := []string{}
		for token := range held {
			tokens = append(tokens, token)
		}
		a, err := h.post(ctx, "take", m{"worker": worker, "queues": wanted, "held": tokens, "wait": 1})
		if err != nil {
			continue
		}
		worker = a.Worker
		for _, c := range a.Cancel {
			delete(held, c.Token)
		}
		for _, j := range a.Jobs {
			held[j.Token] = j
			recorded.got(j)
		}
		if rand.IntN(30) == 0 {
			recorded.vanish()
			return
		}
		var ends []m
		for token := range held {
			if rand.IntN(3) > 0 {
				ends = append(ends, m{"token": token})
			}
		}
		if len(ends) == 0 {
			continue
		}
		r, err := h.post(ctx, "record", m{"ends": ends})
		if err != nil {
			continue // it is recorded again
		}
		for _, one := range r.Results {
			if one.Recorded {
				recorded.add(one.Token)
			}
			if one.Refusal != "unavailable" && one.Refusal != "busy" {
				delete(held, one.Token)
			}
		}
	}
}

// socketFor works over WebSockets until it vanishes.
func (h *hubs) socketFor(ctx context.Context, recorded *tally) {
	worker, held := "", map[string]job{}
	for ctx.Err() == nil {
		err := h.session(ctx, &worker, held, recorded)
		if errors.Is(err, errVanished) {
			recorded.vanish()
			return
		}
	}
}

var errVanished = errors.New("vanished")

func (h *hubs) session(ctx context.Context, worker *string, held map[string]job, recorded *tally) error {
	soon, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, _, err := websocket.Dial(soon, strings.Replace(h.any(), "http", "ws", 1)+"/v1/work/ws", &websocket.DialOptions{Subprotocols: []string{"weir.work.v1"}})
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseNow() }()
	tokens := []string{}
	for token := range held {
		tokens = append(tokens, token)
	}
	send := func(v m) {
		b, _ := json.Marshal(v)
		_ = conn.Write(ctx, websocket.MessageText, b)
	}
	send(m{"type": "open", "worker": *worker, "queues": wanted, "held": tokens})
	end := func() {
		var ends []m
		for token := range held {
			ends = append(ends, m{"token": token})
		}
		if len(ends) > 0 {
			send(m{"type": "record", "id": 1, "ends": ends})
		}
	}
	for {
		_, b, err := conn.Read(ctx)
		if err != nil {
			return err
		}
		var f frame
		if err := json.Unmarshal(b, &f); err != nil {
			return err
		}
		switch f.Type {
		case "opened":
			*worker = f.Worker
			end()
		case "jobs":
			for _, j := range f.Jobs {
				held[j.Token] = j
				recorded.got(j)
			}
			switch rand.IntN(30) {
			case 0:
				return errVanished
			case 1:
				return nil // a connection that is lost
			}
			end()
		case "cancel":
			for _, c := range f.Attempts {
				delete(held, c.Token)
			}
		case "recorded":
			for _, one := range f.Results {
				if one.Recorded {
					recorded.add(one.Token)
				}
				if one.Refusal != "unavailable" && one.Refusal != "busy" {
					delete(held, one.Token)
				}
			}
		}
	}
}
