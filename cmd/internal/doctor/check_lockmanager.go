package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Numbers of locks of one session: more than it has places of its own, before 18; and far above those that a few joined tables need.
const (
	someLocks = 20
	manyLocks = 64
)

// locksOfSQL counts the table locks of sessions by table. Partitions count for their root, and indexes for their table.
const locksOfSQL = `
WITH k AS MATERIALIZED (
  SELECT k.pid, k.relation, k.fastpath FROM pg_lock_status() k WHERE k.locktype = 'relation' AND k.granted AND k.database = $1 AND k.pid <> pg_backend_pid()
), t AS (
  SELECT k.pid, coalesce(i.indrelid, k.relation) AS relation, k.fastpath FROM k LEFT JOIN pg_index i ON i.indexrelid = k.relation
), r AS (
  SELECT t.pid, t.relation, coalesce(pg_partition_root(t.relation), t.relation)::oid AS root, t.fastpath FROM t
)
SELECT r.pid, r.root, count(DISTINCT r.relation) FILTER (WHERE r.relation <> r.root), count(*), count(*) FILTER (WHERE NOT r.fastpath)
FROM r GROUP BY 1, 2 HAVING count(*) FILTER (WHERE NOT r.fastpath) > 0 ORDER BY 4 DESC LIMIT 200`

// partitionsSQL describes partitioned tables.
const partitionsSQL = `
SELECT c.oid, (SELECT count(*) FROM pg_partition_tree(c.oid) p WHERE p.isleaf), coalesce(pg_get_partkeydef(c.oid), '') FROM pg_class c WHERE c.oid = ANY ($1::oid[])`

// locksOf is how many locks one session has of a table.
type locksOf struct {
	PID                       int32
	Root                      uint32
	Partitions, Locks, Shared int64
}

// checkLockManager detects waits for the shared table of locks. A session has places of its own for 16 locks of tables and indexes (from 18 on, as many
// as max_locks_per_transaction); further ones are in the shared table, whose parts are protected by 16 locks.
func checkLockManager(ctx context.Context, l *inspection) (result, error) {
	lost := l.waits.Rate(LockTable)
	// On few CPUs the same work shows as CPU time instead of waits. Whose it is, the locks themselves show.
	if lost < noticeable && l.waits.Rate(CPU) < costly {
		return healthy("No session waits for the table of locks itself.")
	}
	worst, heavy, err := mostLocks(ctx, l)
	if err != nil {
		return result{}, err
	}
	// Sessions that wait for rows use the table of locks too. Without many locks of one session, that is not the cause.
	if heavy < costly && (lost < noticeable || len(worst) == 0 || worst[0].Locks < someLocks) {
		return healthy("Statements lock few tables and indexes; %s sessions wait for the table of locks itself.", figure(lost))
	}
	severity := grade(lost)
	if severity == Info && (heavy >= crippling || lost >= noticeable && len(worst) > 0 && worst[0].Locks >= manyLocks) {
		severity = Warning
	}
	f := l.finding(LockManager, severity, lost, l.view.seen(LockTable))
	f.Summary = fmt.Sprintf("%s for the table of locks itself: statements lock more tables and indexes than a session has places of its own.", sessionsThat(lost, "waits", "wait"))
	if lost > 0 {
		f.add(seeWaits, "waits: %s", eventsOf(l.waits, LockTable))
	}
	f.add(seeLocksOf, "%s sessions at a time hold %d locks or more, some of them in the shared table", figure(heavy), manyLocks)
	statements := map[string]int{}
	l.view.each(func(s Session, _ float64) {
		if s.Class == LockTable || s.Class == CPU && lost < noticeable {
			statements[shape(s.Query)]++
		}
	})
	f.addStatements("", "their statements", CausesIt, statements)
	f.Now = "Reduce the number of such statements at once: fewer connections in the pool get more done."
	f.ForGood = "Lock fewer tables and indexes per statement: drop unused indexes, join fewer tables. From PostgreSQL 18 on max_locks_per_transaction sets the places that a session has of its own."
	var roots []uint32
	for _, w := range worst {
		roots = append(roots, w.Root)
	}
	names, err := relationNames(ctx, l.session, roots)
	if err != nil {
		return result{}, err
	}
	type partitioned struct {
		OID    uint32
		Leaves int64
		Key    string
	}
	described, err := list[partitioned](ctx, l.session, partitionsSQL, slices.Concat(roots, []uint32{0}))
	if err != nil {
		return result{}, err
	}
	for i, w := range worst {
		at := slices.IndexFunc(described, func(p partitioned) bool { return p.OID == w.Root })
		if w.Partitions == 0 || at < 0 {
			f.add(seeLocksOf, "%s: one session holds %d locks of it and its indexes, %d of them in the shared table", names[w.Root], w.Locks, w.Shared)
			continue
		}
		p := described[at]
		pruned := "so none is pruned"
		if w.Partitions < p.Leaves {
			pruned = "so too few are pruned"
		}
		f.add(seeLocksOf, "%s: one session has locked %d of its %d partitions, %s; with their indexes %d locks, %d of them in the shared table",
			names[w.Root], w.Partitions, p.Leaves, pruned, w.Locks, w.Shared)
		if i == 0 {
			f.Summary = fmt.Sprintf("%s for the table of locks itself: each statement locks %d partitions of %s, and their indexes.", sessionsThat(lost, "waits", "wait"), w.Partitions, names[w.Root])
			f.Now = fmt.Sprintf("Give the statements on %s a condition on its partition key, %s, whose value is known when they are planned: then they lock only the partitions that they need.",
				names[w.Root], p.Key)
			f.ForGood = "Make fewer, larger partitions. A prepared statement's generic plan locks all partitions, so plan_cache_mode = force_custom_plan helps where the key is a parameter. " +
				"From PostgreSQL 18 on max_locks_per_transaction sets the places that a session has of its own."
		}
	}
	return found(f)
}

const seeLocksOf = `SELECT pid, count(*), count(*) FILTER (WHERE NOT fastpath) FROM pg_locks WHERE locktype = 'relation' GROUP BY pid ORDER BY 2 DESC`

// mostLocks looks a few times at which tables sessions lock now, and returns the largest numbers of locks of one session, per table, and how many
// sessions at a time have many.
func mostLocks(ctx context.Context, l *inspection) (worst []locksOf, heavy float64, err error) {
	const rounds, pause = 8, 50 * time.Millisecond
	most := map[uint32]locksOf{}
	for range rounds {
		rows, err := list[locksOf](ctx, l.session, locksOfSQL, l.server.databaseOID)
		if err != nil {
			return nil, 0, fmt.Errorf("the locks of sessions: %w", err)
		}
		held := map[int32]int64{}
		for _, r := range rows {
			if held[r.PID] += r.Locks; held[r.PID] >= manyLocks && held[r.PID]-r.Locks < manyLocks {
				heavy += 1.0 / rounds
			}
			if r.Locks > most[r.Root].Locks {
				most[r.Root] = r
			}
		}
		if err := l.session.pause(ctx, pause); err != nil {
			return nil, 0, err
		}
	}
	worst = slices.SortedFunc(maps.Values(most), func(a, b locksOf) int { return cmp.Or(cmp.Compare(b.Locks, a.Locks), cmp.Compare(a.Root, b.Root)) })
	return worst[:min(len(worst), maxFacts)], heavy, nil
}
