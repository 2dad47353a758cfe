package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
)

const (
	scansMany = 2.0    // per second: a report scans a table once
	scanLarge = 10_000 // rows per scan
)

// adds matches statements that need all the rows that they scan.
var adds = regexp.MustCompile(`(?i)\b(count|sum|avg|min|max|string_agg|array_agg|json_agg|jsonb_agg)\s*\(|\bgroup\s+by\b`)

var selects = regexp.MustCompile(`(?i)\bwhere\b`)

// scannedTable is a large table that is read from beginning to end, again and again.
type scannedTable struct {
	tableCount
	scans, rows float64 // per second; per scan
	lost        float64
	texts       map[string]int
	keys        map[string]unindexedKey // by which it is searched for references, by their names
}

// checkScans detects statements that read a whole large table, again and again, for the few rows that their WHERE lets through, or for those that refer to
// a row that they delete.
func checkScans(ctx context.Context, l *inspection) (result, error) {
	tables := scannedTables(l)
	oids := make([]uint32, len(tables))
	for i, t := range tables {
		oids[i] = t.OID
	}
	keys := map[uint32][]unindexedKey{}
	if len(oids) > 0 {
		var err error
		if keys, err = unindexedKeys(ctx, l, oids); err != nil {
			return result{}, err
		}
	}
	var all []scannedTable
	for _, t := range tables {
		t.attribute(l, keys[t.OID])
		if t.lost >= noticeable && t.scans >= scansMany {
			all = append(all, t)
		}
	}
	if len(all) == 0 {
		return healthy("No statement scans a large table again and again for a few rows.")
	}
	slices.SortFunc(all, func(a, b scannedTable) int { return cmp.Or(cmp.Compare(b.lost, a.lost), cmp.Compare(a.OID, b.OID)) })
	worst := all[0]
	severity := Info
	if worst.lost >= costly {
		severity = Warning
	}
	f := l.finding(TableScanned, severity, worst.lost, len(l.view.samples))
	f.Summary = fmt.Sprintf("%s is read from beginning to end %s times a second, %s rows each time, by %s sessions at any moment: an index may be missing.",
		worst.qualified(), figure(worst.scans), figure(worst.rows), figure(worst.lost))
	for _, t := range all[:min(len(all), maxFacts)] {
		f.add(`SELECT relname, seq_scan, seq_tup_read, idx_scan FROM pg_stat_user_tables ORDER BY seq_tup_read DESC LIMIT 10 -- twice`,
			"%s: %s scans/s of %s rows each", t.qualified(), figure(t.scans), figure(t.rows))
		for _, name := range slices.Sorted(maps.Keys(t.keys)) {
			f.add(`SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'f'`,
				"%s (%s) refers to %s, and no index begins with it", name, t.keys[name].columns, t.keys[name].referred)
		}
		f.addStatements("", "its statements", CausesIt, t.texts)
	}
	f.Now = fmt.Sprintf("EXPLAIN these statements. If they return a few rows: CREATE INDEX CONCURRENTLY on the columns of %s that their WHERE compares.", worst.qualified())
	if names := slices.Sorted(maps.Keys(worst.keys)); len(names) > 0 {
		k := worst.keys[names[0]]
		f.Summary = fmt.Sprintf("%s is read from beginning to end %s times a second, %s rows each time, to find what refers to rows of %s: no index begins with a column of its foreign key.",
			worst.qualified(), figure(worst.scans), figure(worst.rows), k.referred)
		f.Now = fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s), for %s.", k.table, k.columns, k.name)
	}
	f.ForGood = "Compare columns with values of their own type and without functions around them, so that indexes can be used; create an index for each foreign key to a table whose rows are deleted; and watch seq_tup_read of large tables."
	return found(f)
}

func scannedTables(l *inspection) []scannedTable {
	var tables []scannedTable
	for oid, last := range l.last.Tables {
		first, known := l.first.Tables[oid] // a missing table was not used before, unless the list was truncated
		scans, rows := last.Scans-first.Scans, last.ScanRows-first.ScanRows
		if !known && len(l.first.Tables) >= maxTables || scans <= 0 || per(float64(scans), l.span()) < scansMany || rows/scans < scanLarge {
			continue
		}
		tables = append(tables, scannedTable{tableCount: last, scans: per(float64(scans), l.span()), rows: float64(rows / scans),
			texts: map[string]int{}, keys: map[string]unindexedKey{}})
	}
	slices.SortFunc(tables, func(a, b scannedTable) int { return cmp.Compare(a.OID, b.OID) }) // a recording is asked the same again
	return tables
}

// attribute finds the statements that read the table.
func (t *scannedTable) attribute(l *inspection, keys []unindexedKey) {
	names := naming(t.Name)
	processes, leaders := 0.0, 0.0 // a parallel statement has several processes, each of which counts as a scan
	l.view.each(func(s Session, weight float64) {
		// The leader of a parallel statement mostly waits for its workers.
		leads, reads := s.Kind == "client backend", s.Class == CPU || s.Class == DataIO || s.Class == Buffer
		if s.State != "active" || !leads && s.Kind != "parallel worker" || !reads && s.WaitType != "IPC" {
			return
		}
		if i := slices.IndexFunc(keys, func(k unindexedKey) bool { return k.searches(s.Query) }); i >= 0 {
			t.keys[keys[i].name] = keys[i]
		} else if !names.MatchString(s.Query) || !selects.MatchString(s.Query) || adds.MatchString(s.Query) {
			return
		}
		processes += weight
		if !leads {
			return
		}
		leaders += weight
		t.lost += per(weight, l.view.duration())
		t.texts[shape(s.Query)]++
	})
	if leaders > 0 {
		each := processes / leaders
		t.scans, t.rows = t.scans/each, t.rows*each
	}
}
