package lab

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/sleep"
)

// sources is the number of nodes from one of which each child is derived.
const sources = 20

// A child's id is its parent's id and its key.
const keyBits = 32

func nodeID(parent int, key int64) int64 { return int64(parent)<<keyBits + key }

const (
	makeTree = `
		DROP TABLE IF EXISTS weir_lab.node, weir_lab.delta, weir_lab.job;
		CREATE TABLE weir_lab.job (id int PRIMARY KEY);
		CREATE TABLE weir_lab.node (id bigint PRIMARY KEY, parent bigint, source bigint, job int NOT NULL,
			children_total bigint NOT NULL DEFAULT 0, children_processed bigint NOT NULL DEFAULT 0);
		CREATE INDEX ON weir_lab.node (parent);
		CREATE TABLE weir_lab.delta (parent bigint NOT NULL, total bigint NOT NULL, processed bigint NOT NULL);
		INSERT INTO weir_lab.job VALUES (1);`
	makeRoots       = `INSERT INTO weir_lab.node (id, job) SELECT n, 1 FROM generate_series(1, $1::int) n`
	makeForeignKeys = `
		ALTER TABLE weir_lab.node ADD FOREIGN KEY (parent) REFERENCES weir_lab.node, ADD FOREIGN KEY (source) REFERENCES weir_lab.node,
			ADD FOREIGN KEY (job) REFERENCES weir_lab.job`

	insertChild   = `INSERT INTO weir_lab.node (id, parent, source, job) VALUES ($1, $2, $3, 1) ON CONFLICT DO NOTHING`
	insertAll     = `INSERT INTO weir_lab.node (id, parent, source, job) SELECT unnest($1::bigint[]), $2, $3, 1 ON CONFLICT DO NOTHING`
	countChildren = `UPDATE weir_lab.node SET children_total = children_total + $2, children_processed = children_processed + $3 WHERE id = $1`
	insertDelta   = `INSERT INTO weir_lab.delta (parent, total, processed) VALUES ($1, $2, $3)`
	// foldDeltas returns the number of rows that it leaves dead: the deltas, and a version of each parent.
	foldDeltas = `
		WITH gone AS (DELETE FROM weir_lab.delta RETURNING *), sums AS (SELECT parent, sum(total) AS total, sum(processed) AS processed FROM gone GROUP BY parent),
		changed AS (UPDATE weir_lab.node p SET children_total = children_total + s.total, children_processed = children_processed + s.processed
			FROM sums s WHERE p.id = s.parent RETURNING 1)
		SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM changed)`
)

// plantTree creates the tables from scratch.
func plantTree(ctx context.Context, s *site, size TreeSize, c fixes) (*tree, error) {
	t := &tree{TreeSize: size, fixes: c, site: s, known: newKeySet()}
	if _, err := s.guard.Exec(ctx, makeTree); err != nil {
		return nil, err
	}
	// The parents come first, then the sources.
	if _, err := s.guard.Exec(ctx, makeRoots, size.Parents+sources); err != nil {
		return nil, err
	}
	if err := t.plantKnown(ctx); err != nil {
		return nil, err
	}
	if !c.noForeignKeys {
		if _, err := s.guard.Exec(ctx, makeForeignKeys); err != nil {
			return nil, err
		}
	}
	var err error
	t.multixacts, err = nextMultiXact(ctx, s.guard)
	return t, err
}

// plantKnown writes the children that the first items will take for old: otherwise nearly all of theirs were new, and a slow variant, which gets through
// few items, would have more to write for each than a fast one. The fleet has written them itself, and remembers them.
func (t *tree) plantKnown(ctx context.Context) error {
	for parent := range t.Parents {
		var ids []int64
		for key := range int64(span * t.New) {
			ids = append(ids, nodeID(parent+1, key))
			t.known.add(parent+1, key)
		}
		if _, err := t.site.guard.Exec(ctx, insertAll, ids, parent+1, t.Parents+1); err != nil {
			return err
		}
		if t.uncounted {
			continue
		}
		if _, err := t.site.guard.Exec(ctx, countChildren, parent+1, len(ids), 0); err != nil {
			return err
		}
	}
	return nil
}

