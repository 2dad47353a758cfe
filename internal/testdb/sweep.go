package testdb

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// One process drops up to maxSwept databases, within sweepFor; if more are left, several processes share them.
	maxSwept = 50
	sweepFor = 20 * time.Second
	// templatesKept is the number of newest templates that are kept: of this version of the schema, and of others between which a developer may switch.
	templatesKept = 4
)

// sweep drops what killed runs of this role have left, and all of its templates except the newest few. It only saves space on the server,
// so errors don't matter.
func (s *Server) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepFor)
	defer cancel()
	rows, _ := s.own.Query(ctx, `
		SELECT datname::text FROM pg_catalog.pg_database
		WHERE pg_catalog.starts_with(datname, $1) AND pg_catalog.pg_get_userbyid(datdba) = current_user ORDER BY oid DESC`, prefix) // rows report the error
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return
	}
	var old []string
	dead := map[uint32]bool{} // by run
	kept := 0
	for _, name := range names {
		if !isSealed(name) {
			continue
		}
		if strings.HasPrefix(name, templates) {
			if kept++; kept > templatesKept {
				old = append(old, name)
			}
			continue
		}
		run, ok := s.runOf(name)
		if !ok || run == s.run {
			continue
		}
		if _, known := dead[run]; !known {
			dead[run] = s.isOver(ctx, run)
		}
		if dead[run] {
			old = append(old, name)
		}
	}
	slices.Reverse(old)
	for _, name := range old[:min(len(old), maxSwept)] {
		// Without FORCE: a database with connections is kept.
		_, _ = s.admin.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize())
	}
}

// runOf returns the run in a database's name; false: there is none, or its run is not visible from the database connected to.
func (s *Server) runOf(name string) (uint32, bool) {
	rest, ours := strings.CutPrefix(name, s.ours()+"r")
	digits, _, whole := strings.Cut(rest, "_")
	if !ours || !whole || len(digits) != 8 {
		return 0, false
	}
	run, err := strconv.ParseUint(digits, 16, 32)
	return uint32(run), err == nil
}

// isOver reports whether the lock of a run is free.
func (s *Server) isOver(ctx context.Context, run uint32) (over bool) {
	err := s.own.QueryRow(ctx, `
		SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_locks l
		                   WHERE l.locktype = 'advisory' AND l.database = $1 AND l.classid = $2 AND l.objid = $3 AND l.objsubid = 2)`,
		s.from, uint32(lockClass), run).Scan(&over)
	return err == nil && over
}

// String describes the server for messages, without its password.
func (s *Server) String() string {
	c := s.own.Config()
	return fmt.Sprintf("%s@%s:%d", c.User, c.Host, c.Port)
}
