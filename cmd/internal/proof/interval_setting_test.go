package proof

import (
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestIntervalWithoutAUnitIsRefused: a number that PostgreSQL would take for seconds never becomes a retention, whatever stands around it.
func TestIntervalWithoutAUnitIsRefused(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, given := range []string{
		"14", " 14 ", "30\n", "14\t", "\n14", "\v14\f", "@ 14", "5%", "14 %", "0.5", "+14", ":14", "14 :", "-5", "1 day 14", "1 day, 14.", "1 day 14 %", "14 at", "14 On", "14 at @",
		"1 hour 14 at", "P1DT14",
	} {
		_, err := conn.Exec(t.Context(), `SELECT weir.set('failed_retention', $1)`, given)
		wantCode(t, given, err, "22023")
		if err != nil && !strings.Contains(err.Error(), "failed_retention needs a unit, got \"") {
			t.Errorf("%q: the error is %v", given, err)
		}
	}
	if got := value[string](t, conn, `SELECT s.value FROM weir.settings() s WHERE s.name = 'failed_retention'`); got != "7 days" {
		t.Errorf("failed_retention is %s", got)
	}
}

// TestErrorsOfSettingsAreShort: they do not repeat the whole of a long name or value.
func TestErrorsOfSettingsAreShort(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, sql := range []string{
		`SELECT weir.set('failed_retention', repeat('1', 5000))`, `SELECT weir.set('failed_retention', repeat('x', 5000))`, `SELECT weir.set('failed_retention', '400 days' || repeat(' ', 5000))`,
		`SELECT weir.set('retention_bytes', repeat('1', 5000))`, `SELECT weir.set('retention_bytes', repeat('x', 5000))`, `SELECT weir.set(repeat('x', 5000), '1')`,
		`SELECT weir.set(NULL, repeat('x', 5000))`, `SELECT weir.set('q', repeat('x', 5000), '1 s')`,
	} {
		_, err := conn.Exec(t.Context(), sql)
		wantCode(t, sql, err, "22023")
		if err != nil && len(err.Error()) > 500 {
			t.Errorf("%s: the error has %d bytes", sql, len(err.Error()))
		}
	}
}

// TestIntervalIsReadAsItWasSet: a setting is the interval that was given, in every style in which a session may write and read intervals.
func TestIntervalIsReadAsItWasSet(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.enqueue('q', 'k')`)
	styles := []string{"postgres", "sql_standard", "iso_8601", "postgres_verbose"}
	for given, want := range map[string]string{
		"0": "0", " 0 \n": "0", "0.0": "0", "00": "0", "0 s": "0", "14 days": "14 days", "1 day 2:30": "26.5 hours", "90s": "90 seconds", "\n1 day\t": "1 day", "P3D": "3 days",
		"1 year": "1 year", "52 weeks": "364 days", "361 days": "361 days", "365 days": "365 days", "366 days": "366 days", "-1 day 48 hours": "1 day", "-1 day +48:00:00": "1 day",
	} {
		for _, writer := range styles {
			exec(t, conn, `SELECT set_config('intervalstyle', $1, false)`, writer)
			exec(t, conn, `SELECT weir.set('completed_retention', $1), weir.set('q', 'backoff', $1)`, given)
			for _, reader := range styles {
				exec(t, conn, `SELECT set_config('intervalstyle', $1, false)`, reader)
				if n := value[int](t, conn, `SELECT count(*) FROM weir.settings() s WHERE s.name IN ('completed_retention', 'backoff') AND s.value::interval = $1::text::interval`, want); n != 2 {
					t.Errorf("%q, written in the style %s and read in %s, is not %s", given, writer, reader, want)
				}
			}
		}
	}
	for _, given := range []string{"367 days", "53 weeks", "1 year 7 days", "-1 s", "1 day ago", "-14 ago", "14 timezone", "soon"} {
		_, err := conn.Exec(t.Context(), `SELECT weir.set('q', 'backoff', $1)`, given)
		wantCode(t, given, err, "22023")
	}
}
