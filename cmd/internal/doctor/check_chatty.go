package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

const (
	chattyCalls  = 100.0 // per second
	chattyRows   = 0.25  // per call, or fewer
	chattyProbes = 4.0   // index probes per row written
	maxFacts     = 3
)

// conflict matches an INSERT that skips existing rows.
var conflict = regexp.MustCompile(`(?is)\binsert\s+into\s+((?:"[^"]+"|[\w$]+)(?:\s*\.\s*(?:"[^"]+"|[\w$]+))?).*\bon\s+conflict\b.*\bdo\s+nothing\b`)

// checkChatty detects statements that are called often and do nothing: inserts of existing rows, polls that find nothing.
// pg_stat_statements counts them; without it, the samples name the statement, and the scans of its index show how often it runs.
func checkChatty(ctx context.Context, l *inspection) (result, error) {
	if l.server.Statements {
		return chattyCounted(ctx, l)
	}
	return chattySampled(ctx, l)
}

func chattyCounted(ctx context.Context, l *inspection) (result, error) {
	type grown struct {
		key               statementKey
		calls, rows, time float64 // per second; time in seconds
	}
	var all []grown
	for key, last := range l.last.Statements {
		first := l.first.Statements[key]
		if last.Calls < first.Calls {
			first = statementCount{}
		}
		g := grown{key, per(float64(last.Calls-first.Calls), l.span()), per(float64(last.Rows-first.Rows), l.span()), per((last.Time-first.Time)/1000, l.span())}
		if g.calls >= chattyCalls && g.rows <= g.calls*chattyRows {
			all = append(all, g)
		}
	}
	slices.SortFunc(all, func(a, b grown) int {
		return cmp.Or(cmp.Compare(b.time, a.time), cmp.Compare(a.key.Query, b.key.Query), cmp.Compare(a.key.User, b.key.User))
	})
	const limit = 50 // includes BEGIN and COMMIT
	ids := []int64{}
	for _, g := range all[:min(len(all), limit)] {
		ids = append(ids, g.key.Query)
	}
	texts := map[int64]string{}
	if len(ids) > 0 {
		type row struct {
			ID   int64
			Text string `text:"statement"`
		}
		rows, err := list[row](ctx, l.session, "SELECT s.queryid, min(left(s.query, 1000)) FROM "+l.server.statementsSchema+
			".pg_stat_statements s WHERE s.queryid = ANY ($1) AND s.dbid = $2 GROUP BY 1", ids, l.server.databaseOID)
		if err != nil {
			return result{}, err
		}
		for _, r := range rows {
			texts[r.ID] = r.Text
		}
	}
	var f Finding
	for _, g := range all[:min(len(all), limit)] {
		text := shape(texts[g.key.Query])
		if !returnsRows(text) || strings.Contains(texts[g.key.Query], "pg_stat_get_activity") {
			continue
		}
		if f.Code == "" {
			f = l.finding(ChattyStatements, Info, 0, len(l.view.samples))
			f.Summary = fmt.Sprintf("A statement is called %s times a second and affects a row in %s of the calls: %s", figure(g.calls), shareOf(g.rows, g.calls), clip(text, 100))
		}
		f.Lost += g.time
		if len(f.Evidence) < maxFacts {
			f.add("SELECT calls, rows, total_exec_time, query FROM pg_stat_statements ORDER BY calls DESC LIMIT 10 -- twice",
				"%s calls/s, %s rows/s, %s ms a call: %s", figure(g.calls), figure(g.rows), figure(1000*g.time/g.calls), text)
			f.names(CausesIt, text)
		}
	}
	if f.Code == "" {
		return healthy("No statement is called more than %s times a second for almost no rows (pg_stat_statements).", figure(chattyCalls))
	}
	return foundChatty(f)
}

// returnsRows distinguishes statements from BEGIN, COMMIT and SET, which never affect rows.
func returnsRows(text string) bool {
	word, _, _ := strings.Cut(strings.ToLower(strings.TrimLeft(text, "( ")), " ")
	return slices.Contains([]string{"select", "insert", "update", "delete", "with", "merge"}, word)
}

