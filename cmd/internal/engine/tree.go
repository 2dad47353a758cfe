package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// node are the args of a job that writes a node, as in examples/tree.
type node struct {
	Path   string `json:"path"`
	Parent string `json:"parent,omitempty"`
}

func (node) Kind() string { return "node" }

// flat are the args of a job that writes the same row, and has no children.
type flat node

func (flat) Kind() string { return "flat" }

// grown are the args of a tree's callback.
type grown struct{}

func (grown) Kind() string { return "grown" }

const (
	plant = `
		CREATE SCHEMA IF NOT EXISTS weir_bench;
		DROP TABLE IF EXISTS weir_bench.node, weir_bench.flat, weir_bench.children;
		CREATE TABLE weir_bench.node (tree bigint, path text, parent text, bytes bigint NOT NULL, PRIMARY KEY (tree, path));
		CREATE TABLE weir_bench.flat (LIKE weir_bench.node INCLUDING ALL);
		CREATE TABLE weir_bench.children (tree bigint, path text, children bigint NOT NULL, PRIMARY KEY (tree, path))`
	insertNode    = `INSERT INTO weir_bench.node (tree, path, parent, bytes) VALUES ($1, $2, nullif($3, ''), $4)`
	insertFlat    = `INSERT INTO weir_bench.flat (tree, path, parent, bytes) VALUES ($1, $2, nullif($3, ''), $4)`
	countChildren = `INSERT INTO weir_bench.children (tree, path, children)
		SELECT tree, parent, count(*) FROM weir_bench.node WHERE tree = $1 AND parent IS NOT NULL GROUP BY tree, parent
		ON CONFLICT (tree, path) DO UPDATE SET children = excluded.children`
)

func path(n int) string { return "/" + strconv.Itoa(n) }

// warm is the path of the root of a tree to warm up. Those of its nodes start with it.
const warm = "~"

// Plant creates the tables that a program would have, and drops what a killed bench has left.
func (c client) Plant(ctx context.Context) error {
	_, err := c.pool.Exec(ctx, plant)
	return err
}

func (c client) Fell(ctx context.Context) error {
	_, err := c.pool.Exec(ctx, `DROP SCHEMA IF EXISTS weir_bench CASCADE`)
	return err
}

func (c client) FillFlat(ctx context.Context, n int) error {
	if err := c.weir.PauseQueue(ctx, load.Queue); err != nil {
		return err
	}
	if _, err := c.pool.Exec(ctx, `TRUNCATE weir_bench.flat`); err != nil {
		return err
	}
	jobs := make([]weir.NewJob, 0, min(n, BatchSize))
	for i := range n {
		jobs = append(jobs, weir.NewJob{Args: flat{path(i), path(i / 10)}, Options: &weir.Options{Queue: load.Queue}})
		if len(jobs) == cap(jobs) || i == n-1 {
			if _, err := c.weir.EnqueueMany(ctx, jobs); err != nil {
				return err
			}
			jobs = jobs[:0]
		}
	}
	return nil
}

func (c client) Workers(ctx context.Context) (n int, err error) {
	workers, err := c.weir.Workers(ctx)
	for _, w := range workers {
		if slices.Contains(w.Queues, load.Queue) {
			n++
		}
	}
	return n, err
}

func (c client) Release(ctx context.Context) error { return c.weir.ResumeQueue(ctx, load.Queue) }

func (c client) Root(ctx context.Context, warmUp bool) (int64, error) {
	root := path(0)
	if warmUp {
		root = warm + root
	}
	if _, err := c.pool.Exec(ctx, `TRUNCATE weir_bench.node, weir_bench.children`); err != nil {
		return 0, err
	}
	return c.weir.Flow(ctx, weir.Flow{Name: "tree", OnSuccess: weir.NewJob{Args: grown{}, Options: &weir.Options{Queue: load.Queue}}},
		weir.NewJob{Args: node{Path: root}, Options: &weir.Options{Queue: load.Queue, Once: root}})
}

