package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

const (
	sequenceFar  = 0.75 // of what the sequence, or the type of its column, can count
	sequenceNear = 0.95
	maxSequences = 200 // read at a time, those of the largest tables
)

const seeSequences = `SELECT schemaname, sequencename, last_value, max_value FROM pg_sequences ORDER BY last_value::float8 / max_value DESC NULLS LAST LIMIT 10`

// sequencesSQL lists the sequences of columns that count up to what an integer or a smallint can hold. Those of a bigint don't end in anybody's lifetime.
const sequencesSQL = `
WITH used AS (
  SELECT d.objid AS sequence, d.refobjid AS relation, d.refobjsubid AS column
  FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
  UNION
  SELECT d.refobjid, f.adrelid, f.adnum
  FROM pg_depend d JOIN pg_attrdef f ON f.oid = d.objid WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'n'
)
SELECT n.nspname::text, c.relname::text, t.oid, CASE WHEN m.nspname = 'public' THEN '' ELSE m.nspname || '.' END || t.relname, a.attname::text, format_type(a.atttypid, NULL),
       x.most, s.seqincrement, a.attidentity <> '', a.atttypid <> 'int8'::regtype, s.seqmax <= 2147483647,
       CASE WHEN m.nspname = 'public' THEN '' ELSE quote_ident(m.nspname) || '.' END || quote_ident(t.relname), quote_ident(a.attname),
       CASE WHEN n.nspname = 'public' THEN '' ELSE quote_ident(n.nspname) || '.' END || quote_ident(c.relname), has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
FROM pg_sequence s
JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN used u ON u.sequence = s.seqrelid
JOIN pg_class t ON t.oid = u.relation JOIN pg_namespace m ON m.oid = t.relnamespace
JOIN pg_attribute a ON a.attrelid = u.relation AND a.attnum = u.column
CROSS JOIN LATERAL (SELECT least(s.seqmax, CASE a.atttypid WHEN 'int2'::regtype THEN 32767 WHEN 'int4'::regtype THEN 2147483647 ELSE s.seqmax END) AS most) x
WHERE s.seqincrement > 0 AND NOT s.seqcycle AND x.most <= 2147483647 AND c.relpersistence = 'p'
ORDER BY t.reltuples DESC, c.oid LIMIT $1`

type sequence struct {
	Schema, Name string
	Table        uint32
	TableName    string
	Column, Type string
	Most, By     int64
	Identity     bool // its sequence takes the type of the column
	Narrow       bool // the column is no bigint
	Bounded      bool // the sequence itself can't count further
	// As statements name them.
	Altered, AlteredColumn, AlteredSequence string
	Readable                                bool
	last                                    int64
}

func (s sequence) used() float64 { return float64(s.last) / float64(s.Most) }

// checkSequences detects columns that will soon have no numbers left. Then each insert fails.
func checkSequences(ctx context.Context, l *inspection) (result, error) {
	all, err := list[sequence](ctx, l.session, sequencesSQL, maxSequences)
	if err != nil {
		return result{}, err
	}
	readable := slices.DeleteFunc(slices.Clone(all), func(s sequence) bool { return !s.Readable })
	var r result
	if n := len(all) - len(readable); n > 0 {
		have, them := "have", "them"
		if n == 1 {
			have, them = "has", "it"
		}
		r.unseen = append(r.unseen, fmt.Sprintf("how far %s of integer columns %s counted: it needs SELECT on %s, or GRANT pg_read_all_data TO %s",
			many(n, "sequence"), have, them, quoteIdentifier(l.server.User)))
		r.blind = true // one that it can't read may be about to end
	}
	if err := readSequences(ctx, l.session, readable); err != nil {
		return result{}, err
	}
	near := slices.DeleteFunc(slices.Clone(readable), func(s sequence) bool { return s.used() < sequenceFar })
	if len(near) == 0 {
		if len(readable) > 0 {
			r.healthy = fmt.Sprintf("No column is about to run out of numbers (%s looked at).", many(len(readable), "sequence"))
		}
		return r, nil
	}
	slices.SortStableFunc(near, func(a, b sequence) int { return cmp.Compare(b.used(), a.used()) })
	worst := near[0]
	severity := Warning
	if worst.used() >= sequenceNear {
		severity = Critical
	}
	f := l.finding(SequenceNearEnd, severity, 0, len(l.view.samples))
	f.Summary = fmt.Sprintf("%s.%s has used %s of its numbers: after %s each insert fails.", worst.TableName, worst.Column, shareOf(float64(worst.last), float64(worst.Most)), figure(float64(worst.Most)))
	for _, s := range near[:min(len(near), maxFacts)] {
		fact := fmt.Sprintf("%s.%s (%s) is at %s of %s, from the sequence %s", s.TableName, s.Column, s.Type, figure(float64(s.last)), figure(float64(s.Most)), s.Name)
		if inserted := per(float64(l.last.Tables[s.Table].Inserted-l.first.Tables[s.Table].Inserted), l.span()); inserted > 0 {
			fact += fmt.Sprintf("; at %s inserts a second it ends in %s", figure(inserted), span(seconds(min(float64(max(s.Most-s.last, 0)/max(s.By, 1))/inserted, centuries))))
		}
		f.add(seeSequences, "%s", fact)
	}
	f.Now = worst.now()
	f.ForGood = "Give new tables bigint GENERATED ALWAYS AS IDENTITY. A rolled back insert, and one with ON CONFLICT DO NOTHING, uses a number as well."
	r.findings = append(r.findings, f)
	return r, nil
}

// now says what gives the column more numbers: it, its sequence, or both must become a bigint.
func (s sequence) now() string {
	sequence := fmt.Sprintf("ALTER SEQUENCE %s AS bigint NO MAXVALUE", s.AlteredSequence)
	if !s.Narrow {
		return fmt.Sprintf("The column is a bigint, and its sequence is not: %s is done at once.", sequence)
	}
	text := fmt.Sprintf("Find out when it ends, and make the column a bigint before: ALTER TABLE %s ALTER COLUMN %s TYPE bigint rewrites the table and locks it meanwhile; for a large one, add a bigint column, "+
		"copy in batches, and swap the names. Columns that reference it must follow.", s.Altered, s.AlteredColumn)
	if s.Bounded && !s.Identity {
		text += fmt.Sprintf(" Its sequence does not follow by itself: %s;", sequence)
	}
	return text
}

// readSequences reads where sequences stand, like tables: pg_sequence_last_value would lock each of them as a writer does.
func readSequences(ctx context.Context, s *session, sequences []sequence) error {
	if len(sequences) == 0 {
		return nil
	}
	parts := make([]string, len(sequences))
	for i, q := range sequences {
		parts[i] = fmt.Sprintf("SELECT %d, CASE WHEN is_called THEN last_value ELSE 0 END FROM %s", i, pgx.Identifier{q.Schema, q.Name}.Sanitize())
	}
	type row struct {
		I    int32
		Last int64
	}
	rows, err := list[row](ctx, s, strings.Join(parts, " UNION ALL "))
	if err != nil {
		return fmt.Errorf("where sequences stand: %w", err)
	}
	for _, r := range rows {
		sequences[r.I].last = r.Last
	}
	return nil
}
