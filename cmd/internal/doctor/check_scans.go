package doctor

import (
	"cmp"
	"context"
	"fmt"
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

// checkScans detects statements that read a whole large table, again and again, for the few rows that their WHERE lets through.
func checkScans(_ context.Context, l *inspection) (result, error) {
	type scanned struct {
		tableCount
		scans, rows float64 // per second; per scan
		lost        float64
		texts       map[string]int
	}
	var all []scanned
	for oid, last := range l.last.Tables {
		first, known := l.first.Tables[oid] // a missing table was not used before, unless the list was truncated
		scans, rows := last.Scans-first.Scans, last.ScanRows-first.ScanRows
		if !known && len(l.first.Tables) >= maxTables || scans <= 0 || per(float64(scans), l.span()) < scansMany || rows/scans < scanLarge {
			continue
		}
		t := scanned{last, per(float64(scans), l.span()), float64(rows / scans), 0, map[string]int{}}
		names := regexp.MustCompile(`(?i)(^|[^\w$])` + regexp.QuoteMeta(last.Name) + `($|[^\w$])`)
		l.view.each(func(s Session, weight float64) {
			working := s.State == "active" && (s.Class == CPU || s.Class == DataIO || s.Class == Buffer)
			if working && s.Kind == "client backend" && names.MatchString(s.Query) && selects.MatchString(s.Query) && !adds.MatchString(s.Query) {
				t.lost += per(weight, l.view.duration())
				t.texts[shape(s.Query)]++
			}
		})
		if t.lost >= noticeable {
			all = append(all, t)
		}
	}
	if len(all) == 0 {
		return healthy("No statement scans a large table again and again for a few rows.")
	}
	slices.SortFunc(all, func(a, b scanned) int { return cmp.Or(cmp.Compare(b.lost, a.lost), cmp.Compare(a.OID, b.OID)) })
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
		f.add("", "its statements: %s", ranked(t.texts, total(t.texts), func(s string) string { return s }))
	}
	f.Now = fmt.Sprintf("EXPLAIN these statements. If they return a few rows: CREATE INDEX CONCURRENTLY on the columns of %s that their WHERE compares.", worst.qualified())
	f.ForGood = "Compare columns with values of their own type and without functions around them, so that indexes can be used; and watch seq_tup_read of large tables."
	return found(f)
}
