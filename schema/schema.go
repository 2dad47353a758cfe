// Package schema contains Weir's schema, and installs it.
//
// Tables are created by numbered migrations: in migrations/NNNN_name.sql, the text before the line "-- down --" is the migration up, and
// the text after it is the migration down. Functions, views and privileges are stored in their current form, one file for each concern:
// functions/, views.sql and privileges.sql. If they differ from those in the database, all of them are replaced, in one transaction with
// the migrations. Concurrent migrations of one database wait for each other.
package schema

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed migrations/*.sql functions/*.sql views.sql
var files embed.FS

const (
	downMark = "-- down --"
	// lockKey serializes migrations of one database. The first key is private to Weir, see 0001_jobs.sql.
	lockKey = `1464158559, 1`
)

// unprepared runs a statement without preparing it, because behind a pooler in transaction mode the next statement may run in another session.
const unprepared = pgx.QueryExecModeExec

// Oldest is the oldest supported major version of PostgreSQL.
const Oldest = 14

// Migration is one migration of the tables.
type Migration struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	AppliedAt time.Time `json:"applied_at,omitzero"` // zero: not applied

	up, down string
	checksum string // of up
}

// Migrations lists all migrations of this build, in order.
func Migrations() ([]Migration, error) {
	names, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	var all []Migration
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		number, title, _ := strings.Cut(strings.TrimSuffix(path.Base(name), ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("schema: the name of file %s does not start with a number: %w", name, err)
		}
		up, down, ok := strings.Cut(string(text), "\n"+downMark+"\n")
		if !ok || version != len(all)+1 {
			return nil, fmt.Errorf("schema: file %s is out of order, or does not contain the line %q", name, downMark)
		}
		all = append(all, Migration{Version: version, Name: title, up: up, down: down, checksum: fmt.Sprintf("%x", sha256.Sum256([]byte(up)))})
	}
	return all, nil
}

// sqlApplied reads the list of applied migrations, even one from before the list had checksums.
const sqlApplied = `SELECT m.version, m.name, m.applied_at, coalesce(to_jsonb(m) ->> 'checksum', '') FROM weir.migration m ORDER BY m.version`

// Status lists all migrations, each with the time at which it was applied to the database.
func Status(ctx context.Context, conn *pgx.Conn) ([]Migration, error) {
	all, err := Migrations()
	if err != nil {
		return nil, err
	}
	rows, _ := conn.Query(ctx, sqlApplied, unprepared) // rows report the error
	var m Migration
	_, err = pgx.ForEachRow(rows, []any{&m.Version, &m.Name, &m.AppliedAt, &m.checksum}, func() error {
		if err := checkKnown(all, m); err != nil {
			return err
		}
		all[m.Version-1].AppliedAt = m.AppliedAt
		return nil
	})
	if isMissing(err) {
		return all, nil
	}
	if code(err) == codeDenied {
		var owner string
		if err := conn.QueryRow(ctx, `SELECT pg_get_userbyid(nspowner) FROM pg_catalog.pg_namespace WHERE nspname = 'weir'`, unprepared).Scan(&owner); err == nil {
			return nil, fmt.Errorf("schema: %s may not read the list of applied migrations: the schema weir belongs to %s: run this as %[2]s", conn.Config().User, owner)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("schema: read the list of applied migrations: %w", err)
	}
	return all, nil
}

// ErrOtherBuild is wrapped by errors about a schema whose migrations have other texts than those of this build.
var ErrOtherBuild = errors.New("the schema weir was created by a development build, and can't be upgraded")

// checkKnown refuses a migration that this build does not have, or has with another text, because the functions of this build would not
// match the tables.
func checkKnown(all []Migration, m Migration) error {
	switch {
	case m.Version < 1 || m.Version > len(all):
		return fmt.Errorf("the database has migration %d %s, but this build has only %d migrations: use a newer version of weir", m.Version, m.Name, len(all))
	case m.Name != all[m.Version-1].Name || m.checksum != all[m.Version-1].checksum:
		return fmt.Errorf("migration %d %s of the database differs from this build's: %w: let that build finish its jobs, or save them "+
			"(SELECT queue, kind, args FROM weir.jobs('available'), and 'scheduled'); then run DROP SCHEMA weir CASCADE and weir migrate up", m.Version, m.Name, ErrOtherBuild)
	}
	return nil
}

// Up applies all missing migrations, and brings the functions up to date. It does all of this or nothing.
func Up(ctx context.Context, conn *pgx.Conn) error {
	_, err := Apply(ctx, conn)
	return err
}

// Apply does what Up does, and returns the migrations that this call has applied: of several calls at the same time, one applies them.
func Apply(ctx context.Context, conn *pgx.Conn) (done []Migration, err error) {
	var major int
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int / 10000`, unprepared).Scan(&major); err != nil {
		return nil, fmt.Errorf("schema: read the server's version: %w", err)
	}
	if major < Oldest {
		return nil, fmt.Errorf("schema: the server is PostgreSQL %d, but Weir needs PostgreSQL %d or later", major, Oldest)
	}
	err = change(ctx, conn, func(tx pgx.Tx, all []Migration) error {
		if err := checkTemporary(ctx, tx); err != nil {
			return err
		}
		if err := createSchema(ctx, tx); err != nil {
			return err
		}
		if err := script(ctx, tx, `
			CREATE TABLE IF NOT EXISTS weir.migration (
				version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now(), checksum text NOT NULL)`); err != nil {
			return err
		}
		applied, err := newest(ctx, tx, all)
		if err != nil {
			return err
		}
		if applied == 0 {
			if names, err := foreign(ctx, tx, all, false); err != nil {
				return err
			} else if len(names) > 0 {
				return fmt.Errorf("the schema weir exists and is not Weir's: it contains %s: install Weir in another database, or move these first (ALTER ... SET SCHEMA), or drop them", strings.Join(names, ", "))
			}
		}
		done = all[applied:]
		for _, m := range done {
			if err := script(ctx, tx, m.up); err != nil {
				return fmt.Errorf("migration %d %s: %w", m.Version, m.Name, err)
			}
			if _, err := tx.Exec(ctx, `INSERT INTO weir.migration (version, name, checksum) VALUES ($1, $2, $3)`, unprepared, m.Version, m.Name, m.checksum); err != nil {
				return err
			}
		}
		return replaceFunctions(ctx, tx, applied < len(all))
	})
	if err != nil {
		return nil, err
	}
	return done, nil
}

// Down reverts the newest migrations until only those up to version to remain, and removes all functions: the build of that version
// installs its own with Up. Down to 0 removes everything, including all jobs, and is refused while the schema has anything that is not Weir's.
func Down(ctx context.Context, conn *pgx.Conn, to int) error {
	if to < 0 {
		return fmt.Errorf("schema: cannot go down to version %d: the lowest version is 0, which removes everything", to)
	}
	return change(ctx, conn, func(tx pgx.Tx, all []Migration) error {
		var exists bool
		if err := tx.QueryRow(ctx, `SELECT to_regclass('weir.migration') IS NOT NULL`, unprepared).Scan(&exists); err != nil || !exists {
			return err
		}
		applied, err := newest(ctx, tx, all)
		if err != nil || applied <= to {
			return err
		}
		if to == 0 {
			if names, err := foreign(ctx, tx, all, true); err != nil {
				return err
			} else if len(names) > 0 {
				return fmt.Errorf("the schema weir, which would be dropped, contains what is not Weir's: %s: move these first (ALTER ... SET SCHEMA), or drop them", strings.Join(names, ", "))
			}
		}
		if err := dropFunctions(ctx, tx); err != nil {
			return err
		}
		for version := applied; version > to; version-- {
			m := all[version-1]
			if err := script(ctx, tx, m.down); err != nil {
				return fmt.Errorf("revert migration %d %s: %w", m.Version, m.Name, err)
			}
			if version == 1 {
				return nil // it has dropped the list of migrations too
			}
			if _, err := tx.Exec(ctx, `DELETE FROM weir.migration WHERE version = $1`, unprepared, version); err != nil {
				return err
			}
		}
		return nil
	})
}

// begin is a single string, so that timeouts and other settings of the role can't take effect between its statements.
const begin = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
	SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0;
	SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout');
	SET LOCAL client_encoding = 'UTF8'; SET LOCAL standard_conforming_strings = on; SELECT pg_advisory_xact_lock(` + lockKey + `)`

// change runs do in one transaction that excludes other migrations.
func change(ctx context.Context, conn *pgx.Conn, do func(tx pgx.Tx, all []Migration) error) error {
	all, err := Migrations()
	if err != nil {
		return err
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error {
		return do(tx, all)
	})
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	return nil
}

// checkTemporary refuses an owner who may not create temporary tables, because tidying, reclaiming and rebasing would fail later, when the
// database is in use.
func checkTemporary(ctx context.Context, tx pgx.Tx) error {
	var may bool
	var me, database string
	err := tx.QueryRow(ctx, `SELECT has_database_privilege(current_database(), 'TEMPORARY'), quote_ident(current_user), quote_ident(current_database())`, unprepared).Scan(&may, &me, &database)
	if err != nil {
		return fmt.Errorf("check for the privilege to create temporary tables: %w", err)
	}
	if !may {
		return fmt.Errorf("%s may not create temporary tables in the database %s, but Weir's functions do so with the rights of their owner: have the owner of the database run: "+
			"GRANT TEMPORARY ON DATABASE %[2]s TO %[1]s", me, database)
	}
	return nil
}

// createSchema creates the schema if it does not exist, and refuses one of another owner.
func createSchema(ctx context.Context, tx pgx.Tx) error {
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT to_regnamespace('weir') IS NOT NULL`, unprepared).Scan(&exists); err != nil {
		return fmt.Errorf("check for the schema weir: %w", err)
	}
	if exists {
		return checkOwner(ctx, tx)
	}
	err := script(ctx, tx, `CREATE SCHEMA weir`)
	if code(err) == codeDenied {
		c := tx.Conn().Config()
		return fmt.Errorf("%w: migrate as the owner of the database, or have the owner run: GRANT CREATE ON DATABASE %s TO %s", err,
			pgx.Identifier{c.Database}.Sanitize(), pgx.Identifier{c.User}.Sanitize())
	}
	return err
}

// checkOwner refuses a schema that has another owner, or contains objects of another owner. A replaced function keeps its owner, who could
// change it later, so that it would run with the rights of anyone who calls it.
func checkOwner(ctx context.Context, tx pgx.Tx) error {
	var what, owner, me string
	err := tx.QueryRow(ctx, `
		SELECT o.what, pg_get_userbyid(o.owner), current_user
		FROM (SELECT 0, 'the schema weir', n.nspowner FROM pg_catalog.pg_namespace n WHERE n.nspname = 'weir'
		      UNION ALL SELECT 1, 'the function ' || p.oid::regprocedure, p.proowner FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'weir'::regnamespace
		      UNION ALL SELECT 1, 'the relation ' || c.oid::regclass, c.relowner FROM pg_catalog.pg_class c WHERE c.relnamespace = 'weir'::regnamespace
		      UNION ALL SELECT 1, 'the type ' || t.oid::regtype, t.typowner FROM pg_catalog.pg_type t WHERE t.typnamespace = 'weir'::regnamespace) o(place, what, owner)
		WHERE o.owner <> (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) ORDER BY o.place LIMIT 1`, unprepared).Scan(&what, &owner, &me)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check the owner of the schema weir: %w", err)
	}
	var installed bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'weir' AND c.relname = 'migration' AND c.relowner = n.nspowner)`, unprepared).Scan(&installed); err != nil {
		return fmt.Errorf("check whether weir is installed: %w", err)
	}
	if installed && what == "the schema weir" {
		return fmt.Errorf("weir is installed, and the schema weir belongs to %s: run `weir migrate up` as %[1]s, not as %s", owner, me)
	}
	return fmt.Errorf("%s belongs to %s, who could change what Weir runs if %s installed it there: migrate as %[2]s if you trust that role, or have %[1]s dropped, if you don't need it", what, owner, me)
}

// newest returns the version of the newest applied migration, 0 for none.
func newest(ctx context.Context, tx pgx.Tx, all []Migration) (version int, err error) {
	rows, _ := tx.Query(ctx, sqlApplied, unprepared) // rows report the error
	var m Migration
	_, err = pgx.ForEachRow(rows, []any{&m.Version, &m.Name, &m.AppliedAt, &m.checksum}, func() error {
		version = m.Version
		return checkKnown(all, m)
	})
	return version, err
}

// script runs several statements in one string, with the simple protocol, which takes no parameters.
func script(ctx context.Context, tx pgx.Tx, text string) error {
	_, err := tx.Conn().PgConn().Exec(ctx, text).ReadAll()
	return err
}

// isMissing reports whether the schema or its list of migrations does not exist yet.
func isMissing(err error) bool {
	return code(err) == "42P01" || code(err) == "3F000"
}

const codeDenied = "42501" // insufficient_privilege

func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
