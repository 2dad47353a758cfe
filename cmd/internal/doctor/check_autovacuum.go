package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

const (
	overdueTimes = 10 // naptimes since the last vacuum, and thresholds of dead rows
	offTimes     = 2  // thresholds, where autovacuum is off
)

const seeAutovacuum = `SELECT relname, n_live_tup, n_dead_tup, last_autovacuum, last_vacuum FROM pg_stat_user_tables ORDER BY n_dead_tup DESC LIMIT 10`

const autovacuumSQL = `
SELECT c.oid, NOT (current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean
         AND coalesce((SELECT o.option_value FROM pg_options_to_table(c.reloptions) o WHERE o.option_name = 'autovacuum_enabled'), 'true')::boolean),
       coalesce((SELECT o.option_value FROM pg_options_to_table(c.reloptions) o WHERE o.option_name = 'autovacuum_vacuum_threshold'), current_setting('autovacuum_vacuum_threshold'))::float8
       + coalesce((SELECT o.option_value FROM pg_options_to_table(c.reloptions) o WHERE o.option_name = 'autovacuum_vacuum_scale_factor'), current_setting('autovacuum_vacuum_scale_factor'))::float8
       * greatest(c.reltuples, 0),
       extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum, pg_postmaster_start_time()))::float8,
       EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.relid = c.oid)
FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid WHERE c.oid = ANY ($1::oid[])`

const autovacuumSettingsSQL = `
SELECT current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean, (SELECT p.setting::float8 FROM pg_settings p WHERE p.name = 'autovacuum_naptime'),
       current_setting('autovacuum_max_workers')::bigint, (SELECT count(*) FROM pg_stat_get_activity(NULL) a WHERE a.backend_type = 'autovacuum worker')`

// vacuumed is what autovacuum does about a table.
type vacuumed struct {
	OID             uint32
	Off             bool    // for it, or for the whole server
	Threshold, Last float64 // dead rows; seconds
	Now             bool
}

// checkAutovacuum detects tables that fill with dead rows because autovacuum is off, or does not get to them.
func checkAutovacuum(ctx context.Context, l *inspection) (result, error) {
	var oids []uint32
	for oid, t := range l.last.Tables {
		if first, known := l.first.Tables[oid]; t.Dead >= deadSome && t.Dead >= t.Live/2 && (t.Dead > first.Dead || !known) {
			oids = append(oids, oid)
		}
	}
	if len(oids) == 0 {
		return healthy("Autovacuum keeps up: no table has many dead rows, and more of them all the time.")
	}
	type settings struct {
		On               bool
		Naptime          float64
		Workers, Working int64
	}
	on, err := one[settings](ctx, l.session, autovacuumSettingsSQL)
	if err != nil {
		return result{}, err
	}
	rows, err := list[vacuumed](ctx, l.session, autovacuumSQL, oids)
	if err != nil {
		return result{}, err
	}
	pinned := slices.ContainsFunc(l.findings, func(f Finding) bool { return f.Code == HorizonPinned })
	type sick struct {
		tableCount
		vacuumed
	}
	var all []sick
	for _, r := range rows {
		t := sick{l.last.Tables[r.OID], r}
		dead := float64(t.Dead)
		switch {
		case r.Now:
		case t.Off && dead >= offTimes*r.Threshold:
			all = append(all, t)
		// VACUUM can't remove what something holds; that is another finding.
		case !t.Off && !pinned && dead >= overdueTimes*r.Threshold && t.Dead >= deadMany && r.Last >= overdueTimes*on.Naptime:
			all = append(all, t)
		}
	}
	if len(all) == 0 {
		return healthy("Autovacuum keeps up, or has not had the time yet.")
	}
	slices.SortFunc(all, func(a, b sick) int {
		return cmp.Or(cmp.Compare(b.Dead, a.Dead), cmp.Compare(a.vacuumed.OID, b.vacuumed.OID))
	})
	worst := all[0]
	severity := Warning
	if worst.Dead >= deadMany && worst.Dead >= 5*max(worst.Live, 1) {
		severity = Critical
	}
	f := l.finding(AutovacuumBehind, severity, 0, len(l.view.samples))
	f.table = worst.Name
	why := "autovacuum does not get to it"
	if worst.Off {
		why = "autovacuum is off for it"
	}
	f.Summary = fmt.Sprintf("%s has %s dead rows and %s live ones, and more of them all the time: %s.",
		worst.qualified(), figure(float64(worst.Dead)), figure(float64(worst.Live)), why)
	for _, t := range all[:min(len(all), maxFacts)] {
		state := fmt.Sprintf("the last vacuum was %s ago or longer", span(seconds(t.Last)))
		if t.Off {
			state = "autovacuum is off"
		}
		f.add(seeAutovacuum, "%s: %s dead rows, %s live; vacuum is due from %s on; %s", t.qualified(), figure(float64(t.Dead)), figure(float64(t.Live)), figure(t.Threshold), state)
	}
	names, err := relationNames(ctx, l.session, []uint32{worst.tableCount.OID})
	if err != nil {
		return result{}, err
	}
	table := cmp.Or(names[worst.tableCount.OID], worst.qualified()) // dropped meanwhile
	switch {
	case !on.On:
		f.add("SHOW autovacuum; SHOW track_counts", "autovacuum or track_counts is off for the whole server")
		f.Now = fmt.Sprintf("ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf(); VACUUM (ANALYZE) %s;", table)
	case worst.Off:
		f.Now = fmt.Sprintf("ALTER TABLE %[1]s RESET (autovacuum_enabled); VACUUM (ANALYZE) %[1]s;", table)
	default:
		f.add(`SELECT pid, query FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'`, "%d of %d autovacuum workers are at work", on.Working, on.Workers)
		f.Now = fmt.Sprintf("VACUUM (ANALYZE) %s; if it waits, pg_blocking_pids shows for whom.", table)
	}
	f.ForGood = "Leave autovacuum on, and make it quicker where rows die quickly: autovacuum_vacuum_scale_factor per table, autovacuum_max_workers, and a lower autovacuum_vacuum_cost_delay. " +
		"Keep locks of whole tables short, because autovacuum gives way to them."
	return found(f)
}
