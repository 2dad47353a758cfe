package schema

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
)

// functionsSetting is the setting that identifies the installed functions and who may call them. It includes the privileges as they are in
// the database, because a dump brings the setting along, but neither the roles nor, without them, their privileges.
const functionsSetting = "functions"

// replaceFunctions installs the functions, views and privileges of this build, if they differ from those of the database, or force is set.
func replaceFunctions(ctx context.Context, tx pgx.Tx, force bool) error {
	text, err := functions()
	if err != nil {
		return err
	}
	now, installed, err := digests(ctx, tx, text)
	if err != nil {
		return err
	}
	if installed == now && !force {
		return nil
	}
	err = replaceInPlace(ctx, tx, text)
	if code(err) == "42P13" || code(err) == "42725" { // an argument or a result has changed, which requires a new function; the old one beside it would make calls ambiguous
		if err = dropFunctions(ctx, tx); err == nil {
			err = script(ctx, tx, text)
		}
	}
	if err != nil {
		return fmt.Errorf("install the functions: %w", err)
	}
	if err := script(ctx, tx, privileges); err != nil {
		return fmt.Errorf("grant privileges on the functions to Weir's roles: %w", err)
	}
	if now, _, err = digests(ctx, tx, text); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO weir.setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, unprepared, functionsSetting, now)
	return err
}

// digests identify the functions of a text with the privileges of the database, and those that were installed last.
func digests(ctx context.Context, tx pgx.Tx, text string) (now, installed string, err error) {
	granted, err := grants(ctx, tx)
	if err != nil {
		return "", "", err
	}
	err = tx.QueryRow(ctx, `SELECT coalesce(max(value), '') FROM weir.setting WHERE name = $1`, unprepared, functionsSetting).Scan(&installed)
	sum := sha256.Sum256([]byte(text + privileges + granted))
	return hex.EncodeToString(sum[:]), installed, err
}

// Current reports whether Up has nothing to do: all migrations are applied, and the functions and their privileges are those of this build.
func Current(ctx context.Context, conn *pgx.Conn) (current bool, err error) {
	all, err := Status(ctx, conn)
	if err != nil {
		return false, err
	}
	for _, m := range all {
		if m.AppliedAt.IsZero() {
			return false, nil
		}
	}
	text, err := functions()
	if err != nil {
		return false, err
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: `BEGIN READ ONLY; SET LOCAL search_path = pg_catalog, pg_temp`}, func(tx pgx.Tx) error {
		now, installed, err := digests(ctx, tx, text)
		current = now == installed
		return err
	})
	if err != nil {
		return false, fmt.Errorf("schema: compare the functions: %w", err)
	}
	return current, nil
}

// grants lists all privileges on the schema and on what it contains, except the owner's, in a fixed order.
func grants(ctx context.Context, tx pgx.Tx) (list string, err error) {
	err = tx.QueryRow(ctx, `
		SELECT coalesce(string_agg(g.line, E'\n' ORDER BY g.line COLLATE "C"), '') FROM (
		  SELECT concat_ws(' ', o.what, a.privilege_type, a.is_grantable, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END) AS line
		  FROM (SELECT 'schema', n.nspowner, n.nspacl FROM pg_namespace n WHERE n.nspname = 'weir'
		        UNION ALL SELECT p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)) FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace
		        UNION ALL SELECT c.oid::regclass::text, c.relowner, c.relacl FROM pg_class c WHERE c.relnamespace = 'weir'::regnamespace) o(what, owner, acl),
		    aclexplode(o.acl) a
		  WHERE a.grantee <> o.owner) g`, unprepared).Scan(&list)
	if err != nil {
		return "", fmt.Errorf("read who has privileges on the schema weir: %w", err)
	}
	return list, nil
}

//go:embed privileges.sql
var privileges string

// functions returns the text of all functions and views. Bodies may refer to functions that are defined later.
func functions() (string, error) {
	names, err := fs.Glob(files, "functions/*.sql")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("SET LOCAL check_function_bodies = off;\n")
	for _, name := range append(names, "views.sql") {
		text, err := files.ReadFile(name)
		if err != nil {
			return "", err
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// replaceInPlace preserves objects that depend on the functions. It drops functions that the text no longer defines.
func replaceInPlace(ctx context.Context, tx pgx.Tx, text string) error {
	return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		before, err := versions(ctx, tx)
		if err != nil {
			return err
		}
		if err := script(ctx, tx, text); err != nil {
			return err
		}
		after, err := versions(ctx, tx)
		if err != nil {
			return err
		}
		for signature, version := range before {
			if after[signature] == version {
				if err := script(ctx, tx, `DROP ROUTINE `+signature); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// versions maps the signature of each function of Weir to the transaction that wrote it.
func versions(ctx context.Context, tx pgx.Tx) (map[string]string, error) {
	all := map[string]string{}
	ours, err := ourFunctions()
	if err != nil {
		return nil, err
	}
	rows, _ := tx.Query(ctx, `SELECT p.oid::regprocedure::text, p.xmin::text FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace AND `+ours, unprepared) // rows report the error
	var signature, version string
	_, err = pgx.ForEachRow(rows, []any{&signature, &version}, func() error {
		all[signature] = version
		return nil
	})
	return all, err
}

// dropFunctions drops all views and functions of Weir. If other objects depend on them, it fails with an error that names those objects.
func dropFunctions(ctx context.Context, tx pgx.Tx) error {
	ours, err := ourFunctions()
	if err != nil {
		return err
	}
	text, err := functions()
	if err != nil {
		return err
	}
	return script(ctx, tx, `DO $$
		DECLARE
		  views     text := (SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class c WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind = 'v'
		                       AND c.relname = ANY (ARRAY['`+strings.Join(named(createsRelation, text), "', '")+`']));
		  functions text := (SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace AND `+ours+`);
		BEGIN
		  IF views IS NOT NULL THEN
		    EXECUTE 'DROP VIEW ' || views;
		  END IF;
		  IF functions IS NOT NULL THEN
		    EXECUTE 'DROP ROUTINE ' || functions;
		  END IF;
		END
		$$;
		DELETE FROM weir.setting WHERE name = '`+functionsSetting+`'`)
}

// Sum identifies the schema that this build installs: two builds with the same sum install the same schema.
func Sum() (string, error) {
	all, err := Migrations()
	if err != nil {
		return "", err
	}
	text, err := functions()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, m := range all {
		fmt.Fprintln(h, m.Name, m.checksum)
	}
	fmt.Fprint(h, text, privileges)
	return hex.EncodeToString(h.Sum(nil)), nil
}
