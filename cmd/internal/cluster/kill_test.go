package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
)

// A hub in a separate process writes lines to its standard output: "address" and where it listens; "role", its role and the number of hubs when
// they change; "message", the time and the text of each message. It ends when its standard input does.

const childVariable = "WEIR_TEST_CLUSTER_CHILD"

type childConfig struct {
	Database, Name, At string
	Routes             []string
}

func runChild() int {
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func child() error {
	var config childConfig
	if err := json.Unmarshal([]byte(os.Getenv(childVariable)), &config); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	pool, err := pgxpool.New(ctx, config.At)
	if err != nil {
		return err
	}
	defer pool.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	c, err := Start(ctx, Config{
		Source: hub.NewLog(store.New(pool, 0), nil), Database: config.Database, Name: config.Name, Logger: log,
		Embedded: &Embedded{Listen: "127.0.0.1:-1", Routes: config.Routes, Secret: secret},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	out := &output{}
	out.line("address %s", c.Address())
	h := hub.New(hub.Config{Source: c, Logger: log})
	ended := make(chan struct{})
	go func() { defer close(ended); h.Run(ctx) }()
	s, err := h.Join(out, hub.Options{MaxBytes: 1 << 28})
	if err != nil {
		return err
	}
	if err := s.Subscribe(ctx, hub.Pattern(">")); err != nil {
		return err
	}
	every := time.NewTicker(5 * time.Millisecond)
	defer every.Stop()
	for previous := ""; ctx.Err() == nil; {
		s := c.Stats()
		if now := fmt.Sprintf("role %s %d", s.Role, s.Hubs); now != previous {
			out.line("%s", now)
			previous = now
		}
		select {
		case <-every.C:
		case <-ctx.Done():
		}
	}
	<-ended
	return nil
}

// output is a sink that writes to standard output.
type output struct{ mu sync.Mutex }

func (o *output) line(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Printf(format+"\n", args...)
}

func (o *output) Deliver(events []hub.Event) error {
	for _, e := range events {
		o.line("message %d %s", time.Now().UnixNano(), text(e.Message))
	}
	return nil
}

func (o *output) Close(error) {}

// process is a hub in a separate process.
type process struct {
	cmd *exec.Cmd
	end func()

	mu      sync.Mutex
	address string
	role    string
	texts   []string
	came    []time.Time
}

// spawn starts a hub with an embedded NATS server in a separate process, and waits until it listens.
func (s *site) spawn(name string, routes ...string) *process {
	s.t.Helper()
	config, err := json.Marshal(childConfig{Database: s.name, Name: name, At: s.pool.Config().ConnString(), Routes: routes})
	if err != nil {
		s.t.Fatal(err)
	}
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(config))
	p.cmd.Stderr = prefixed{s.t.Output(), name}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	var read sync.WaitGroup
	read.Go(func() { p.read(out) })
	var once sync.Once
	p.end = func() {
		once.Do(func() {
			_ = in.Close()
			read.Wait()
			_ = p.cmd.Wait() // fails if it was killed
		})
	}
	s.t.Cleanup(p.end)
	until(s.t, name+" listens", func() bool { address, _ := p.state(); return address != "" })
	return p
}

// prefixed writes a child's log with its name.
type prefixed struct {
	io.Writer
	name string
}

func (w prefixed) Write(b []byte) (int, error) {
	_, err := fmt.Fprintf(w.Writer, "%s: %s", w.name, b)
	return len(b), err
}

func (p *process) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		p.mu.Lock()
		switch word {
		case "address":
			p.address = rest
		case "role":
			p.role = rest
		case "message":
			var nano int64
			if _, err := fmt.Sscan(rest, &nano); err == nil {
				_, message, _ := strings.Cut(rest, " ")
				p.texts, p.came = append(p.texts, message), append(p.came, time.Unix(0, nano))
			}
		}
		p.mu.Unlock()
	}
}

func (p *process) state() (address, role string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address, p.role
}

func (p *process) got() ([]string, []time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.texts[:len(p.texts):len(p.texts)], p.came[:len(p.came):len(p.came)]
}

// TestKilledReaderIsReplacedWithinASecond: when the hub that reads is killed by SIGKILL while messages flow, the others continue within a second
// and miss nothing, until only one hub is left.
func TestKilledReaderIsReplacedWithinASecond(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.spawn("one")
	to, _ := first.state()
	hubs := []*process{first, s.spawn("two", to), s.spawn("three", to)}

	stop := make(chan struct{})
	var publishing sync.WaitGroup
	publishing.Go(func() {
		every := time.NewTicker(5 * time.Millisecond)
		defer every.Stop()
		for i := 0; ; i++ {
			select {
			case <-every.C:
			case <-stop:
				return
			}
			if _, err := s.pool.Exec(t.Context(), `SELECT weir.publish('numbers', $1)`, fmt.Sprint(i)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for len(hubs) > 1 {
		reader := -1
		until(t, fmt.Sprintf("one of %d hubs reads, the others follow, and messages arrive", len(hubs)), func() bool {
			reader = -1
			followers := 0
			for i, p := range hubs {
				switch _, role := p.state(); role {
				case fmt.Sprintf("reading %d", len(hubs)):
					reader = i
				case fmt.Sprintf("following %d", len(hubs)):
					followers++
				}
				if texts, _ := p.got(); len(texts) == 0 {
					return false
				}
			}
			return reader >= 0 && followers == len(hubs)-1
		})
		killed := time.Now()
		if err := hubs[reader].cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		hubs[reader].end()
		hubs = append(hubs[:reader:reader], hubs[reader+1:]...)
		for _, p := range hubs {
			until(t, "messages that were published two seconds after the kill", func() bool {
				_, came := p.got()
				return came[len(came)-1].Sub(killed) > 2*time.Second
			})
			_, came := p.got()
			longest := time.Duration(0)
			for i := 1; i < len(came); i++ {
				if came[i].After(killed) {
					longest = max(longest, came[i].Sub(came[i-1]))
				}
			}
			t.Logf("%d hubs are left; the longest pause at one was %v", len(hubs), longest.Round(time.Millisecond))
			if longest > patience/2 { // about one second on an idle machine
				t.Errorf("no message arrived for %v", longest)
			}
		}
	}
	close(stop)
	publishing.Wait()
	s.publish("mark", "")
	until(t, "the end is in a tick", func() bool { return len(s.log(filters(t, "mark")...)) == 1 })
	want := s.log(filters(t, ">")...)
	for _, p := range hubs {
		until(t, "the end", func() bool { texts, _ := p.got(); return strings.Contains(texts[len(texts)-1], " mark ") })
		got, _ := p.got()
		from := 0 // it subscribed while messages flowed
		for from < len(want) && want[from] != got[0] {
			from++
		}
		same(t, "survivor", got, want[from:])
	}
}