// recentSQL lists each session's last statement, including idle sessions: a statement that takes a tenth of a millisecond is rarely
// sampled while it runs.
const recentSQL = `
SELECT left(a.query, $1), count(*) FROM pg_stat_get_activity(NULL) a
WHERE a.state_change > clock_timestamp() - interval '5 seconds' AND a.datid = $2 AND a.query ~* '\mon\s+conflict\M.*\mdo\s+nothing\M'
GROUP BY 1 ORDER BY 2 DESC LIMIT 100`

func chattySampled(ctx context.Context, l *inspection) (result, error) {
	type row struct {
		Query    string `text:"statement"`
		Sessions int64
	}
	const length = 1000
	recent, err := list[row](ctx, l.session, recentSQL, length, l.server.databaseOID)
	if err != nil {
		return result{}, err
	}
	weight, texts := map[string]float64{}, map[string]string{}
	for _, r := range recent {
		if m := conflict.FindStringSubmatch(r.Query); m != nil {
			texts[target(m)] = shape(r.Query)
		}
	}
	l.view.each(func(s Session, seconds float64) {
		if m := conflict.FindStringSubmatch(s.Query); m != nil && s.State == "active" && s.Database == l.server.databaseOID {
			texts[target(m)] = shape(s.Query)
			weight[target(m)] += seconds
		}
	})
	var f Finding
	for _, oid := range slices.Sorted(maps.Keys(l.last.Tables)) {
		last := l.last.Tables[oid]
		text, found := texts[last.Schema+"."+last.Name]
		seconds := weight[last.Schema+"."+last.Name]
		if !found {
			text, found = texts[last.Name]
			seconds = weight[last.Name]
		}
		first := l.first.Tables[last.OID]
		name := last.qualified()
		probes, written := per(float64(last.IndexScans-first.IndexScans), l.span()), per(float64(last.Inserted-first.Inserted), l.span())
		if !found || probes < chattyCalls || probes < chattyProbes*max(written, 1) {
			continue
		}
		lost := per(seconds, l.view.duration()) * (1 - written/probes)
		if f.Code == "" || lost > f.Lost {
			evidence, statements := f.Evidence, f.Statements
			f = l.finding(ChattyStatements, Info, lost, len(l.view.samples))
			f.Summary = fmt.Sprintf("Existing rows are inserted again: %s index probes/s in %s, for %s rows/s written.", figure(probes), name, figure(written))
			f.Evidence, f.Statements = evidence, append(f.Statements, statements...)
		}
		f.add(fmt.Sprintf("SELECT idx_scan, n_tup_ins FROM pg_stat_user_tables WHERE relid = '%s'::regclass -- twice", name),
			"%s: %s index probes/s for %s rows inserted/s, by %s", name, figure(probes), figure(written), text)
		f.names(CausesIt, text)
	}
	if f.Code == "" {
		r, err := healthy("No INSERT … ON CONFLICT DO NOTHING writes almost nothing.")
		r.unseen = append(r.unseen, "calls and rows of other statements: pg_stat_statements is not installed in "+l.server.Database+", not loaded, or not readable")
		return r, err
	}
	return foundChatty(f)
}

// target returns the table that a match of conflict names, as pg_class spells it if it needs no quotes.
func target(match []string) string {
	return strings.ReplaceAll(strings.ToLower(strings.Join(strings.Fields(match[1]), "")), `"`, "")
}

func foundChatty(f Finding) (result, error) {
	// One call is cheap; only their number is expensive. They never block other sessions.
	if f.Lost >= costly {
		f.Severity = Warning
	}
	f.Now = "Remember the keys already written in the process, and skip those calls."
	f.ForGood = "Write many rows with one statement (unnest, COPY, VALUES lists), once an item is complete."
	f.Lab = "weir lab tree"
	return found(f)
}
