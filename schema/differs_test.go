package schema_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestASchemaOfAnotherBuildIsNotTakenForThisOnes: if the database's migrations have other texts, or were applied before checksums were
// stored, the error says so and what to do. Nothing is changed in the database, and the advice works.
func TestASchemaOfAnotherBuildIsNotTakenForThisOnes(t *testing.T) {
	t.Parallel()
	for how, sql := range map[string]string{
		"another text":      `UPDATE weir.migration SET checksum = repeat('0', 64) WHERE version = 2`,
		"another name":      `UPDATE weir.migration SET name = 'job' WHERE version = 1`,
		"before checksums":  `ALTER TABLE weir.migration DROP COLUMN checksum`,
		"a part of it only": `UPDATE weir.migration SET checksum = 'x' WHERE version = 1; DELETE FROM weir.migration WHERE version = 2`,
	} {
		t.Run(how, func(t *testing.T) {
			ctx := t.Context()
			conn, err := pgx.Connect(ctx, pgtest.Database(t))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
			refused := func(what string, err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), "development build") || !strings.Contains(err.Error(), "DROP SCHEMA weir CASCADE") {
					t.Errorf("%s: %v, want an error that names another build and what to do", what, err)
				}
			}
			_, err = schema.Status(ctx, conn)
			refused("status", err)
			refused("up", schema.Up(ctx, conn))
			refused("down", schema.Down(ctx, conn, 0))
			if _, err := conn.Exec(ctx, `SELECT weir.enqueue('q', 'k'); SELECT queue, kind, args FROM weir.jobs('available'); DROP SCHEMA weir CASCADE`); err != nil {
				t.Fatal(err)
			}
			if err := schema.Up(ctx, conn); err != nil {
				t.Fatal(err)
			}
			all, err := schema.Status(ctx, conn)
			if err != nil || all[len(all)-1].AppliedAt.IsZero() {
				t.Errorf("%v after it was installed again: %v", all, err)
			}
		})
	}
}
