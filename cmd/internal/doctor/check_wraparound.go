package doctor

import (
	"context"
	"fmt"
)

const (
	wrapFar    = 1_000_000_000 // transactions, from which on it is a warning whatever the settings
	wrapNear   = 1_600_000_000 // VACUUM's failsafe
	wrapEnd    = 1<<31 - 3_000_000
	wrapTimes  = 2 // of autovacuum_freeze_max_age: by then autovacuum has tried in vain
	seeWrap    = `SELECT datname, age(datfrozenxid), mxid_age(datminmxid) FROM pg_database ORDER BY 2 DESC`
	wrapTables = `SELECT c.oid::regclass::text, age(c.relfrozenxid)::bigint FROM pg_class c WHERE c.relkind IN ('r', 'm', 't') ORDER BY 2 DESC LIMIT 3`
)

// wrapSQL returns the age that is furthest beyond, or nearest to, what is a finding, of all databases and of both kinds of ids: each kind has a limit of its own.
var wrapSQL = fmt.Sprintf(`
SELECT d.datname::text, i.multi, i.age, i.most, d.datallowconn, quote_ident(d.datname)
FROM pg_database d CROSS JOIN LATERAL (VALUES
  (false, age(d.datfrozenxid)::bigint, current_setting('autovacuum_freeze_max_age')::bigint),
  (true, mxid_age(d.datminmxid)::bigint, current_setting('autovacuum_multixact_freeze_max_age')::bigint)) AS i(multi, age, most)
ORDER BY CASE WHEN i.age >= %[3]d THEN i.age END DESC NULLS LAST, i.age::float8 / least(%[1]d * i.most, %[2]d) DESC LIMIT 1`, wrapTimes, wrapFar, wrapNear)

// checkWraparound detects a database whose oldest rows are not frozen in time. Before transaction ids wrap around, the server refuses to write.
func checkWraparound(ctx context.Context, l *inspection) (result, error) {
	type row struct {
		Database   string
		Multi      bool
		Age, Limit int64
		Opens      bool // it allows connections
		Quoted     string
	}
	w, err := one[row](ctx, l.session, wrapSQL)
	if err != nil {
		return result{}, err
	}
	age, limit := w.Age, w.Limit
	what, rate := "transaction ids", l.rate(func(c *counters) int64 { return c.NextXID })
	if w.Multi {
		what, rate = "multixact ids", l.rate(func(c *counters) int64 { return c.NextMultiXact })
	}
	if age < min(wrapTimes*limit, wrapFar) {
		return healthy("The oldest database (%s) is %s %s old, of %s.", w.Database, figure(float64(age)), what, figure(wrapEnd))
	}
	severity := Warning
	if age >= wrapNear {
		severity = Critical
	}
	f := l.finding(WraparoundNear, severity, 0, len(l.view.samples))
	f.Summary = fmt.Sprintf("Database %s has not been frozen for %s %s; at %s the server stops writing.", w.Database, figure(float64(age)), what, figure(wrapEnd))
	f.add(seeWrap, "autovacuum freezes tables from %s on, so it has not succeeded for a long time", figure(float64(limit)))
	if rate > 0 {
		f.add("", "at %s a second, it stops in %s", figure(rate), span(seconds(min(max(float64(wrapEnd-age), 0)/rate, centuries))))
	}
	type table struct {
		Name string
		Age  int64
	}
	if w.Database == l.server.Database {
		tables, err := list[table](ctx, l.session, wrapTables)
		if err != nil {
			return result{}, err
		}
		for _, t := range tables {
			f.add(wrapTables, "%s: %s", t.Name, figure(float64(t.Age)))
		}
	}
	freeze := "VACUUM (FREEZE, VERBOSE) the oldest tables, in database " + w.Database + "."
	if !w.Opens {
		f.add("SELECT datname, datallowconn FROM pg_database", "database %s allows no connections, so only autovacuum gets there", w.Database)
		freeze = fmt.Sprintf("Database %[1]s allows no connections. As a superuser: ALTER DATABASE %[2]s ALLOW_CONNECTIONS true; then VACUUM (FREEZE); there, in a new connection; then ALTER DATABASE %[2]s ALLOW_CONNECTIONS false;", w.Database, w.Quoted)
	}
	f.Now = freeze
	view, err := readHorizon(ctx, l.session)
	if err != nil {
		return result{}, err
	}
	l.primary = view
	pins := pinsOf(view)
	// Nothing that is newer than the oldest holder can be frozen.
	if len(pins) > 0 && pins[0].Age >= limit {
		f.add(seePin[pins[0].Kind], "nothing newer can be frozen while this holds it: %s, %s transactions", pins[0], figure(float64(pins[0].Age)))
		f.Now = endOf(l, pins[0]) + " Then VACUUM (FREEZE) the oldest tables."
		if !w.Opens {
			f.Now = endOf(l, pins[0]) + " Then autovacuum goes on; if that takes too long: " + freeze
		}
	}
	f.ForGood = "Let autovacuum do it: end what it waits for, and give it more workers and a lower autovacuum_vacuum_cost_delay. Raise an alert on age(datfrozenxid)."
	return found(f)
}
