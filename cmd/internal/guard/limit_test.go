package guard

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// limited is a server that checks that each call has a time limit.
type limited struct {
	DB
	t     *testing.T
	calls *atomic.Int32
}

func (l limited) check(ctx context.Context, what string) {
	l.calls.Add(1)
	if at, ok := ctx.Deadline(); !ok || time.Until(at) > pollTimeout {
		l.t.Errorf("a call may last until %v (%v), want at most %v: %.200s", at, ok, pollTimeout, what)
	}
}

func (l limited) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	l.check(ctx, sql)
	return l.DB.Query(ctx, sql, args...)
}

func (l limited) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	l.check(ctx, sql)
	return l.DB.QueryRow(ctx, sql, args...)
}

func (l limited) Begin(ctx context.Context) (pgx.Tx, error) {
	l.check(ctx, "BEGIN")
	tx, err := l.DB.Begin(ctx)
	return limitedTx{tx, l}, err
}

// limitedTx is a transaction of a limited server.
type limitedTx struct {
	pgx.Tx
	server limited
}

func (tx limitedTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tx.server.check(ctx, sql)
	return tx.Tx.Exec(ctx, sql, args...)
}

func (tx limitedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tx.server.check(ctx, sql)
	return tx.Tx.Query(ctx, sql, args...)
}

func (tx limitedTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	tx.server.check(ctx, sql)
	return tx.Tx.QueryRow(ctx, sql, args...)
}

func (tx limitedTx) Commit(ctx context.Context) error {
	tx.server.check(ctx, "COMMIT")
	return tx.Tx.Commit(ctx)
}

func (tx limitedTx) Rollback(ctx context.Context) error {
	tx.server.check(ctx, "ROLLBACK")
	return tx.Tx.Rollback(ctx)
}

// timeLimited checks every call that a guard makes, from its first check until it has ended a session: a server that does not answer never keeps it.
func timeLimited(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec(readOnly, "SELECT count(*) FROM harmed")
	p := hasty()
	p.Protect.Probes = []Probe{{Name: "next job", SQL: "SELECT 1", SlowerThan: Duration{time.Second}}}
	g := s.guard(t, p, true)
	var calls atomic.Int32
	g.config.Primary.DB = limited{g.config.Primary.DB, t, &calls}
	for i := range g.config.Standbys {
		g.config.Standbys[i].DB = limited{g.config.Standbys[i].DB, t, &calls}
	}
	if err := g.Check(t.Context()); err != nil {
		t.Error(err)
	}
	s.watch(t, g, func(r *Findings) bool {
		return r.outcome("primary", fmt.Sprintf("pid %d", c.pid()), Terminate, outcomeMoved)
	})
	if calls.Load() == 0 {
		t.Error("no call was seen")
	}
}
