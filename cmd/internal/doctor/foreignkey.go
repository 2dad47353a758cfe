package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// foreignKeySQL lists the foreign keys from tables that were written to, to tables whose rows were locked.
const foreignKeySQL = `
SELECT c.conname::text, c.conrelid, c.confrelid, c.conrelid::regclass::text, c.confrelid::regclass::text, pg_get_constraintdef(c.oid),
       greatest(p.reltuples, 0)::float8
FROM pg_constraint c JOIN pg_class p ON p.oid = c.confrelid
WHERE c.contype = 'f' AND c.conparentid = 0 AND c.conrelid = ANY ($1::oid[]) AND c.confrelid = ANY ($2::oid[])`

// foreignKeys ranks the keys by how often a counted session held the locks of both sides: the writer's lock on the
// referencing table, and that of FOR KEY SHARE on the referenced one.
func foreignKeys(ctx context.Context, l *inspection, withLocks []Sample, counts func(Session) bool) ([]string, error) {
	type held struct{ share, write map[uint32]bool }
	var pids []map[uint32]*held
	referring, referred := map[uint32]bool{}, map[uint32]bool{}
	for _, s := range withLocks {
		of := map[uint32]*held{}
		for _, session := range s.Sessions {
			if counts(session) {
				of[session.PID] = &held{map[uint32]bool{}, map[uint32]bool{}}
			}
		}
		for _, k := range s.Locks {
			h := of[k.PID]
			if h == nil || k.Type != "relation" || k.Database != l.server.databaseOID {
				continue
			}
			switch k.Mode {
			case "RowShareLock":
				h.share[k.Relation], referred[k.Relation] = true, true
			case "RowExclusiveLock":
				h.write[k.Relation], referring[k.Relation] = true, true
			}
		}
		pids = append(pids, of)
	}
	type row struct {
		Name                             string
		Referring, Referred              uint32
		ReferringName, ReferredName, Def string
		Rows                             float64
	}
	rows, err := list[row](ctx, l.session, foreignKeySQL, keysOf(referring), keysOf(referred))
	if err != nil {
		return nil, fmt.Errorf("look up foreign keys: %w", err)
	}
	seen := make(map[string]int, len(rows))
	all := 0
	for _, of := range pids {
		for _, h := range of {
			if len(h.share) > 0 {
				all++
			}
			for _, r := range rows {
				if h.share[r.Referred] && h.write[r.Referring] {
					seen[r.Name+r.ReferringName]++
				}
			}
		}
	}
	// Of equally frequent keys, the one that references the smaller table is the bottleneck.
	slices.SortFunc(rows, func(a, b row) int {
		if n, m := seen[a.Name+a.ReferringName], seen[b.Name+b.ReferringName]; n != m {
			return m - n
		}
		if a.Rows != b.Rows {
			if a.Rows < b.Rows {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	var keys []string
	const limit = 8
	for _, r := range rows[:min(len(rows), limit)] {
		n := seen[r.Name+r.ReferringName]
		if n == 0 {
			continue
		}
		keys = append(keys, fmt.Sprintf("%s on %s: %s, held by %s of the sampled sessions that lock another table's rows; %s has about %s rows",
			r.Name, r.ReferringName, r.Def, shareOf(float64(n), float64(all)), r.ReferredName, figure(r.Rows)))
	}
	return keys, nil
}

func keysOf[K comparable, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}
