// Command tree reads a site with shared links, page by page, and builds a tree of its pages in tables of its own, as a crawler does. Each page is a job
// of a flow, and its handler does everything in one transaction: it writes the page's row, adds the pages that it links to as further jobs, counts, and
// completes the job. Nothing in it waits for another transaction:
//
//   - No row is written twice, so there is nothing to insert with ON CONFLICT DO NOTHING: Once makes each page one job, however many pages link to
//     it, and CompleteTx makes a page's row and the end of its job one: an attempt that is repeated has left nothing behind.
//   - There are no foreign keys, whose checks lock the row of the parent for each child. None is needed: the job of a child exists once the transaction
//     that wrote its parent has committed.
//   - No counter is updated. Sums are added to the flow as the job is completed, in a row of its own. How many children each page has is counted once, in one
//     statement, when the flow calls back.
//
// Run it with the connection string of a database and a number of pages. If Weir is installed there, any role with weir_work that may create tables will do:
//
//	go run ./examples/tree postgres://localhost/app 10000
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/schema"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: tree DATABASE_URL PAGES")
		os.Exit(2)
	}
	pages, err := strconv.Atoi(os.Args[2])
	if err != nil || pages < 1 {
		fmt.Fprintf(os.Stderr, "tree: the number of pages must be at least 1, got %q\n", os.Args[2])
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], site(pages), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tree:", err)
		os.Exit(1)
	}
}

const queue = "tree"

// Node are the args of a job that reads a page.
type Node struct {
	Path   string `json:"path"`
	Parent string `json:"parent,omitempty"` // the page that was first to link to it; "": it is the root
}

func (Node) Kind() string { return "node" }

// Count are the args of the job that counts the children, once all pages have been read.
type Count struct{}

func (Count) Kind() string { return "count" }

// run reads the site and prints what was built.
func run(ctx context.Context, url string, s site, out io.Writer) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := install(ctx, pool); err != nil {
		return err
	}
	client := weir.NewClient(pool)
	// The flow is the tree. It ends when every page has been read, also those that others add.
	tree, err := client.Flow(ctx, weir.Flow{Name: "tree", OnSuccess: weir.NewJob{Args: Count{}, Options: &weir.Options{Queue: queue}}}, node(0, Node{Path: s.root()}))
	if err != nil {
		return err
	}
	if err := work(ctx, pool, client, s, tree); err != nil {
		return err
	}
	return report(ctx, pool, client, tree, out)
}

// node returns the job of a page, which runs once in a tree.
func node(tree int64, n Node) weir.NewJob {
	return weir.NewJob{Args: n, Options: &weir.Options{Queue: queue, Flow: tree, Once: n.Path}}
}

// install creates Weir's schema and the program's own tables if they don't exist. No table refers to another.
func install(ctx context.Context, pool *pgxpool.Pool) error {
	return pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		var installed bool // perhaps by another role: see docs/operators.md
		if err := c.QueryRow(ctx, `SELECT to_regnamespace('weir') IS NOT NULL`).Scan(&installed); err != nil {
			return err
		}
		if !installed {
			if err := schema.Up(ctx, c.Conn()); err != nil {
				return err
			}
		}
		_, err := c.Exec(ctx, `
			CREATE TABLE IF NOT EXISTS node (tree bigint, path text, parent text, bytes bigint NOT NULL, PRIMARY KEY (tree, path));
			CREATE TABLE IF NOT EXISTS children (tree bigint, path text, children bigint NOT NULL, PRIMARY KEY (tree, path))`)
		return err
	})
}

// read is one attempt at one page. If it returns an error, nothing of it is left, and the job is retried.
func read(ctx context.Context, pool *pgxpool.Pool, client *weir.Client, s site, job *weir.Job[Node]) error {
	bytes, links := s.read(job.Args.Path) // outside of the transaction, because it may take long
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO node (tree, path, parent, bytes) VALUES ($1, $2, nullif($3, ''), $4)`, job.Flow, job.Args.Path, job.Args.Parent, bytes)
		if err != nil {
			return err
		}
		if len(links) > 0 {
			children := make([]weir.NewJob, len(links))
			for i, path := range links {
				children[i] = node(job.Flow, Node{Path: path, Parent: job.Args.Path})
			}
			if _, err := client.EnqueueManyTx(ctx, tx, children); err != nil {
				return err
			}
		}
		// From here on the row, the children, the sum and the job's end are one: all commit, or nothing does.
		return job.CompleteTx(ctx, tx, weir.Count{Counter: "bytes", N: bytes})
	})
}

// count counts the children of each page. It may run again, if it is retried or the flow is, and then replaces what it has counted. Now that the tree is
// complete, foreign keys could be added as well, NOT VALID and then validated, until the next tree is built.
func count(ctx context.Context, pool *pgxpool.Pool, job *weir.Job[Count]) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO children (tree, path, children)
			SELECT tree, parent, count(*) FROM node WHERE tree = $1 AND parent IS NOT NULL GROUP BY tree, parent
			ON CONFLICT (tree, path) DO UPDATE SET children = excluded.children`, job.EndedFlow().ID)
		if err != nil {
			return err
		}
		return job.CompleteTx(ctx, tx)
	})
}

// work runs a worker until the children of the tree are counted. Any number of processes may do so.
func work(ctx context.Context, pool *pgxpool.Pool, client *weir.Client, s site, tree int64) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[Node]) error { return read(ctx, pool, client, s, job) })
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[Count]) error { return count(ctx, pool, job) })
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{queue: 8}})
	if err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() { // ends when the children are counted or with ctx; waited for below
		waited <- untilCounted(ctx, pool, client, tree)
		stop()
	}()
	err = worker.Run(ctx)
	stop()
	return errors.Join(err, <-waited)
}

// untilCounted waits until the children of the tree are counted. It returns an error if they never will be, because a page could not be read.
func untilCounted(ctx context.Context, pool *pgxpool.Pool, client *weir.Client, tree int64) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		// A tree of one page has nothing to count, so that the end of the flow counts, and then the callback: a member of no flow.
		flow, err := client.FlowInfo(ctx, tree)
		switch {
		case err != nil:
			return err
		case flow.State == weir.FlowFailed || flow.State == weir.FlowCancelled || flow.State == weir.FlowAbandoned:
			return fmt.Errorf("tree %d %s: %d of %d pages were read", tree, flow.State, flow.Completed, flow.Jobs)
		case flow.State == weir.FlowSucceeded:
			var counted bool
			err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM children WHERE tree = $1) OR NOT EXISTS (SELECT FROM node WHERE tree = $1 AND parent IS NOT NULL)`, tree).Scan(&counted)
			if err != nil || counted {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// report prints the size of the tree.
func report(ctx context.Context, pool *pgxpool.Pool, client *weir.Client, tree int64, out io.Writer) error {
	var nodes, parents, children int64
	err := pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM node WHERE tree = $1), count(*), coalesce(sum(children), 0)::bigint FROM children WHERE tree = $1`, tree).Scan(&nodes, &parents, &children)
	if err != nil {
		return err
	}
	flow, err := client.FlowInfo(ctx, tree)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "tree %d: %d nodes, %d of them with %d children, %d bytes\n", tree, nodes, parents, children, flow.Counters["bytes"])
	return err
}
