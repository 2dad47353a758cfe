package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

const (
	// Shorter transactions are normal.
	pinnedLong = 5 * time.Second
	// pinnedXIDs is the limit for slots, which report no time, and for standbys whose sessions are not seen.
	pinnedXIDs = 500
	// pinnedXIDsMany makes a pin on a standby a warning, where the tables that suffer can't be seen.
	pinnedXIDsMany = 5_000
	// Dead rows hurt once they outnumber live ones: then a scan reads more of them than of live rows.
	deadNotable = 1_000
	deadSome    = 5_000
	deadMany    = 20_000
	pinnedLate  = time.Minute
)

const seePins = `SELECT pid, datname, usename, application_name, state, xact_start, greatest(age(backend_xid), age(backend_xmin)) AS xids, query
FROM pg_stat_activity WHERE backend_xid IS NOT NULL OR backend_xmin IS NOT NULL ORDER BY xids DESC`

var seePin = map[horizon.Kind]string{
	horizon.Transaction: seePins,
	horizon.Snapshot:    seePins,
	horizon.Prepared:    `SELECT gid, prepared, owner, database, age(transaction) AS xids FROM pg_prepared_xacts ORDER BY prepared`,
	horizon.Slot:        `SELECT slot_name, slot_type, active, age(xmin) AS xids FROM pg_replication_slots WHERE xmin IS NOT NULL`,
	horizon.Standby: `SELECT r.pid, r.application_name, r.client_addr, s.slot_name, age(coalesce(s.xmin, r.backend_xmin)) AS xids
FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE coalesce(s.xmin, r.backend_xmin) IS NOT NULL`,
}

const endSession = "SELECT pg_terminate_backend(%s); or pg_cancel_backend where a statement still runs"

var endPin = map[horizon.Kind]string{
	horizon.Transaction: endSession,
	horizon.Snapshot:    endSession,
	horizon.Prepared:    "COMMIT PREPARED %[1]s or ROLLBACK PREPARED %[1]s, in its database, as its coordinator would",
}

// endOf says how to end a hold. It never advises dropping a slot that may still have a consumer: that destroys a replica.
func endOf(l *inspection, p pin) string {
	switch {
	case p.Kind == horizon.Standby:
		slot := ""
		if p.Slot != "" {
			slot = fmt.Sprintf(" Leave the slot %s alone: without it the standby can't follow.", p.Slot)
		}
		if holders := l.onStandbys(p); len(holders) > 0 {
			if horizon.IsBackup(holders[0].pin.Application) {
				return fmt.Sprintf("On the standby %s, let the backup of pid %d (%s) end.%s", holders[0].at, holders[0].PID, holders[0].pin.Application, slot)
			}
			return fmt.Sprintf("On the standby %s: SELECT pg_terminate_backend(%d);%s", holders[0].at, holders[0].PID, slot)
		}
		return fmt.Sprintf("End the long query on %s, or on one that follows it. On the standby, %s shows it first.%s", p, oneLine(seeOnStandby), slot)
	case p.Kind == horizon.Slot && p.Active:
		return fmt.Sprintf("Let the consumer of the slot %s catch up: it is connected as pid %d (%s). Leave the slot alone.", p.Name, p.PID, orUnnamed(p.Application))
	case p.Kind == horizon.Slot:
		return fmt.Sprintf("Start the consumer of the slot %[1]s again, and it advances. Only if that consumer never comes back: "+
			"SELECT pg_drop_replication_slot(%[2]s); a standby or subscriber that used it must then be made anew.", p.Name, p.quoted())
	}
	if p.Session != nil {
		switch leave := horizon.Leave(p.Session.Backend, p.Application, p.Query); {
		case p.Wait == standbyWait.String():
			return fmt.Sprintf("Leave pid %d alone: %s", p.PID, committed)
		case strings.HasPrefix(leave, "a server process"):
			return fmt.Sprintf("Let pid %d end by itself: it is %s, which would only begin again.", p.PID, leave)
		case leave != "":
			return fmt.Sprintf("Let the backup of pid %d (%s) end: whoever ends its session loses it.", p.PID, p.Application)
		}
	}
	return capitalize(fmt.Sprintf(endPin[p.Kind], p.quoted())) + "."
}