func (c client) Grown(ctx context.Context, tree int64) (nodes, children int64, err error) {
	err = c.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM weir_bench.node WHERE tree = $1), (SELECT coalesce(sum(children), 0)::bigint FROM weir_bench.children WHERE tree = $1)`, tree).Scan(&nodes, &children)
	return nodes, children, err
}

func (c client) InsertAlone(ctx context.Context, n int) error {
	if _, err := c.pool.Exec(ctx, `TRUNCATE weir_bench.node`); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		for i := 0; i < n; {
			b := &pgx.Batch{}
			for ; i < n && b.Len() < 1000; i++ {
				b.Queue(insertNode, 1, path(i), path(i/10), 1000)
			}
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return err
			}
		}
		return nil
	})
}

// WorkTree is a worker process of a tree: it reads what to do from in, works until in ends, and writes what it has done to out, several times a second.
func WorkTree(ctx context.Context, in io.Reader, out, errs io.Writer) error {
	var w load.TreeWork
	if err := json.NewDecoder(in).Decode(&w); err != nil {
		return fmt.Errorf("bench: a worker is told what to do by the bench that starts it: %w", err)
	}
	config, err := pgxpool.ParseConfig(w.URL)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	// The worker's own calls must not wait for those of its handlers.
	config.MaxConns = load.TreeSpare
	own, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer own.Close()
	config.MaxConns = int32(w.Connections)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer pool.Close()
	t := &treeWorker{TreeWork: w, pool: pool, client: weir.NewClient(own)}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, t.node)
	weir.Handle(handlers, t.flat)
	weir.Handle(handlers, t.grown)
	worker, err := t.client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{load.Queue: w.Concurrency}, Logger: Warnings(errs)})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // ends with the process, or when the bench has ended
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	told := make(chan error, 1)
	go func() { // ends with ctx; waited for below
		encoder := json.NewEncoder(out)
		err := encoder.Encode(t.count())
		for err == nil && sleep.For(ctx, load.TreeTellEvery) {
			err = encoder.Encode(t.count())
		}
		told <- err
		stop()
	}()
	err = worker.Run(ctx)
	stop()
	return errors.Join(err, <-told, json.NewEncoder(out).Encode(t.count()))
}

// treeWorker is the state of a worker process.
type treeWorker struct {
	load.TreeWork
	pool   *pgxpool.Pool
	client *weir.Client

	flats, nodes, inserts, rows, named, known, last, called, calledAt, foldedAt atomic.Int64
}

func (t *treeWorker) count() load.TreeCount {
	cpu, _ := load.OwnCPU()
	return load.TreeCount{Flat: t.flats.Load(), Nodes: t.nodes.Load(), Inserts: t.inserts.Load(), Rows: t.rows.Load(), Named: t.named.Load(), Known: t.known.Load(),
		Last: t.last.Load(), Called: t.called.Load(), CalledAt: t.calledAt.Load(), FoldedAt: t.foldedAt.Load(), CPU: int64(cpu)}
}

// insert inserts the row of a job.
func (t *treeWorker) insert(ctx context.Context, tx pgx.Tx, sql string, tree int64, path, parent string, bytes int64) error {
	t.inserts.Add(1)
	done, err := tx.Exec(ctx, sql, tree, path, parent, bytes)
	t.rows.Add(done.RowsAffected())
	return err
}

// committed notes that a job's transaction has committed.
func (t *treeWorker) committed(jobs *atomic.Int64) {
	now := time.Now().UnixNano()
	jobs.Add(1)
	for last := t.last.Load(); last < now && !t.last.CompareAndSwap(last, now); last = t.last.Load() {
	}
}

func (t *treeWorker) flat(ctx context.Context, job *weir.Job[flat]) error {
	err := pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		if err := t.insert(ctx, tx, insertFlat, 0, job.Args.Path, job.Args.Parent, 1000); err != nil {
			return err
		}
		return job.CompleteTx(ctx, tx)
	})
	if err == nil {
		t.committed(&t.flats)
	}
	return err
}

// node is the handler of examples/tree.
func (t *treeWorker) node(ctx context.Context, job *weir.Job[node]) error {
	shape, prefix := t.Shape, ""
	number, isWarm := strings.CutPrefix(job.Args.Path, warm)
	if isWarm {
		shape.Nodes, prefix = t.WarmUp, warm
	}
	n, err := strconv.Atoi(number[1:])
	if err != nil {
		return err
	}
	names := shape.Children(n)
	known := int64(0)
	err = pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		if err := t.insert(ctx, tx, insertNode, job.Flow, job.Args.Path, job.Args.Parent, 1000); err != nil {
			return err
		}
		if len(names) > 0 {
			children := make([]weir.NewJob, len(names))
			for i, name := range names {
				child := prefix + path(name)
				children[i] = weir.NewJob{Args: node{child, job.Args.Path}, Options: &weir.Options{Queue: load.Queue, Flow: job.Flow, Once: child}}
			}
			added, err := t.client.EnqueueManyTx(ctx, tx, children)
			if err != nil {
				return err
			}
			for _, a := range added {
				if a.Duplicate {
					known++
				}
			}
		}
		return job.CompleteTx(ctx, tx, weir.Count{Counter: "bytes", N: 1000})
	})
	if err == nil {
		t.named.Add(int64(len(names)))
		t.known.Add(known)
		t.committed(&t.nodes)
	}
	return err
}

// grown is the callback.
func (t *treeWorker) grown(ctx context.Context, job *weir.Job[grown]) error {
	at := time.Now()
	flow := job.EndedFlow()
	if flow.Counters["bytes"] != 1000*flow.Completed {
		return weir.Fail(fmt.Errorf("bench: the counter is %d after %d nodes of 1000", flow.Counters["bytes"], flow.Completed))
	}
	err := pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, countChildren, flow.ID); err != nil {
			return err
		}
		return job.CompleteTx(ctx, tx)
	})
	if err == nil {
		t.calledAt.Store(at.UnixNano())
		t.foldedAt.Store(time.Now().UnixNano())
		t.called.Add(1)
	}
	return err
}
