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
	// sweepMost databases are dropped by one process, in sweepFor: who left more is swept up after by several.
	sweepMost = 50
	sweepFor  = 20 * time.Second
	// templatesKept are those made last: of this version of the schema, and of some that a developer goes back and forth between.
	templatesKept = 4
)

// sweep drops what runs have left that were killed, and templates past the newest few. It is a courtesy to the server: errors don't matter.
func (s *Server) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepFor)
	defer cancel()
	rows, _ := s.own.Query(ctx, `
		SELECT datname::text FROM pg_catalog.pg_database
		WHERE pg_catalog.starts_with(datname, $1) AND pg_catalog.pg_has_role(datdba, 'USAGE') ORDER BY oid DESC`, prefix) // rows report the error
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return
	}
	var old []string
	dead := map[uint32]bool{} // by run
	kept := 0
	for _, name := range names {
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
	for _, name := range old[:min(len(old), sweepMost)] {
		// Without FORCE: where anybody is connected it stays.
		_, _ = s.admin.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize())
	}
}

// runOf reads the run out of a database's name; false: it is not one whose run can be seen from here.
func (s *Server) runOf(name string) (uint32, bool) {
	rest, ours := strings.CutPrefix(name, s.ours()+"r")
	digits, _, whole := strings.Cut(rest, "_")
	if !ours || !whole || len(digits) != 8 {
		return 0, false
	}
	run, err := strconv.ParseUint(digits, 16, 32)
	return uint32(run), err == nil
}

// isOver tells whether nobody holds a run's lock.
func (s *Server) isOver(ctx context.Context, run uint32) (over bool) {
	err := s.own.QueryRow(ctx, `
		SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_locks l
		                   WHERE l.locktype = 'advisory' AND l.database = $1 AND l.classid = $2 AND l.objid = $3 AND l.objsubid = 2)`,
		s.from, uint32(lockClass), run).Scan(&over)
	return err == nil && over
}

// String names the server for messages, without its password.
func (s *Server) String() string {
	c := s.own.Config()
	return fmt.Sprintf("%s@%s:%d", c.User, c.Host, c.Port)
}
