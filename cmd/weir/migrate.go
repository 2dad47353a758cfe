package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/adverse"
	"github.com/weir-pg/weir/schema"
)

type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Install Weir, or upgrade it to this build's version."`
	Down   migrateDownCmd   `cmd:"" help:"Downgrade to an older version, or remove everything."`
	Status migrateStatusCmd `cmd:"" help:"Show which version is installed."`
}

func (migrateCmd) Help() string {
	return `Example:

    weir migrate up --database postgres://localhost/app`
}

type migrateUpCmd struct {
	List   string `placeholder:"FILE" help:"Upgrade each database of a list, a connection string in each line (- reads standard input)."`
	AtMost int    `placeholder:"N" help:"With --list: upgrade at most N databases that are behind, and stop there, or at the first that fails."`
}

func (migrateUpCmd) Help() string {
	return `It is safe to run this repeatedly, and from several processes at the same time. With
--list, each database is upgraded whole or not at all; one that fails does not keep the
others from it, and the command ends with 1 then. Run it again to upgrade those that are
left. Empty lines and those that begin with # are skipped.

In steps: --at-most 1 upgrades one that is behind, and the next time the next one, and so
on. It ends with 1 at one that can't be upgraded; one that can't be reached is passed over.
weir migrate status --list shows how far it is.

Examples:

    DATABASE_URL=postgres://localhost/app weir migrate up
    psql directory -Atc 'SELECT url FROM tenant' | weir migrate up --list -
    weir migrate up --list tenants.txt --at-most 1`
}

func (c *migrateUpCmd) Run(ctx context.Context, s *streams, db *database) error {
	switch {
	case c.AtMost < 0:
		return usagef("--at-most must be at least 1, got %d", c.AtMost)
	case c.AtMost > 0 && c.List == "":
		return usagef("--at-most goes with --list: there is one database")
	case c.AtMost > 0:
		return c.step(ctx, s)
	case c.List != "":
		return eachOfList(ctx, s, c.List, func(db *database) error { return migrateUp(ctx, s, db) })
	}
	return migrateUp(ctx, s, db)
}

// step upgrades the next databases of a list.
func (c *migrateUpCmd) step(ctx context.Context, s *streams) error {
	upgraded := 0
	return eachOfList(ctx, s, c.List, func(db *database) error {
		current := false
		err := db.conn(ctx, func(conn *pgx.Conn) (err error) {
			current, err = schema.Current(ctx, conn)
			return err
		})
		switch f := (*failure)(nil); {
		case errors.As(err, &f) && f.code == exitUnreachable:
			return err
		case err == nil && current:
			fmt.Fprintln(s.out, "weir is up to date")
			return nil
		case err == nil && upgraded == c.AtMost:
			return errEnough
		case err == nil:
			upgraded++
			err = migrateUp(ctx, s, db)
		}
		if err != nil {
			return lastFailure{err}
		}
		return nil
	})
}

func migrateUp(ctx context.Context, s *streams, db *database) error {
	return db.conn(ctx, func(conn *pgx.Conn) error {
		all, err := schema.Status(ctx, conn)
		if err != nil {
			return err
		}
		done, err := schema.Apply(ctx, conn)
		if err != nil {
			return err
		}
		for _, m := range done {
			fmt.Fprintf(s.out, "applied %04d %s\n", m.Version, m.Name)
		}
		fmt.Fprintf(s.out, "weir is installed, version %d\n", len(all))
		against, err := adverse.Read(ctx, conn)
		for _, setting := range against {
			fmt.Fprintf(s.err, "weir: a setting of the server is bad for Weir: %s\n", setting)
		}
		return err
	})
}

type migrateDownCmd struct {
	To  int  `required:"" placeholder:"N" empty:"ok" help:"Version to downgrade to; 0 removes everything."`
	Yes bool `help:"Delete the data that the removed versions hold."`
}

func (migrateDownCmd) Help() string {
	return `It also removes all functions: until the next weir migrate up, with the command of the
version that you go back to, nobody can enqueue or work jobs. --to 0 is refused while the
schema weir contains anything that is not Weir's.

Example:

    weir migrate down --to 0 --yes`
}

func (c *migrateDownCmd) Run(ctx context.Context, s *streams, db *database) error {
	if all, err := schema.Migrations(); err != nil {
		return err
	} else if c.To < 0 || c.To > len(all) {
		return usagef("--to must be 0 to %d, got %d", len(all), c.To)
	}
	if !c.Yes {
		lost, err := holds(c.To)
		if err != nil {
			return err
		}
		if lost != "" {
			if c.To > 0 {
				lost += ", and removes all functions, so that nothing works jobs or enqueues any until the next `weir migrate up`, with the command of the version that you go back to"
			}
			return usagef("a downgrade to version %d deletes %s: add --yes if that is what you want", c.To, lost)
		}
	}
	return db.conn(ctx, func(conn *pgx.Conn) error {
		before, err := schema.Status(ctx, conn)
		if err != nil {
			return err
		}
		if err := schema.Down(ctx, conn, c.To); err != nil {
			return err
		}
		for i := len(before) - 1; i >= c.To; i-- {
			if m := before[i]; !m.AppliedAt.IsZero() {
				fmt.Fprintf(s.out, "reverted %04d %s\n", m.Version, m.Name)
			}
		}
		if c.To == 0 {
			fmt.Fprintln(s.out, "weir is no longer installed")
		} else {
			fmt.Fprintf(s.out, "weir is at version %d\n", min(c.To, applied(before)))
			if c.To < applied(before) {
				fmt.Fprintln(s.out, "its functions are removed: run `weir migrate up` with the command of the version that you go back to")
			}
		}
		return nil
	})
}

// holds describes the data of the migrations above a version.
func holds(above int) (string, error) {
	all, err := schema.Migrations()
	if err != nil {
		return "", err
	}
	var lost []string
	for _, m := range all[min(above, len(all)):] {
		lost = append(lost, "all "+m.Name)
	}
	last := len(lost) - 1
	if last < 1 {
		return strings.Join(lost, ""), nil
	}
	return strings.Join(lost[:last], ", ") + " and " + lost[last], nil
}

type migrateStatusCmd struct {
	List string `placeholder:"FILE" help:"Show the version of each database of a list, a connection string in each line (- reads standard input)."`
	jsonFlag
}

func (migrateStatusCmd) Help() string {
	return `Examples:

    weir migrate status --json
    weir migrate status --list tenants.txt`
}

func (c *migrateStatusCmd) Run(ctx context.Context, s *streams, db *database) error {
	if c.List != "" {
		return c.ofList(ctx, s)
	}
	return db.conn(ctx, func(conn *pgx.Conn) error {
		all, err := schema.Status(ctx, conn)
		if err != nil {
			return err
		}
		if c.JSON {
			return printJSON(s.out, all)
		}
		rows := make([][]string, len(all))
		for i, m := range all {
			rows[i] = []string{strconv.Itoa(m.Version), m.Name, when(&m.AppliedAt)}
		}
		if err := table(s.out, []string{"VERSION", "NAME", "APPLIED"}, rows); err != nil {
			return err
		}
		if n := applied(all); n < len(all) {
			fmt.Fprintf(s.err, "weir: %d of %d migrations are applied: run weir migrate up\n", n, len(all))
		}
		return nil
	})
}

// applied counts the applied migrations.
func applied(all []schema.Migration) (n int) {
	for _, m := range all {
		if !m.AppliedAt.IsZero() {
			n++
		}
	}
	return n
}