// checkHorizon detects holders that keep dead rows from being removed, and the tables that suffer from it.
func checkHorizon(ctx context.Context, l *inspection) (result, error) {
	view, err := readHorizon(ctx, l.session)
	if err != nil {
		return result{}, err
	}
	l.primary = view
	pins := pinsOf(view)
	now := l.session.now()
	old := l.lasting(pins, now)
	if len(old) == 0 {
		oldest := "nothing holds it back"
		if len(pins) > 0 {
			oldest = fmt.Sprintf("its oldest holder is %s transactions behind", figure(float64(pins[0].Age)))
		}
		return healthy("The vacuum horizon advances: %s.", oldest)
	}
	if l.server.Standby {
		return standbyPins(l, old, now)
	}
	sick, err := keptBy(ctx, l, old[0].held(now), suffering(l))
	if err != nil {
		return result{}, err
	}
	if len(sick) == 0 {
		r, err := healthy("The vacuum horizon is held back (by %s, for %s), but no table suffers from it.", old[0], heldFor(old[0], now))
		return r, err
	}
	return foundPins(ctx, l, old, sick, now)
}

// lasting returns the pins that are old, and were there at the first reading.
func (l *inspection) lasting(pins []pin, now time.Time) []pin {
	var old []pin
	for _, p := range pins {
		was := p.among(l.pins)
		if was < 0 { // it started after the first reading, or holds another snapshot now
			continue
		}
		timed := p.Started != nil
		if p.Kind == horizon.Standby && p.Hold == l.pins[was].Hold {
			p.Started = l.startedThere(p)
		}
		switch {
		case p.Started != nil && p.held(now) >= pinnedLong:
			old = append(old, p)
		// It reports no time, but it has not moved while other transactions ended. One that moves is about as old as it was; the counters are read a little earlier or later.
		case !timed && l.last.NextXID > 0 && p.Age >= pinnedXIDs && p.Age-l.pins[was].Age >= (l.last.NextXID-l.first.NextXID)/2:
			old = append(old, p)
		}
	}
	return old
}

// sufferer is a table with dead rows that a pin keeps there.
type sufferer struct {
	tableCount
	kept          int64 // of its dead rows, by the pin
	deadPerSecond float64
	livePerSecond float64
	inPerSecond   float64
	outPerSecond  float64
	busy          trend
}

// suffering lists tables whose dead rows outnumber live ones and keep growing, worst first.
func suffering(l *inspection) []sufferer {
	var sick []sufferer
	for oid, last := range l.last.Tables {
		first, known := l.first.Tables[oid] // a missing table is new, unless the list was truncated
		if !known && len(l.first.Tables) >= maxTables || last.Dead < deadNotable || last.Dead <= first.Dead {
			continue
		}
		t := sufferer{
			tableCount: last, kept: last.Dead, deadPerSecond: per(float64(last.Dead-first.Dead), l.span()),
			livePerSecond: per(float64(last.Live-first.Live), l.span()),
			inPerSecond:   per(float64(last.Inserted-first.Inserted), l.span()),
			outPerSecond:  per(float64(last.Deleted-first.Deleted), l.span()),
			busy:          busyTrend(l.view, last.Name),
		}
		// A queue is scanned from its oldest rows on, which are the dead ones: a tenth is enough there.
		queue := t.inPerSecond > 0 && t.outPerSecond > t.inPerSecond/10
		if last.Dead >= last.Live || queue && last.Dead >= last.Live/10 {
			sick = append(sick, t)
		}
	}
	slices.SortFunc(sick, func(a, b sufferer) int { return cmp.Or(cmp.Compare(b.Dead, a.Dead), cmp.Compare(a.OID, b.OID)) })
	return sick
}

