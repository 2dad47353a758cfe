package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/binaries"
	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/ui"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/schema"
	"github.com/weir-pg/weir/weirui"
)

const (
	devDir      = ".weir"
	devDatabase = "weir"
	devQueue    = "demo"
)

type devCmd struct {
	Port     int `default:"5433" empty:"ok" help:"Port of PostgreSQL; 0: any free port."`
	PGPort   int `name:"hub-pg-port" default:"6543" empty:"ok" help:"Port on which the hub serves LISTEN; 0: any free port."`
	HTTPPort int `name:"hub-http-port" default:"8080" empty:"ok" help:"Port on which the hub serves WebSocket and SSE; 0: any free port."`
}

func (devCmd) Help() string {
	return `It runs until Ctrl-C and stores its data in .weir in the current directory. While it runs, other weir commands in that directory use its database by default. Its worker works only the queue demo, so your own jobs wait for your own workers.

Example:

    weir dev --port 0 --hub-pg-port 0 --hub-http-port 0`
}

// hello is the job that the worker of weir dev runs.
type hello struct {
	Name string `json:"name"`
}

func (hello) Kind() string { return "hello" }

func (c *devCmd) Run(ctx context.Context, s *streams) (err error) {
	p := newProgress(s.err)
	defer p.done()
	server, err := c.start(ctx, p)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if stopErr := server.Stop(bounded); err == nil {
			err = stopErr
		}
		if err == nil {
			fmt.Fprintln(s.err, "weir: stopped; the data stays in "+devDir)
		}
	}()
	url := server.URL(devDatabase)
	if err := prepareDatabase(ctx, server.URL("postgres"), url); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("open a pool of connections: %w", err)
	}
	defer pool.Close()
	log := newLogger(p, slog.LevelInfo)
	hub, err := c.startHub(ctx, url, log)
	if err != nil {
		return err
	}
	defer stopHub(ctx, hub, log)
	worker, err := devWorker(weir.NewClient(pool), "http://"+hub.HTTPAddr().String(), log)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(devDir, ".gitignore"), []byte("*\n"), 0o644); err != nil {
		return fmt.Errorf("write the .gitignore of the data directory: %w", err)
	}
	if err := writeURL(url); err != nil {
		return err
	}
	defer os.Remove(devURLPath)
	welcome(s.out, url, server.Port(), hub)
	return worker.Run(ctx)
}

// startHub runs a hub without authentication, on loopback addresses only.
func (c *devCmd) startHub(ctx context.Context, url string, log *slog.Logger) (*server.Server, error) {
	quiet := slog.New(atLeast{log.Handler(), slog.LevelWarn})
	open, err := ui.New(ui.Config{Config: weirui.Config{Logger: quiet}, Open: weirui.Admin, Database: url})
	if err != nil {
		return nil, fmt.Errorf("make the web UI: %w", err)
	}
	hub, err := server.Start(ctx, server.Config{
		Database: url, Name: "weir dev", Logger: quiet, PGAuth: server.Trust, DurableNotify: true, Web: web.Config{Anonymous: true}, Jobs: true, UI: open, Drain: time.Second,
		ListenPG: fmt.Sprintf("127.0.0.1:%d", c.PGPort), ListenHTTP: fmt.Sprintf("127.0.0.1:%d", c.HTTPPort),
	})
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			err = cmp.Or(checkPorts(c.hubPorts()...), err)
		}
		return nil, fmt.Errorf("start the hub: %w", err)
	}
	return hub, nil
}

func stopHub(ctx context.Context, hub *server.Server, log *slog.Logger) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := hub.Stop(bounded); err != nil {
		log.Warn("the hub did not stop cleanly", "error", err)
	}
}

