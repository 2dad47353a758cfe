// Command godriver is the Go library's driver for the conformance suite. README.md, one directory up, says what it reads and writes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
)

// longestLine is the longest line that the suite sends.
const longestLine = 16 << 20

func main() {
	if err := drive(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// object is a JSON object.
type object map[string]any

// driver is what the commands act on.
type driver struct {
	pool   *pgxpool.Pool
	client *weir.Client
	remote *remote // not nil: over HTTP
	hub    string
	open   open
	work   work
	subs   subscriptions

	mu  sync.Mutex // guards out
	out *json.Encoder
}

func drive(ctx context.Context) error {
	d := &driver{hub: os.Getenv("WEIR_HUB_URL"), out: json.NewEncoder(os.Stdout)}
	d.out.SetEscapeHTML(false)
	switch via := os.Getenv("WEIR_VIA"); via {
	case "sql":
		if err := d.connect(ctx); err != nil {
			return err
		}
		d.say(object{"event": "hello", "client": "go", "via": via, "features": []string{
			"transactions", "complete", "lease", "flows", "subscribe", "retry", "retry_after", "log", "publish",
		}})
	case "http":
		d.remote = &remote{hub: d.hub}
		d.say(object{"event": "hello", "client": "plain HTTP in Go", "via": via, "features": []string{"flows", "subscribe", "retry_after", "log"}})
	default:
		return fmt.Errorf("WEIR_VIA is %q, want sql or http", via)
	}
	commands, ended := make(chan command), make(chan error, 1)
	go func() { ended <- read(commands) }() // ends with the process
	for {
		var c command
		select {
		case c = <-commands:
		case err := <-ended:
			return err
		}
		go func() { // the end of standard input also ends what takes long
			if ok, err := d.do(ctx, c); err != nil {
				d.say(object{"n": c.N, "error": failure(err)})
			} else {
				d.say(object{"n": c.N, "ok": ok})
			}
		}()
	}
}

// connect opens the application's pool.
func (d *driver) connect(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(os.Getenv("WEIR_POOL"), &config.MaxConns); err != nil {
		return fmt.Errorf("WEIR_POOL: %w", err)
	}
	if os.Getenv("WEIR_POOLER") != "" { // the application's own statements; those of the library need nothing
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	d.client = weir.NewClient(d.pool)
	return nil
}

// read reads commands to the end of standard input.
func read(commands chan<- command) error {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("read a command: %w", err)
		}
		commands <- c
	}
	return lines.Err()
}

// say writes a line.
func (d *driver) say(line object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.out.Encode(line) // the suite that does not read any more ends the process
}

var errUnknown = errors.New("this driver does not know the command")

// failure is how an error is answered.
func failure(err error) object {
	code := "other"
	var refused *pgconn.PgError
	var remote *remoteError
	switch {
	case errors.As(err, &remote):
		code = remote.code()
	case err == errUnknown:
		code = "unknown"
	case errors.Is(err, weir.ErrNotFound):
		code = "not_found"
	case weir.IsFenced(err):
		code = "lost"
	case errors.As(err, &refused):
		switch refused.Code[:2] {
		case "22", "23", "54":
			code = "invalid"
		case "42":
			code = "denied"
		case "08", "53", "57":
			code = "unavailable"
		}
		if refused.Code == "WR002" {
			code = "lost"
		}
	case pgconn.Timeout(err) || pgconn.SafeToRetry(err):
		code = "unavailable"
	default:
		var invalid *invalidError
		if errors.As(err, &invalid) {
			code = "invalid"
		}
	}
	return object{"code": code, "message": err.Error()}
}

// invalidError is an error of the library's own checks.
type invalidError struct{ error }