// keptBy counts, of tables that autovacuum leaves alone, only the dead rows that died during the hold: the others would be there without it. It leaves out the tables
// that have too few of them.
func keptBy(ctx context.Context, l *inspection, held time.Duration, sick []sufferer) ([]sufferer, error) {
	if held == 0 || len(sick) == 0 { // it reports no time
		return sick, nil
	}
	oids := make([]uint32, len(sick))
	for i, t := range sick {
		oids[i] = t.OID
	}
	rows, err := list[vacuumed](ctx, l.session, autovacuumSQL, oids)
	if err != nil {
		return nil, err
	}
	for i := range sick {
		if slices.ContainsFunc(rows, func(v vacuumed) bool { return v.OID == sick[i].OID && v.Off }) {
			sick[i].kept = min(sick[i].Dead, int64(sick[i].deadPerSecond*held.Seconds()))
		}
	}
	sick = slices.DeleteFunc(sick, func(t sufferer) bool { return t.kept < deadNotable })
	slices.SortFunc(sick, func(a, b sufferer) int { return cmp.Or(cmp.Compare(b.kept, a.kept), cmp.Compare(a.OID, b.OID)) })
	return sick, nil
}

func foundPins(ctx context.Context, l *inspection, old []pin, sick []sufferer, now time.Time) (r result, err error) {
	worst := sick[0]
	severity := Info
	if worst.kept >= deadSome || old[0].held(now) >= pinnedLate {
		severity = Warning
	}
	if worst.kept >= deadMany && (worst.kept >= 5*max(worst.Live, 1) || worst.busy.saturated()) {
		severity = Critical
	}
	f := l.finding(HorizonPinned, severity, 0, len(l.view.samples))
	f.Summary = fmt.Sprintf("Dead rows have been kept from removal for %s, by %s: %s has %s of them, and %s live rows.",
		heldFor(old[0], now), old[0], worst.qualified(), figure(float64(worst.kept)), figure(float64(worst.Live)))
	const limit = 5
	l.addPins(&f, old, now)
	for _, t := range sick[:min(len(sick), limit)] {
		f.add(`SELECT relname, n_live_tup, n_dead_tup, last_autovacuum FROM pg_stat_user_tables ORDER BY n_dead_tup DESC`,
			"%s: %s dead rows and %s live ones; %s more dead rows a second, live rows %s/s", t.qualified(), figure(float64(t.Dead)), figure(float64(t.Live)),
			figure(t.deadPerSecond), signed(t.livePerSecond))
		if t.kept < t.Dead {
			f.add("", "%s: about %s of its dead rows died meanwhile; the others are there because autovacuum is off for it", t.qualified(), figure(float64(t.kept)))
		}
		if text := t.busy.text(); text != "" {
			f.add("", "%s: %s", t.qualified(), text)
		}
	}
	if slow, text := slower(ctx, l, sick); slow != "" {
		f.add("SELECT calls, mean_exec_time, query FROM pg_stat_statements ORDER BY total_exec_time DESC -- twice", "%s", slow)
		f.names(SuffersIt, text)
	}
	f.add("", "%s", outlook(worst))
	if f.Now, err = endOldest(ctx, l, &f, old[0], now); err != nil {
		return result{}, err
	}
	f.ForGood = "Limit transactions at their source: idle_in_transaction_session_timeout, transaction_timeout (17 and later), " +
		"statement_timeout for reports; weir guard ends those that do harm. A queue whose rows are never updated or deleted, such as Weir's, is not affected."
	f.Lab = "weir lab pinned"
	return found(f)
}