// work processes one item.
func (t *tree) work(ctx context.Context, conn *pgx.Conn) error {
	it := t.next(rand.Int64N)
	slices.Sort(it.keys)
	if t.remember {
		it.keys = slices.DeleteFunc(it.keys, func(key int64) bool { return t.known.has(it.parent, key) })
	}
	if t.onePerItem {
		if err := t.workWhole(ctx, conn, it); err != nil {
			return err
		}
		t.known.add(it.parent, it.keys...)
		return nil
	}
	for _, key := range it.keys {
		if err := t.addChild(ctx, conn, it, key); err != nil {
			return err
		}
		if t.remember {
			t.known.add(it.parent, key)
		}
	}
	if t.uncounted {
		return nil
	}
	return t.commit(ctx, conn, func(b *pgx.Batch) { t.count(b, countChildren, it.parent, 0, 1) })
}

// count counts children on their parent.
func (t *tree) count(b *pgx.Batch, sql string, parent int, total, processed int64) {
	b.Queue(sql, parent, total, processed)
	if sql == countChildren {
		t.dead.Add(1) // the version before
	}
}

// addChild upserts one child in its own transaction, like a program that checks the result of the first statement.
func (t *tree) addChild(ctx context.Context, conn *pgx.Conn, it item, key int64) error {
	return t.twoSteps(ctx, conn, insertChild, []any{nodeID(it.parent, key), it.parent, it.source}, func(added int64, b *pgx.Batch) {
		if added > 0 && !t.uncounted {
			t.count(b, countChildren, it.parent, added, 0)
		}
	})
}

// workWhole upserts all children of an item in one transaction.
func (t *tree) workWhole(ctx context.Context, conn *pgx.Conn, it item) error {
	count := countChildren
	if t.coalesce {
		count = insertDelta
	}
	if len(it.keys) == 0 {
		return t.commit(ctx, conn, func(b *pgx.Batch) { t.count(b, count, it.parent, 0, 1) })
	}
	ids := make([]int64, len(it.keys))
	for i, key := range it.keys {
		ids[i] = nodeID(it.parent, key)
	}
	return t.twoSteps(ctx, conn, insertAll, []any{ids, it.parent, it.source}, func(added int64, b *pgx.Batch) {
		t.count(b, count, it.parent, added, 1)
	})
}

// twoSteps inserts, and then does what depends on the number of new rows, in one transaction.
func (t *tree) twoSteps(ctx context.Context, conn *pgx.Conn, insert string, args []any, then func(added int64, b *pgx.Batch)) error {
	return t.retry(ctx, conn, func() error {
		t.calls.Add(1)
		first := &pgx.Batch{}
		first.Queue(`BEGIN`)
		var added int64
		first.Queue(insert, args...).Exec(func(tag pgconn.CommandTag) error {
			added = tag.RowsAffected()
			return nil
		})
		if err := conn.SendBatch(ctx, first).Close(); err != nil {
			return err
		}
		second := &pgx.Batch{}
		then(added, second)
		second.Queue(`COMMIT`)
		if err := conn.SendBatch(ctx, second).Close(); err != nil {
			return err
		}
		t.rows.Add(added)
		return nil
	})
}

// commit runs statements in their own transaction.
func (t *tree) commit(ctx context.Context, conn *pgx.Conn, add func(b *pgx.Batch)) error {
	return t.retry(ctx, conn, func() error { return transaction(ctx, conn, add) })
}

// retry runs a transaction, and repeats it after a deadlock.
func (t *tree) retry(ctx context.Context, conn *pgx.Conn, run func() error) error {
	for {
		err := run()
		if err == nil {
			t.commits.Add(1)
			return nil
		}
		if !isDeadlock(err) {
			return err
		}
		t.deadlocks.Add(1)
		if _, err := conn.Exec(ctx, `ROLLBACK`); err != nil {
			return err
		}
	}
}

// fold adds up the deltas periodically, and once more at the end.
func (t *tree) fold(ctx, until context.Context) error {
	conn, err := connect(ctx, t.site.url, appName, nil)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	for sleep.For(until, foldEvery) {
		if err := t.foldOnce(ctx, conn); err != nil {
			return err
		}
	}
	return t.foldOnce(ctx, conn)
}

func (t *tree) foldOnce(ctx context.Context, conn *pgx.Conn) error {
	var dead int64
	err := conn.QueryRow(ctx, foldDeltas).Scan(&dead)
	t.dead.Add(dead)
	return err
}

// keySet remembers the children already written. All workers of the process share it.
type keySet struct {
	mu   sync.RWMutex
	keys map[[2]int64]struct{}
}

func newKeySet() *keySet { return &keySet{keys: map[[2]int64]struct{}{}} }

func (s *keySet) has(parent int, key int64) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.keys[[2]int64{int64(parent), key}]
	return ok
}

func (s *keySet) add(parent int, keys ...int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		s.keys[[2]int64{int64(parent), key}] = struct{}{}
	}
}
