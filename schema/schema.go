// Package schema holds Weir's tables and functions as numbered migrations, and applies them.
//
// A file NNNN_name.sql goes up to the line "-- down --" and down after it. Each migration runs in a
// transaction of its own; concurrent migrators wait for each other.
package schema

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed *.sql
var files embed.FS

const (
	downMark = "-- down --"
	// lockKey serialises migrators of one database (the first key is private to Weir, see 0001).
	lockKey = `1464158559, 1`
)

// Oldest is the oldest PostgreSQL major version that Weir runs on.
const Oldest = 14

// Migration is one step of the schema.
type Migration struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	AppliedAt time.Time `json:"applied_at,omitzero"` // zero: not applied

	up, down string
}

// Migrations lists all steps that this build knows, in order.
func Migrations() ([]Migration, error) {
	names, err := fs.Glob(files, "[0-9][0-9][0-9][0-9]_*.sql")
	if err != nil {
		return nil, err
	}
	var all []Migration
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		number, title, _ := strings.Cut(strings.TrimSuffix(name, ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("schema: file %s has no number: %w", name, err)
		}
		up, down, ok := strings.Cut(string(text), "\n"+downMark+"\n")
		if !ok || version != len(all)+1 {
			return nil, fmt.Errorf("schema: file %s is out of order or has no line %q", name, downMark)
		}
		all = append(all, Migration{Version: version, Name: title, up: up, down: down})
	}
	return all, nil
}

// Status lists all migrations with the time each was applied to the database.
func Status(ctx context.Context, conn *pgx.Conn) ([]Migration, error) {
	all, err := Migrations()
	if err != nil {
		return nil, err
	}
	rows, _ := conn.Query(ctx, `SELECT version, applied_at FROM weir.migration ORDER BY version`) // rows report the error
	applied := map[int]time.Time{}
	var version int
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&version, &at}, func() error {
		applied[version] = at
		return nil
	})
	if isMissing(err) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("schema: read what is applied: %w", err)
	}
	for i := range all {
		all[i].AppliedAt = applied[all[i].Version]
		delete(applied, all[i].Version)
	}
	for version := range applied {
		return nil, fmt.Errorf("schema: the database has migration %d, which this build does not know: use a newer weir", version)
	}
	return all, nil
}

// Up applies every migration that is missing.
func Up(ctx context.Context, conn *pgx.Conn) error {
	var major int
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int / 10000`).Scan(&major); err != nil {
		return fmt.Errorf("schema: ask for the server's version: %w", err)
	}
	if major < Oldest {
		return fmt.Errorf("schema: the server is PostgreSQL %d, Weir needs %d or later", major, Oldest)
	}
	for {
		more, err := step(ctx, conn, `CREATE SCHEMA IF NOT EXISTS weir;
			CREATE TABLE IF NOT EXISTS weir.migration (
				version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())`,
			func(all []Migration, applied int) (string, string, []any) {
				if applied >= len(all) {
					return "", "", nil
				}
				m := all[applied]
				return m.up, `INSERT INTO weir.migration (version, name) VALUES ($1, $2)`, []any{m.Version, m.Name}
			})
		if err != nil || !more {
			return err
		}
	}
}

// Down takes back the newest migrations until only those up to version `to` are left. Down to 0
// removes everything, jobs included.
func Down(ctx context.Context, conn *pgx.Conn, to int) error {
	if to < 0 {
		return fmt.Errorf("schema: cannot go down to version %d: the lowest is 0, nothing installed", to)
	}
	for {
		more, err := step(ctx, conn, "", func(all []Migration, applied int) (string, string, []any) {
			if applied <= to || applied > len(all) {
				return "", "", nil
			}
			m := all[applied-1]
			if m.Version == 1 {
				return "", m.down, nil // takes the list itself along
			}
			return m.down, `DELETE FROM weir.migration WHERE version = $1`, []any{m.Version}
		})
		if err != nil || !more {
			return err
		}
	}
}

// step runs one migration and its entry in the list in one transaction; false: none was left.
func step(ctx context.Context, conn *pgx.Conn, prepare string, next func(all []Migration, applied int) (string, string, []any)) (bool, error) {
	all, err := Migrations()
	if err != nil {
		return false, err
	}
	more := false
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(`+lockKey+`)`); err != nil {
			return err
		}
		// Several statements in one string: the simple protocol, which takes no parameters.
		if _, err := tx.Conn().PgConn().Exec(ctx, prepare).ReadAll(); err != nil {
			return err
		}
		var there bool
		if err := tx.QueryRow(ctx, `SELECT to_regclass('weir.migration') IS NOT NULL`).Scan(&there); err != nil {
			return err
		}
		if !there {
			return nil
		}
		var applied int
		if err := tx.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM weir.migration`).Scan(&applied); err != nil {
			return err
		}
		if applied > len(all) {
			return fmt.Errorf("the database is at version %d, this build knows %d: use a newer weir", applied, len(all))
		}
		script, entry, args := next(all, applied)
		if entry == "" {
			return nil
		}
		more = true
		if _, err := tx.Conn().PgConn().Exec(ctx, script).ReadAll(); err != nil {
			return fmt.Errorf("migration after %d: %w", applied, err)
		}
		_, err := tx.Exec(ctx, entry, args...)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("schema: %w", err)
	}
	return more, nil
}

// isMissing tells whether the schema or its list does not exist yet.
func isMissing(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000")
}
