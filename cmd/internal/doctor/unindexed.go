package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// unindexedKey is a foreign key by which a table has to be read whole, to find the rows that refer to one of another table.
type unindexedKey struct {
	name           string
	table, columns string // quoted as an index needs them
	referred       string
	names, changes *regexp.Regexp // the table that is referred to; what it is referred to by
}

// unindexedSQL lists the foreign keys of tables of which no index begins with one of their columns.
const unindexedSQL = `
SELECT c.conrelid, c.conname::text, c.conrelid::regclass::text,
       (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY k.n)
        FROM unnest(c.conkey) WITH ORDINALITY k(attnum, n) JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum),
       p.relname::text,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.confrelid AND a.attnum = ANY (c.confkey))
FROM pg_constraint c JOIN pg_class p ON p.oid = c.confrelid
WHERE c.contype = 'f' AND c.conrelid = ANY ($1::oid[])
  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.conrelid AND i.indisvalid AND i.indkey[0] = ANY (c.conkey))
ORDER BY c.conrelid, c.conname LIMIT 100`

func unindexedKeys(ctx context.Context, l *inspection, tables []uint32) (map[uint32][]unindexedKey, error) {
	type row struct {
		OID                            uint32
		Name, Table, Columns, Referred string
		ReferredColumns                []string
	}
	rows, err := list[row](ctx, l.session, unindexedSQL, tables)
	if err != nil {
		return nil, fmt.Errorf("look up foreign keys without an index: %w", err)
	}
	keys := map[uint32][]unindexedKey{}
	for _, r := range rows {
		columns := make([]string, len(r.ReferredColumns))
		for i, c := range r.ReferredColumns {
			columns[i] = regexp.QuoteMeta(c)
		}
		keys[r.OID] = append(keys[r.OID], unindexedKey{
			name: r.Name, table: r.Table, columns: r.Columns, referred: r.Referred,
			names:   naming(r.Referred),
			changes: regexp.MustCompile(`(?is)\bset\b.*?["\s,(](` + strings.Join(columns, "|") + `)"?\s*=.*?(\bwhere\b|$)`),
		})
	}
	return keys, nil
}

var (
	deletes = regexp.MustCompile(`(?i)\bdelete\b`)
	updates = regexp.MustCompile(`(?i)\bupdate\b`)
)

// searches reports whether a statement makes PostgreSQL look for rows with that key: it deletes rows of the table that is referred to, or changes
// what they are referred to by.
func (k unindexedKey) searches(statement string) bool {
	return k.names.MatchString(statement) && (deletes.MatchString(statement) || updates.MatchString(statement) && k.changes.MatchString(statement))
}

// naming matches statements that name a table.
func naming(table string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)(^|[^\w$])` + regexp.QuoteMeta(table) + `($|[^\w$])`)
}