// endOldest says how to end the oldest hold. A session that has spent most of it in a line goes on, and ends, once the head of that line does.
func endOldest(ctx context.Context, l *inspection, f *Finding, p pin, now time.Time) (string, error) {
	if p.Session == nil || p.Wait == "" {
		return endOf(l, p), nil
	}
	kind, event, _ := strings.Cut(p.Wait, ":")
	class := classify("active", kind, event)
	if kind != "Lock" {
		f.holders[class]++
		return endOf(l, p), nil
	}
	tree, err := readBlocking(ctx, l.session)
	if err != nil {
		return "", err
	}
	line := tree.line(uint32(p.PID))
	if len(line) == 0 || 2*line[0].Waited < p.held(now).Seconds() {
		return endOf(l, p), nil
	}
	f.holders[class]++
	pids := make([]uint32, len(line))
	for i, b := range line {
		pids[i] = b.PID
	}
	heads, err := l.blockers(ctx, pids)
	if err != nil {
		return "", err
	}
	leave := fmt.Sprintf("Leave pid %d alone: it has waited in a line for %s.", p.PID, span(seconds(line[0].Waited)))
	if len(heads) == 0 {
		return leave + " Whoever it waited for has ended by now.", nil
	}
	f.add(seeBlockers, "pid %d itself waits: %s", p.PID, heads[0].text())
	f.names(HoldsIt, heads[0].Query)
	return leave + " " + heads[0].end(), nil
}

// addPins lists the oldest holders, and for a standby the sessions behind it.
func (l *inspection) addPins(f *Finding, old []pin, now time.Time) {
	const limit = 5
	for i, p := range old[:min(len(old), limit)] {
		also := ""
		if i > 0 {
			also = "also held by "
		}
		fact := fmt.Sprintf("%s%s: for %s", also, p, heldFor(p, now))
		if p.Started != nil {
			fact += ", " + many(p.Age, "transaction")
		}
		if p.Scope == horizon.Through {
			fact += "; it is in another database, but has written, so every snapshot here counts it as running"
		}
		if p.Query != "" {
			fact += "; last statement: " + shape(p.Query)
			f.names(HoldsIt, p.Query)
		}
		f.add(seePin[p.Kind], "%s", fact)
		if p.Kind != horizon.Standby {
			continue
		}
		holders := l.onStandbys(p)
		for _, h := range holders[:min(len(holders), limit)] {
			f.add(seeOnStandby, "on the standby %s: %s, for %s; last statement: %s", h.at, h.pin, heldFor(h.pin, now), shape(h.Query))
			f.names(HoldsIt, h.Query)
		}
		if len(holders) == 0 {
			f.add("", "which query it is shows only on the standby: weir doctor --standby URL names it, and so does weir doctor there")
		}
	}
}

// standbyPins reports the sessions of a standby that hold the horizon of its primary through hot_standby_feedback.
func standbyPins(l *inspection, old []pin, now time.Time) (result, error) {
	if !l.server.feedback {
		return healthy("%s holds an old snapshot, for %s; with hot_standby_feedback off it holds nothing on the primary.", capitalize(old[0].String()), heldFor(old[0], now))
	}
	severity := Info
	if old[0].held(now) >= pinnedLate || old[0].Age >= pinnedXIDsMany {
		severity = Warning
	}
	f := l.finding(HorizonPinned, severity, 0, len(l.view.samples))
	f.Summary = fmt.Sprintf("Through hot_standby_feedback this standby has kept dead rows of the primary from removal for %s, by %s.", heldFor(old[0], now), old[0])
	l.addPins(&f, old, now)
	f.add("", "which tables suffer shows only on the primary")
	f.Now = endOf(l, old[0])
	f.ForGood = "Limit transactions at their source, on standbys too: idle_in_transaction_session_timeout, statement_timeout for reports. " +
		"weir guard --standby ends those that do harm. Without hot_standby_feedback, long queries are cancelled instead."
	f.Lab = "weir lab pinned"
	return found(f)
}

func heldFor(p pin, now time.Time) string {
	if p.Started == nil {
		return many(p.Age, "transaction")
	}
	return span(p.held(now))
}

func capitalize(text string) string {
	if text == "" || text[0] < 'a' || text[0] > 'z' {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

func signed(x float64) string {
	if x >= 0 {
		return "+" + figure(x)
	}
	return "-" + figure(-x)
}
