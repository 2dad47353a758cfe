package model

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// script is what every replay has: the connection for its calls, and what it has done so far.
type script struct {
	*testing.T
	rng  *rand.Rand
	path []string
}

// replayed is a run that is made twice: on a server and in a model.
type replayed interface {
	moves() []func()
	look()
	close()
}

// run makes random moves, and checks after each that the server and the model agree. A run that exceeds the model's room ends there.
func run(rng *rand.Rand, r replayed, limit int) (moves int, room bool) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case noRoom:
			room = false
		default:
			panic(p)
		}
	}()
	for moves < limit {
		all := r.moves()
		all[rng.IntN(len(all))]()
		r.look()
		moves++
	}
	return moves, true
}

func (r *script) connect(url string) *pgx.Conn {
	r.Helper()
	conn, err := pgx.Connect(r.Context(), url)
	if err != nil {
		r.fail("%v", err)
	}
	return conn
}

func query[T any](r *script, c *pgx.Conn, sql string, args ...any) (v T) {
	r.Helper()
	if err := c.QueryRow(r.Context(), sql, args...).Scan(&v); err != nil {
		r.fail("%s: %v", sql, err)
	}
	return v
}

func (r *script) exec(c *pgx.Conn, sql string, args ...any) {
	r.Helper()
	if _, err := c.Exec(r.Context(), sql, args...); err != nil {
		r.fail("%s: %v", sql, err)
	}
}

// until waits until a query returns true.
func (r *script) until(what, sql string, c *pgx.Conn, args ...any) {
	r.Helper()
	for end := time.Now().Add(time.Minute); !query[bool](r, c, sql, args...); {
		if time.Now().After(end) {
			r.fail("waited in vain: %s", what)
		}
	}
}

func (r *script) fail(format string, args ...any) {
	r.Helper()
	for i, line := range r.path {
		r.Logf("%3d. %s", i+1, line)
	}
	r.Fatalf(format, args...)
}

func (r *script) note(format string, args ...any) {
	r.path = append(r.path, fmt.Sprintf(format, args...))
}

func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