// start starts the server, and shows the progress of downloads on the first start.
func (c *devCmd) start(ctx context.Context, p *progress) (*embedded.Server, error) {
	defer p.done()
	if _, err := os.Stat(filepath.Join(devDir, "data")); errors.Is(err, os.ErrNotExist) {
		if err := checkPorts(append(c.hubPorts(), c.databasePort())...); err != nil {
			return nil, err // before anything is set up
		}
		fmt.Fprintln(p, "weir: setting up a private PostgreSQL in "+devDir)
	}
	server, err := embedded.Start(ctx, embedded.Config{
		Dir: devDir, Port: c.Port, Fetch: binaries.Fetch,
		Progress: func(done, total int64) {
			if total > 0 {
				p.show("weir: downloading PostgreSQL: %s of %s, %d%%", bytesText(done), bytesText(total), 100*done/total)
			} else {
				p.show("weir: downloading PostgreSQL: %s", bytesText(done))
			}
		},
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		err = cmp.Or(checkPorts(append(c.hubPorts(), c.databasePort())...), err)
	}
	return server, err
}

// prepareDatabase creates the database if it is missing, and upgrades its schema.
func prepareDatabase(ctx context.Context, admin, url string) error {
	err := within(ctx, admin, func(conn *pgx.Conn) error {
		var there bool
		if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, devDatabase).Scan(&there); err != nil || there {
			return err
		}
		_, err := conn.Exec(ctx, `CREATE DATABASE `+devDatabase)
		return err
	})
	if err != nil {
		return fmt.Errorf("create the database %s: %w", devDatabase, err)
	}
	err = within(ctx, url, func(conn *pgx.Conn) error { return schema.Up(ctx, conn) })
	if errors.Is(err, schema.ErrOtherBuild) {
		return fmt.Errorf("%w; or, if you don't need its data, remove the directory %s and start over", err, devDir)
	}
	return err
}

func within(ctx context.Context, url string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return errors.Join(f(conn), conn.Close(context.WithoutCancel(ctx)))
}

func devWorker(client *weir.Client, hub string, log *slog.Logger) (*weir.Worker, error) {
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(_ context.Context, job *weir.Job[hello]) error {
		if job.Args.Name == "" {
			return weir.Fail(errors.New(`the name is missing: give one with --args '{"name": "Ada"}'`))
		}
		job.SetOutput("Hello, " + job.Args.Name + "!")
		return nil
	})
	return client.NewWorker(weir.WorkerConfig{
		Handlers: handlers, Queues: map[string]int{devQueue: 4}, Name: "weir dev", Logger: slog.New(engine.Expectant{Handler: log.Handler()}), Hubs: []string{hub},
		Hooks: []weir.Hooks{{End: func(_ context.Context, job weir.JobMeta, outcome weir.Outcome, took time.Duration, err error) {
			attrs := []any{"job", job.ID, "kind", job.Kind, "took", took.Round(time.Microsecond)}
			if err != nil {
				attrs = append(attrs, "error", cell(err.Error()))
			}
			log.Info(string(outcome), attrs...)
		}}},
	})
}

// writeURL stores the connection string for other subcommands: atomically, and readable by the owner only.
func writeURL(url string) error {
	made := devURLPath + ".new"
	_ = os.Remove(made) // from a run that was killed
	err := os.WriteFile(made, []byte(url+"\n"), 0o600)
	if err == nil {
		err = os.Rename(made, devURLPath)
	}
	if err != nil {
		return fmt.Errorf("write the connection string: %w", err)
	}
	return nil
}

func welcome(w io.Writer, url string, port int, hub *server.Server) {
	args, _ := json.Marshal(hello{Name: "Ada"})
	fmt.Fprintf(w, `Weir runs here, on a private PostgreSQL on port %d:

  %s

See what it does in a browser: %s

A worker works the queue %s. Try in another terminal, in this directory:

  weir enqueue --queue %s --kind hello --args '%s'
  weir jobs list
  psql "$(cat %s)"

A queue of your own, with a command for each job:

  seq 100 | weir enqueue --queue mine --kind count --lines
  weir work --queue mine --exit-when-idle -- sh -c 'echo "this is $WEIR_ARG_line"'
  weir jobs list --queue mine

Without a connection to PostgreSQL, over HTTP (docs/work-http.md):

  curl -d '{"queue": "%s", "kind": "hello", "args": %s}' http://%s/v1/jobs

A hub delivers messages to subscribers: LISTEN at %s, HTTP at %s:

  weir listen --hub http://%s 'orders.>'
  curl -N 'http://%s/v1/events?channel=orders.created'

and, while they are listening:

  weir publish orders.created '{"order": 7}'

Ctrl-C stops it; the data stays in %s.

`, port, url, hub.UIURL(), devQueue, devQueue, args, devURLPath,
		devQueue, args, hub.HTTPAddr(),
		hub.PGAddr(), hub.HTTPAddr(), hub.HTTPAddr(), hub.HTTPAddr(), devDir)
}
