package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// place identifies a row version.
type place struct {
	Database, Relation uint32
	Page               int32
	Tuple              int16
}

func (p place) ctid() string { return fmt.Sprintf("(%d,%d)", p.Page, p.Tuple) }

// hotRows looks up the primary keys of rows while sessions wait for them: after the next update, the row version that
// they waited for can no longer be read.
type hotRows struct {
	database uint32
	withheld bool // Config.WithoutStatements: keys are values in statements

	mu       sync.Mutex
	queries  map[uint32]string // by relation; "" if its key cannot be read
	keys     map[uint32]map[string]int
	attempts int
	denied   map[uint32]bool
}

const (
	maxAttempts = 40
)

func newHotRows(database uint32, withheld bool) *hotRows {
	return &hotRows{database: database, withheld: withheld, queries: map[uint32]string{}, keys: map[uint32]map[string]int{}, denied: map[uint32]bool{}}
}

// waited counts, in one sample, the sessions at each row: those that wait for the tuple lock, and the one that holds it and waits
// for the transaction that locked the row.
func waited(locks []Lock) map[place]int {
	waiters := map[uint32]bool{} // that wait for a transaction
	for _, k := range locks {
		if !k.Granted && k.Type == "transactionid" {
			waiters[k.PID] = true
		}
	}
	at := map[place]int{}
	for _, k := range locks {
		if k.Type == "tuple" && (!k.Granted || waiters[k.PID]) {
			at[place{k.Database, k.Relation, k.Page, k.Tuple}]++
		}
	}
	return at
}

// lines counts, in one sample, the sessions that wait for a row or its transaction, and the lines that they form. The head of a
// line does not wait for a row itself.
func lines(locks []Lock) (waiters, heads int) {
	behind, _ := inLine(locks)
	at := map[uint32]bool{}
	for pid := range behind {
		head := pid
		for range behind { // bounds the steps if they wait in a circle
			next, waits := behind[head]
			if !waits {
				break
			}
			head = next
		}
		at[head] = true
	}
	return len(behind), len(at)
}

// inLine returns, for each session that waits for a row or its transaction in one sample, the session that it is behind, 0 if that is unknown; and for those at a
// transaction, of which the sample knows who has it, that one's lock, whose PID is 0 if the transaction is prepared.
func inLine(locks []Lock) (behind map[uint32]uint32, before map[uint32]Lock) {
	turn := map[place]uint32{} // holder of the tuple lock
	transaction := map[uint32]Lock{}
	for _, k := range locks {
		switch {
		case k.Granted && k.Type == "tuple":
			turn[place{k.Database, k.Relation, k.Page, k.Tuple}] = k.PID
		case k.Granted && k.Type == "transactionid":
			transaction[k.Transaction] = k
		}
	}
	behind, before = map[uint32]uint32{}, map[uint32]Lock{}
	for _, k := range locks {
		switch {
		case k.Granted:
		case k.Type == "tuple":
			behind[k.PID] = turn[place{k.Database, k.Relation, k.Page, k.Tuple}]
		case k.Type == "transactionid":
			holder, known := transaction[k.Transaction]
			if behind[k.PID] = holder.PID; known {
				before[k.PID] = holder
			}
		}
	}
	return behind, before
}

// find looks up the key of the hottest row of a sample.
func (h *hotRows) find(ctx context.Context, s *session, sample *Sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := waited(sample.Locks)
	var hottest place
	for _, p := range slices.SortedFunc(maps.Keys(at), func(a, b place) int { return cmp.Or(cmp.Compare(at[b], at[a]), strings.Compare(a.ctid(), b.ctid())) }) {
		if p.Database == h.database {
			hottest = p
			break
		}
	}
	if at[hottest] == 0 || h.attempts >= maxAttempts {
		return
	}
	h.attempts++
	query, known := h.queries[hottest.Relation]
	if !known {
		query = h.keyQuery(ctx, s, hottest.Relation)
		h.queries[hottest.Relation] = query
	}
	if query == "" {
		return
	}
	found, err := scalars[string](ctx, s, query, hottest.ctid())
	if err != nil || len(found) == 0 {
		return // the row has moved, or its table is locked: later samples try again
	}
	if h.keys[hottest.Relation] == nil {
		h.keys[hottest.Relation] = map[string]int{}
	}
	h.keys[hottest.Relation][found[0]]++
}

// keyQuery returns the query for a primary key by ctid; "" if the table has none or may not be read.
func (h *hotRows) keyQuery(ctx context.Context, s *session, relation uint32) string {
	type row struct {
		Table     string
		Columns   []string
		Permitted bool
	}
	r, err := one[row](ctx, s, `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       ARRAY(SELECT quote_ident(a.attname) FROM pg_index i, unnest(i.indkey::smallint[]) WITH ORDINALITY k(n, at)
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.n
             WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY k.at),
       has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE') AND NOT c.relrowsecurity
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1 AND c.relkind = 'r'`, relation)
	if err != nil {
		return ""
	}
	if !r.Permitted {
		h.denied[relation] = true
		return ""
	}
	if len(r.Columns) == 0 {
		return ""
	}
	parts := make([]string, len(r.Columns))
	for i, c := range r.Columns {
		parts[i] = "'" + strings.ReplaceAll(c, "'", "''") + " = ' || left(" + c + "::text, 60)"
	}
	return "SELECT concat_ws(', ', " + strings.Join(parts, ", ") + ") FROM " + r.Table + " WHERE ctid = $1::tid"
}

// known lists the keys found in a relation, most frequent first, and whether the role may not read it. A nil hotRows knows nothing.
func (h *hotRows) known(relation uint32) (keys []string, denied bool) {
	if h == nil {
		return nil, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	counts := h.keys[relation]
	keys = slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(counts[b]-counts[a], strings.Compare(a, b)) })
	return keys, h.denied[relation]
}

// found returns all keys that were found, and the tables that the role may not read.
func (h *hotRows) found() (keys map[uint32]map[string]int, denied map[uint32]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys = map[uint32]map[string]int{}
	for relation, counts := range h.keys {
		keys[relation] = maps.Clone(counts)
	}
	return keys, maps.Clone(h.denied)
}

// reset forgets keys and attempts, for the next report of Watch.
func (h *hotRows) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.attempts = 0
	h.keys = map[uint32]map[string]int{}
}
