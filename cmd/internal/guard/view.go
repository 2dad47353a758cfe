package guard

import (
	"context"
	"embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

//go:embed sql/*.sql
var files embed.FS

// statement returns the text of a file in sql/.
func statement(name string) string {
	text, err := files.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // can't happen: it is embedded
	}
	return string(text)
}

var (
	serverSQL    = statement("server")
	tablesSQL    = statement("tables")
	unmatchedSQL = statement("unmatched")
	cancelSQL    = statement("cancel")
	terminateSQL = statement("terminate")
	blockedSQL   = statement("blocked")
	blockersSQL  = statement("blockers")

	cancelBlockerSQL    = statement("cancel_blocker")
	terminateBlockerSQL = statement("terminate_blocker")
)

// DB is a connection to a server: a pool, or a connection that is not used by anything else.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Server is a server of the cluster.
type Server struct {
	Name string // to show, such as host:port
	DB   DB
}

// view is what one poll saw of one server.
type view struct {
	*horizon.View
	server    Server
	role      string // the guard's own role
	system    int64  // identifies the cluster
	version   string
	seesAll   bool // may read all roles' statistics
	maySignal bool
}

// inspect reads one server, within bound.
func inspect(ctx context.Context, s Server, bound time.Duration) (*view, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	v := &view{server: s}
	err := s.DB.QueryRow(ctx, serverSQL).Scan(&v.role, &v.system, &v.version, &v.seesAll, &v.maySignal)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", s.Name, err)
	}
	rows, err := read(ctx, s.DB, horizon.SQL, pgx.RowToStructByPos[horizon.Row])
	if err == nil {
		v.View, err = horizon.From(rows)
	}
	if err == nil {
		var streams []horizon.Stream
		streams, err = read(ctx, s.DB, horizon.StreamSQL, pgx.RowToStructByPos[horizon.Stream])
		if err == nil {
			v.Stream = streams[0] // it always returns one
		}
	}
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", s.Name, err)
	}
	return v, nil
}

func read[T any](ctx context.Context, db DB, sql string, scan func(pgx.CollectableRow) (T, error), args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}
