package proof

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"os"
	process "os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
)

// partOf is the environment variable that makes this test binary play a part in the torture test, in a separate process that can be killed.
const partOf = "WEIR_TORTURE"

// part specifies what the process does. It reports what happens on its standard output, a line at a time, and ends when its standard input does.
type part struct {
	Do       string // work, serve or subscribe
	Database string
	Lease    time.Duration
	Declares bool // it may declare schedules
	Hubs     []string
	Channels [][]string      // for each subscription
	After    []weir.Position // for each subscription
}

// torn is a job of the torture test.
type torn struct {
	Key   string
	Tx    bool // the job completes in a transaction with an effect
	Takes int  // duration in milliseconds
	Holds bool // the job holds a connection of its worker's pool in the meantime
}

func (torn) Kind() string { return "torn" }

// errTorture fails an attempt.
var errTorture = errors.New("this attempt fails")

// luck returns a number below n that depends only on the job's attempt.
func luck(key string, attempt, putOff, n int) int {
	h := fnv.New32a()
	fmt.Fprint(h, key, " ", attempt, " ", putOff)
	return int(h.Sum32() % uint32(n))
}

var saying sync.Mutex

// say reports something to the test before anything else happens.
func say(words ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Fprintln(os.Stdout, words...)
}

// playPart is the main function of the process.
func playPart(text string) error {
	var p part
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	switch p.Do {
	case "work":
		return p.work(ctx)
	case "serve":
		return p.serve(ctx)
	default:
		return p.subscribe(ctx)
	}
}

// work runs jobs.
func (p part) work(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(p.Database)
	if err != nil {
		return err
	}
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[torn]) error {
		say("start", job.ID, job.Attempt, job.Args.Key)
		defer say("end", job.ID, job.Attempt)
		return runTorn(ctx, pool, job)
	})
	handleFeatures(handlers, pool)
	client := weir.NewClient(pool).WithCodec(tortureCodec(), encrypted...)
	if p.Declares {
		declare(ctx, client)
	}
	worker, err := client.NewWorker(weir.WorkerConfig{
		Handlers: handlers, Queues: map[string]int{"torture": 8, "long": 4, "only": 8, "shared": 6, "order": 6}, Lease: p.Lease, StopTimeout: time.Second, Name: "torture",
		Retry: func(int, error) time.Duration { return 100 * time.Millisecond }, Hubs: p.Hubs,
	})
	if err != nil {
		return err
	}
	again := time.NewTicker(100 * time.Millisecond) // repeats a start that failed
	for ctx.Err() == nil {
		if err := worker.Run(ctx); err != nil {
			slog.Warn("the worker", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-again.C:
		}
	}
	return nil
}

func runTorn(ctx context.Context, pool *pgxpool.Pool, job *weir.Job[torn]) error {
	takes := func(d time.Duration) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	switch luck(job.Args.Key, job.Attempt, job.PutOff, 40) {
	case 0, 1, 2, 3:
		return errTorture
	case 4:
		return weir.Snooze(50 * time.Millisecond)
	}
	if job.Args.Holds {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
	}
	if job.Args.Takes > 0 {
		if err := takes(time.Duration(job.Args.Takes) * time.Millisecond); err != nil {
			return err
		}
	}
	if !job.Args.Tx {
		return nil
	}
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO effect (key) VALUES ($1)`, job.Args.Key); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, countEffect, job.ID); err != nil {
			return err
		}
		slow := luck(job.Args.Key, job.Attempt, -1, 20)
		if slow == 0 {
			if err := takes(300 * time.Millisecond); err != nil {
				return err
			}
		}
		err := job.CompleteTx(ctx, tx)
		if slow == 1 && err == nil {
			err = takes(300 * time.Millisecond) // the completion is not committed yet
		}
		return err
	})
}

// serve runs a hub.
func (p part) serve(ctx context.Context) error {
	again := time.NewTicker(50 * time.Millisecond) // repeats a start that failed, since a hub needs its database
	for {
		s, err := server.Start(ctx, server.Config{Database: p.Database, ListenHTTP: "127.0.0.1:0", Name: "torture " + strconv.Itoa(os.Getpid()), Web: web.Config{Anonymous: true}})
		if err == nil {
			say("serves", s.HTTPAddr().String())
			<-ctx.Done()
			bounded, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			return s.Stop(bounded)
		}
		slog.Warn("the hub", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}

// subscribe reports every message and gap of its subscriptions.
func (p part) subscribe(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	for i, channels := range p.Channels {
		all.Go(func() {
			again := time.NewTicker(50 * time.Millisecond)
			var sub *weir.Subscription
			for sub == nil {
				bounded, cancel := context.WithTimeout(ctx, patience)
				var err error
				if sub, err = weir.Subscribe(bounded, weir.SubscribeConfig{Channels: channels, Hubs: p.Hubs, After: p.After[i]}); err != nil {
					slog.Warn("the subscriber", "error", err)
				}
				cancel()
				select {
				case <-ctx.Done():
					return
				case <-again.C:
				}
			}
			defer sub.Close()
			say("subscribed", i)
			for event, err := range sub.All(ctx) {
				switch {
				case err != nil:
					if ctx.Err() == nil {
						say("refused", i, err)
					}
				case event.Gap != nil:
					say("gap", i, event.Gap.To, event.Gap.From, event.Gap.Reason)
				default:
					say("message", i, event.Message.Position, string(event.Message.Payload))
				}
			}
		})
	}
	return nil
}

// child is a part that runs in a separate process.
type child struct {
	command *process.Cmd
	stdin   io.Closer
	said    *tailed
	gone    chan struct{} // closed when it has ended and all its output was handled
}

// play starts a part. heard is called for each line of its output.
func (w *torture) play(p part, heard func(c *child, words []string)) *child {
	text, err := json.Marshal(p)
	if err != nil {
		w.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		w.Fatal(err)
	}
	c := &child{command: process.Command(exe), said: &tailed{}, gone: make(chan struct{})}
	c.command.Env = append(os.Environ(), partOf+"="+string(text))
	c.command.Stderr = c.said
	out, err := c.command.StdoutPipe()
	if err == nil {
		c.stdin, err = c.command.StdinPipe()
	}
	if err == nil {
		err = c.command.Start()
	}
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		c.kill()
		if w.Failed() {
			w.Logf("the end of the log of a process with the part %s:\n%s", p.Do, c.said)
		}
	})
	go func() { // ends with the process
		for lines := bufio.NewScanner(out); lines.Scan(); {
			heard(c, strings.SplitN(lines.Text(), " ", 4))
		}
		_ = c.command.Wait()
		close(c.gone)
	}()
	return c
}

// kill kills a process with SIGKILL.
func (c *child) kill() {
	_ = c.command.Process.Kill()
	<-c.gone
}

// tailed keeps the end of what is written to it.
type tailed struct {
	mu   sync.Mutex
	text []byte
}

func (k *tailed) Write(text []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.text = append(k.text, text...)
	k.text = k.text[max(0, len(k.text)-3000):]
	return len(text), nil
}

func (k *tailed) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return string(k.text)
}
