package proof

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestSchedulesAreReadInTurkishToo: lower('FRI') is not fri in a Turkish database.
func TestSchedulesAreReadInTurkishToo(t *testing.T) {
	t.Parallel()
	admin := connect(t, pgtest.Empty(t))
	if value[int](t, admin, `SELECT current_setting('server_version_num')::int`) < 150000 || value[int](t, admin, `SELECT count(*) FROM pg_collation WHERE collname = 'tr-x-icu'`) == 0 {
		t.Skip("this server has no databases with collations of ICU")
	}
	config := admin.Config().Copy()
	config.Database = value[string](t, admin, `SELECT left(current_database(), 50) || '_tr'`)
	name := pgx.Identifier{config.Database}.Sanitize()
	exec(t, admin, `CREATE DATABASE `+name+` TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR' LOCALE 'C'`)
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = conn.Close(context.Background())
		_, _ = admin.Exec(context.Background(), `DROP DATABASE `+name+` WITH (FORCE)`)
	}()
	if lower := value[string](t, conn, `SELECT lower('FRI')`); lower == "fri" {
		t.Fatalf("lower('FRI') is %s: the test proves nothing", lower)
	}
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	for schedule, want := range map[string]string{"0 9 * * FRI": "0 9 * * fri", "0 9 * JUL MON-FRI": "0 9 * jul mon-fri", "@DAILY": "@daily", "EVERY 5 MINUTES": "every 5 minutes",
		"every 1 DAY FROM 2026-01-05T09:00Z": "every 1 day from 2026-01-05 09:00+00"} {
		if !value[bool](t, conn, `SELECT array_agg(a) = array_agg(b) FROM weir.next_times($1, 'EUROPE/BERLIN', '2026-01-01') WITH ORDINALITY a JOIN weir.next_times($2, 'Europe/Berlin', '2026-01-01') WITH ORDINALITY b USING (ordinality)`, schedule, want) {
			t.Errorf("%s is not due when %s is", schedule, want)
		}
	}
	for i, zone := range []string{"EUROPE/ISTANBUL", "europe/istanbul"} {
		if got, want := value[string](t, conn, `SELECT weir.set_schedule('s', '@daily', 'q', 'k', time_zone => $1)`, zone), []string{"created", "unchanged"}[i]; got != want {
			t.Errorf("a schedule in %s is %s, want %s", zone, got, want)
		}
	}
}

// TestFunctionsDoNotFoldByTheDatabasesLanguage: no function depends on how the database's collation folds letters.
func TestFunctionsDoNotFoldByTheDatabasesLanguage(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	found := regexp.MustCompile(`(?i)\b(?:lower|upper|initcap|casefold)\((?:[^()]|\([^()]*(?:\([^()]*\)[^()]*)*\))*\)|\bILIKE\b|~~?[*]`)
	fine := regexp.MustCompile(`COLLATE "C"\)$|^upper\(current_setting\('transaction_isolation'\)\)$`) // the latter for the text of an error
	n := 0
	for _, source := range column[string](t, conn, `SELECT proname || E'\n' || prosrc FROM pg_proc WHERE pronamespace = 'weir'::regnamespace`) {
		for _, m := range found.FindAllString(comments.ReplaceAllString(source, ""), -1) {
			if n++; !fine.MatchString(m) {
				name, _, _ := strings.Cut(source, "\n")
				t.Errorf("%s: %s depends on the language of the database: fold with COLLATE \"C\"", name, m)
			}
		}
	}
	if n < 3 {
		t.Errorf("%d places were checked", n)
	}
}
