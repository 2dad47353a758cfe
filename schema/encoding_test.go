package schema_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestTheSchemaIsWrittenInASCII: every encoding of a database has the characters of the schema.
func TestTheSchemaIsWrittenInASCII(t *testing.T) {
	t.Parallel()
	read := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".sql" {
			return err
		}
		read++
		text, err := os.ReadFile(path)
		for i, line := range bytes.Split(text, []byte("\n")) {
			if at := bytes.IndexFunc(line, func(r rune) bool { return r > '~' }); at >= 0 {
				t.Errorf("%s:%d: a character that not every encoding has: %s", path, i+1, line[at:])
			}
		}
		return err
	})
	if err != nil || read < 10 {
		t.Fatalf("read %d files: %v", read, err)
	}
}

// TestWeirCanBeInstalledInADatabaseWithAnotherEncoding: no text of Weir's own is refused. Jobs keep the characters that the encoding has.
func TestWeirCanBeInstalledInADatabaseWithAnotherEncoding(t *testing.T) {
	t.Parallel()
	for encoding, args := range map[string]string{"LATIN1": `{"name": "Zoë"}`, "EUC_JP": `{"name": "日本"}`, "SQL_ASCII": `{"name": "Zoe"}`} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			admin, err := pgx.Connect(ctx, pgtest.Empty(t))
			if err != nil {
				t.Fatal(err)
			}
			defer admin.Close(ctx)
			config := admin.Config().Copy()
			config.RuntimeParams["client_encoding"] = "UTF8"
			if err := admin.QueryRow(ctx, `SELECT left(current_database(), 50) || '_' || $1::text`, encoding).Scan(&config.Database); err != nil {
				t.Fatal(err)
			}
			name := pgx.Identifier{config.Database}.Sanitize()
			if _, err := admin.Exec(ctx, `CREATE DATABASE `+name+` TEMPLATE template0 LOCALE 'C' ENCODING '`+encoding+`'`); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if _, err := admin.Exec(ctx, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
					t.Error(err)
				}
			}()
			conn, err := pgx.ConnectConfig(ctx, config)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(ctx)
			if err := schema.Up(ctx, conn); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(ctx, `SELECT weir.enqueue('q', 'k', $1::jsonb)`, args); err != nil {
				t.Fatal(err)
			}
			var kept string
			if err := conn.QueryRow(ctx, `SELECT args::text FROM weir.jobs('available')`).Scan(&kept); err != nil || kept != args {
				t.Errorf("the job has args %s, want %s; %v", kept, args, err)
			}
		})
	}
}
