package proof

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/jackc/pgx/v5"
	"github.com/netresearch/go-cron"

	"github.com/weir-pg/weir/internal/pgtest"
)

// nextTimes returns due times of an expression, n of them.
func nextTimes(t *testing.T, conn *pgx.Conn, schedule, zone string, after time.Time, n int) []time.Time {
	t.Helper()
	return column[time.Time](t, conn, `SELECT * FROM weir.next_times($1, $2, $3, $4)`, schedule, zone, after, n)
}

// TestDueTimesOfExpressions: each form of a schedule is due when it should be.
func TestDueTimesOfExpressions(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, c := range []struct{ schedule, zone, after, want string }{
		{"30 2 * * *", "UTC", "2026-01-01T02:30:00Z", "2026-01-02T02:30:00Z 2026-01-03T02:30:00Z"},
		{"30 2 * * *", "UTC", "2026-01-01T02:29:59.999999Z", "2026-01-01T02:30:00Z"},
		{"*/20 59 23 31 dec *", "UTC", "2026-01-01T00:00:00Z", "2026-12-31T23:59:00Z 2026-12-31T23:59:20Z 2026-12-31T23:59:40Z 2027-12-31T23:59:00Z"},
		{"0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"0 0 31 * *", "UTC", "2026-01-31T00:00:00Z", "2026-03-31T00:00:00Z 2026-05-31T00:00:00Z"},
		{"0 9 * * mon-fri", "UTC", "2026-01-02T09:00:00Z", "2026-01-05T09:00:00Z"},                                           // from a Friday
		{"0 9 * * fri-sun", "UTC", "2026-01-02T09:00:00Z", "2026-01-03T09:00:00Z 2026-01-04T09:00:00Z 2026-01-09T09:00:00Z"}, // a range that ends on Sunday
		{"0 0 * * 0", "UTC", "2026-01-02T00:00:00Z", "2026-01-04T00:00:00Z"},
		{"0 0 * * 7", "UTC", "2026-01-02T00:00:00Z", "2026-01-04T00:00:00Z"},
		{"0 0 13 * fri", "UTC", "2026-01-10T00:00:00Z", "2026-01-13T00:00:00Z 2026-01-16T00:00:00Z"},  // the 13th, and Fridays
		{"0 0 */2 * fri", "UTC", "2026-01-10T00:00:00Z", "2026-01-23T00:00:00Z 2026-02-13T00:00:00Z"}, // Fridays that are odd days
		{"5/20,0 3 * * *", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T03:00:00Z 2026-01-01T03:05:00Z 2026-01-01T03:25:00Z 2026-01-01T03:45:00Z 2026-01-02T03:00:00Z"},
		{"10-30/10  8 *  JAN *", "UTC", "2026-01-31T08:20:00Z", "2026-01-31T08:30:00Z 2027-01-01T08:10:00Z"},
		{"@hourly", "Asia/Kathmandu", "2026-01-01T00:00:00Z", "2026-01-01T00:15:00Z 2026-01-01T01:15:00Z"}, // 5:45 ahead of UTC
		{"@Daily", "Europe/Berlin", "2026-01-01T00:00:00Z", "2026-01-01T23:00:00Z"},
		{"@weekly", "UTC", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"},
		{"@monthly", "UTC", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"},
		{"@yearly", "UTC", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"every 90 seconds", "Europe/Berlin", "2026-01-01T00:00:00Z", "2026-01-01T00:01:30Z 2026-01-01T00:03:00Z"},
		{"@every 1h30m", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T01:30:00Z"},
		{"every 2 weeks from 2026-01-05 09:00", "Europe/Berlin", "2026-03-10T00:00:00Z", "2026-03-16T08:00:00Z 2026-03-30T08:00:00Z"}, // real time: 10:00 in summer
		{"every 1 day from 2030-01-01T12:00:00+02:00", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T10:00:00Z"},                         // before its anchor, too
		{"every 1 day from 2026-01-05 09:00 -5", "Europe/Berlin", "2026-01-05T00:00:00Z", "2026-01-05T14:00:00Z"},
		{"every 1 day from 2026-01-05 09:00-05:30", "Europe/Berlin", "2026-01-05T00:00:00Z", "2026-01-05T14:30:00Z"},
		{"every 1 day from 2026-1-5 9:00 +0530", "Europe/Berlin", "2026-01-05T00:00:00Z", "2026-01-05T03:30:00Z"},
		{"every 1 day from 2026-01-05T09:00:30Z", "Europe/Berlin", "2026-01-05T00:00:00Z", "2026-01-05T09:00:30Z"},
		{"every 1 day from 2026-01-05", "Europe/Berlin", "2026-01-05T00:00:00Z", "2026-01-05T23:00:00Z"},
	} {
		after, err := time.Parse(time.RFC3339Nano, c.after)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Fields(c.want)
		var got []string
		for _, at := range nextTimes(t, conn, c.schedule, c.zone, after, len(want)) {
			got = append(got, at.UTC().Format(time.RFC3339))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s (%s) after %s is due at %v, want %v", c.schedule, c.zone, c.after, got, want)
		}
	}
}

// TestMistakesInSchedulesAreNamed: an expression that can't be understood is refused, with the field and the value.
func TestMistakesInSchedulesAreNamed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	set := func(schedule, zone string) error {
		_, err := conn.Exec(t.Context(), `SELECT weir.set_schedule('s', $1, 'q', 'k', time_zone => $2)`, schedule, zone)
		return err
	}
	for _, c := range []struct{ schedule, zone, want string }{
		{"60 * * * *", "UTC", "minute 60 is not in 0-59"},
		{"* * * * * 24 *", "UTC", "has 7 fields"},
		{"* 24 * * *", "UTC", "hour 24 is not in 0-23"},
		{"* * 0 * *", "UTC", "day 0 is not in 1-31"},
		{"* * * 13 *", "UTC", "month 13 is not in 1-12"},
		{"* * * * 8", "UTC", "weekday 8 is not in 0-7"},
		{"61 * * * * *", "UTC", "second 61 is not in 0-59"},
		{"* * * mon *", "UTC", "mon is not a month"},
		{"* * * * jan", "UTC", "jan is not a weekday"},
		{"* * * * unm", "UTC", "unm is not a weekday"},
		{"mon * * * *", "UTC", "mon is not a minute"},
		{"x * * * *", "UTC", "'x' is not a minute"},
		{"1, * * * *", "UTC", "'' is not a minute"},
		{"*-5 * * * *", "UTC", "'*-5' is not a minute"},
		{"-1 * * * *", "UTC", "'-1' is not a minute"},
		{"*/0 * * * *", "UTC", "the step 0 of minute is not in 1-59"},
		{"*/90 * * * *", "UTC", "the step 90 of minute is not in 1-59"},
		{"* 22-2 * * *", "UTC", "the range 22-2 of hour runs backwards"},
		{"99999999999999999999 * * * *", "UTC", "is not a minute"},
		{"", "UTC", "1 to 1000 characters, got 0"},
		{strings.Repeat("1,", 600) + "1 * * * *", "UTC", "1 to 1000 characters"},
		{"* * *", "UTC", "has 3 fields"},
		{"*", "UTC", "has 1 field"},
		{"@reboot", "UTC", "unknown schedule @reboot"},
		{"0 0 30 feb *", "UTC", "is never due"},
		{"every 0 seconds", "UTC", "is not in 1 second to 366 days"},
		{"every 1.5 seconds", "UTC", "is not in 1 second to 366 days"},
		{"every 5", "UTC", "the interval of a schedule needs a unit, got 5"}, // PostgreSQL would take it for seconds
		{"every 1 month", "UTC", "without months"},
		{"every -1 day", "UTC", "is not in 1 second to 366 days"},
		{"every blue moon", "UTC", "'every blue moon' is not an interval"},
		{"every 1 day from noon", "UTC", "'noon' is not a time from which"},
		{"every 1 day from infinity", "UTC", "'infinity' is not a time from which"},
		{"every 1 day from tomorrow", "UTC", "'tomorrow' is not a time from which"}, // which would be another day whenever it is declared
		{"every 1 day from 2026-01-05 09:00 UTC", "Europe/Berlin", "'2026-01-05 09:00 utc' is not a time from which"},
		{"every 1 day from 2026-01-05 09:00 America/New_York", "UTC", "'2026-01-05 09:00 america/new_york' is not a time from which"},
		{"every 1 day from 2026-01-05 -5", "UTC", "'2026-01-05 -5' is not a time from which"},
		{"every 1 day from 2026-01-05 09:00:00.5", "UTC", "is not a time from which"},
		{"every 1 day from 2026-13-05 09:00", "UTC", "out of range"},
		{"every 1 day from 2026-01-05 09:00+24", "UTC", "out of range"},
		{"every 1 day from 1899-12-31 09:00", "UTC", "years 1900 to 9998"},
		{"* * * * *", "Europe/Berlni", "unknown time zone 'Europe/Berlni'"},
		{"* * * * *", "UTC+1", "unknown time zone 'UTC+1'"},
		{"* * * * *", "Europe/Berlin+1", "unknown time zone 'Europe/Berlin+1'"},
		{"* * * * *", "", "unknown time zone ''"},
	} {
		if err := set(c.schedule, c.zone); sqlstate(err) != "22023" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q (%s): %v, want SQLSTATE 22023 and %q", c.schedule, c.zone, err, c.want)
		}
	}
	if err := set("* * * * *", "europe/berlin"); err != nil {
		t.Error(err)
	}
	if got := value[string](t, conn, `SELECT time_zone FROM weir.schedules('s')`); got != "Europe/Berlin" {
		t.Errorf("the time zone is %s, want it as PostgreSQL writes it", got)
	}
}

// zones are time zones with half and quarter hours, with changes of half an hour, and without changes.
var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/St_Johns", "Pacific/Chatham", "Asia/Kathmandu"}

// midnightZones are time zones where clocks have changed at midnight, or have skipped a day.
var midnightZones = []string{"Africa/Cairo", "America/Santiago", "America/Sao_Paulo", "Asia/Beirut", "Pacific/Apia"}

// TestDueTimesAreThoseOfACronLibrary: a thousand random expressions are due when github.com/netresearch/go-cron says. Not compared is where Weir
// differs on purpose: near changes of clocks, and in time zones where they change at midnight, which TestDueTimesWhenClocksChange covers; and a day
// field like */2, which is combined with the weekday as in Vixie's cron.
func TestDueTimesAreThoseOfACronLibrary(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	rng := rand.New(rand.NewPCG(newSeed(t), 0))
	parser := cron.MustNewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.DowOrDom)
	compared, expressions := 0, 1000
	if *longFlag > 0 {
		expressions = 20_000
	}
	for range expressions {
		schedule := randomExpression(rng)
		zone := zones[rng.IntN(len(zones))]
		location, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		oracle, err := parser.Parse(schedule)
		if err != nil {
			t.Fatalf("%s: %v", schedule, err)
		}
		at := time.Unix(1_000_000_000+rng.Int64N(1_500_000_000), rng.Int64N(2)*rng.Int64N(1e9)/1000*1000)
		for _, got := range column[time.Time](t, conn, `WITH p AS MATERIALIZED (SELECT weir._parse_schedule($1, $2) AS fields), a AS MATERIALIZED (SELECT weir._due_after(p.fields, $2, $3) AS due FROM p),
				b AS MATERIALIZED (SELECT weir._due_after(p.fields, $2, a.due) AS due FROM a, p)
			SELECT u.due FROM a, b, p, unnest(ARRAY[a.due, b.due, weir._due_after(p.fields, $2, b.due)]) u(due) WHERE u.due IS NOT NULL`, schedule, zone, at) {
			want := oracle.Next(at.In(location))
			if want.IsZero() { // the library looks ahead for a few years
				break
			}
			if !slices.ContainsFunc([]time.Time{at, want, got}, func(at time.Time) bool { return changes(location, at.Add(-26*time.Hour), at.Add(26*time.Hour)) }) {
				compared++
				if !got.Equal(want) {
					t.Errorf("%s (%s) after %s is due at %s, want %s", schedule, zone, at.UTC(), got.UTC(), want.UTC())
				}
			}
			at = got
		}
	}
	if compared < expressions {
		t.Errorf("compared %d due times, want at least %d", compared, expressions)
	}
}

// changes reports whether clocks change between two instants that are at most a few days apart.
func changes(in *time.Location, from, to time.Time) bool {
	_, a := from.In(in).Zone()
	_, b := to.In(in).Zone()
	return a != b
}

func randomExpression(rng *rand.Rand) string {
	field := func(low, high int, names ...string) string {
		value := func(n int) string {
			if len(names) > 0 && rng.IntN(3) == 0 {
				return names[n-low]
			}
			return fmt.Sprint(n)
		}
		var items []string
		for range 1 + rng.IntN(2)*rng.IntN(4) {
			a := low + rng.IntN(high-low+1)
			b := a + rng.IntN(high-a+1)
			switch n := rng.IntN(4); {
			case n == 0:
				items = append(items, fmt.Sprintf("%s-%s", value(a), value(b)))
			case n == 1 && b > a:
				items = append(items, fmt.Sprintf("%s-%s/%d", value(a), value(b), 1+rng.IntN(b-a)))
			default:
				items = append(items, value(a))
			}
		}
		return strings.Join(items, ",")
	}
	often := func(f string, step bool) string {
		switch n := rng.IntN(5); {
		case n < 2:
			return "*"
		case n == 2 && step:
			return fmt.Sprintf("*/%d", 1+rng.IntN(11))
		}
		return f
	}
	fields := []string{often(field(0, 59), true), often(field(0, 23), true), often(field(1, 31), false),
		often(field(1, 12, "jan", "FEB", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), true),
		often(field(0, 6, "sun", "mon", "tue", "Wed", "thu", "fri", "sat"), false)}
	if rng.IntN(2) == 0 {
		fields = append([]string{often(field(0, 59), true)}, fields...)
	}
	return strings.Join(fields, " ")
}

// TestDueTimesWhenClocksChange: around each change of the clocks in many time zones, forwards and back, an expression whose minute or hour begins
// with * follows the clock. Any other is due at the first of equal times, and right after the gap for times that the clock skips.
func TestDueTimesWhenClocksChange(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	rng := rand.New(rand.NewPCG(newSeed(t), 0))
	expressions := []string{"30 2 * * *", "0 0 * * *", "15,45 1-3 * * *", "0 * * * *", "*/10 2 * * *", "30 1 * * *", "0 3 * * *", "59 23 * * *", "0-59 1 * * *",
		"*/30 * * * *", "30 0 * * sun", "7 */3 * * *"}
	for range 10 {
		expressions = append(expressions, fmt.Sprintf("%d %d-%d * * *", rng.IntN(60), rng.IntN(3), 3+rng.IntN(3)))
	}
	found := 0
	for _, zone := range slices.Concat(zones, midnightZones) {
		location, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		var all []time.Time
		for at := time.Date(2009, 1, 1, 0, 0, 0, 0, time.UTC); at.Year() < 2026; at = at.Add(30 * time.Minute) {
			if next := at.Add(30 * time.Minute); changes(location, at, next) {
				for !changes(location, at, at.Add(time.Minute)) {
					at = at.Add(time.Minute)
				}
				all = append(all, at.Add(time.Minute))
			}
		}
		found += len(all)
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if zone == "Pacific/Apia" { // on 30 December 2011 it went from one side of the date line to the other
			all = append([]time.Time{time.Date(2011, 12, 30, 10, 0, 0, 0, time.UTC)}, all...)
		}
		for _, change := range all[:min(4, len(all))] {
			for _, schedule := range expressions {
				from, to := change.Add(-27*time.Hour).Add(time.Duration(rng.IntN(3600))*time.Second), change.Add(30*time.Hour)
				fields := value[[]string](t, conn, `SELECT weir._parse_schedule($1, $2)`, schedule, zone)
				want := dueByTheMinute(fields, location, from, to)
				got := column[time.Time](t, conn, `WITH RECURSIVE due(at) AS (SELECT weir._due_after($1, $2, $3) UNION ALL SELECT weir._due_after($1, $2, d.at) FROM due d WHERE d.at < $4)
					SELECT d.at FROM due d WHERE d.at < $4 LIMIT $5`, fields, zone, from, to, len(want)+1)
				if !slices.EqualFunc(got, want, time.Time.Equal) {
					t.Errorf("%s (%s), change at %s, after %s: due at\n%v, want\n%v", schedule, zone, change, from.UTC(), got, want)
				}
				if n := len(got); n > 2 { // of many that are over, the last one is found
					if last := value[time.Time](t, conn, `SELECT weir._due_upto($1, $2, $3, $4)`, fields, zone, got[0], to.Add(-time.Microsecond)); !last.Equal(got[n-1]) {
						t.Errorf("%s (%s): the last before %s is %s, want %s", schedule, zone, to, last.UTC(), got[n-1])
					}
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("found %d changes of clocks, want at least 100", found)
	}
}

// dueByTheMinute returns the due times of a parsed expression after from and before to, by looking at each minute.
func dueByTheMinute(fields []string, in *time.Location, from, to time.Time) (due []time.Time) {
	matches := func(wall time.Time) bool {
		return fields[1][wall.Minute()] == '1' && fields[2][wall.Hour()] == '1' && fields[3][wall.Day()-1] == '1' && fields[4][wall.Month()-1] == '1' && fields[5][wall.Weekday()] == '1'
	}
	wall := func(at time.Time) time.Time { // what clocks show, as if it were UTC
		_, ahead := at.In(in).Zone()
		return at.Add(time.Duration(ahead) * time.Second).UTC()
	}
	add := func(at time.Time) {
		if at.After(from) && at.Before(to) && (len(due) == 0 || due[len(due)-1].Before(at)) {
			due = append(due, at.UTC())
		}
	}
	start := from.Add(-48 * time.Hour).UTC().Truncate(time.Minute)
	shown := wall(start) // up to here, each time has been shown
	for at := start; at.Before(to); at = at.Add(time.Minute) {
		now := wall(at)
		if fields[7] == "real" {
			if matches(now) {
				add(at)
			}
			continue
		}
		for ; !shown.After(now); shown = shown.Add(time.Minute) {
			if matches(shown) {
				add(at)
			}
		}
	}
	return due
}
