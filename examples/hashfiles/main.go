// Command hashfiles computes the SHA-256 of every file below a folder, as background jobs. It shows two
// things that only a queue in the same database can do:
//
//   - the row of a file and the job that hashes it are written in one transaction;
//   - the hash and the job's completion are written in one transaction, so each hash is recorded exactly once.
//
// Run it with the connection string of a database and a folder:
//
//	go run ./examples/hashfiles postgres://localhost/app photos
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/schema"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: hashfiles DATABASE_URL FOLDER")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "hashfiles:", err)
		os.Exit(1)
	}
}

// HashFile are the args of a job.
type HashFile struct {
	FileID int64 `json:"file_id"`
}

func (HashFile) Kind() string { return "hash_file" }

// run hashes the folder and prints the hashes.
func run(ctx context.Context, url, folder string, out io.Writer) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := install(ctx, pool); err != nil {
		return err
	}
	client := weir.NewClient(pool)
	if err := enqueue(ctx, pool, client, folder); err != nil {
		return err
	}
	if err := work(ctx, pool, client); err != nil {
		return err
	}
	return report(ctx, pool, out)
}

// install creates Weir's schema and the program's own table if they don't exist.
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
		_, err := c.Exec(ctx, `CREATE TABLE IF NOT EXISTS file (
			id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, path text NOT NULL UNIQUE, sha256 text, error text)`)
		return err
	})
}

// enqueue writes a row and a job for every file that is new, all in one transaction: there is never a row whose
// job was lost, nor a job whose row is missing.
func enqueue(ctx context.Context, pool *pgxpool.Pool, client *weir.Client, folder string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			var id int64
			err = tx.QueryRow(ctx, `INSERT INTO file (path) VALUES ($1) ON CONFLICT (path) DO NOTHING RETURNING id`, path).Scan(&id)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil // an earlier run added it
			}
			if err != nil {
				return err
			}
			_, err = client.EnqueueTx(ctx, tx, HashFile{FileID: id}, &weir.Options{Queue: "hashfiles"})
			return err
		})
	})
}

// work runs a worker until every file has its hash or an error.
func work(ctx context.Context, pool *pgxpool.Pool, client *weir.Client) error {
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[HashFile]) error {
		return hash(ctx, pool, job)
	})
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"hashfiles": 8}})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	waited := make(chan error, 1)
	go func() { // ends when all files are hashed or with ctx; waited for below
		waited <- untilHashed(ctx, pool)
		stop()
	}()
	err = worker.Run(ctx)
	stop()
	return errors.Join(err, <-waited)
}

func untilHashed(ctx context.Context, pool *pgxpool.Pool) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var left bool
		err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM file WHERE sha256 IS NULL AND error IS NULL)`).Scan(&left)
		if err != nil || !left {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hash is one attempt at one file. If it returns an error, the job is retried. A file that can't be read is not such an error,
// but a result.
func hash(ctx context.Context, pool *pgxpool.Pool, job *weir.Job[HashFile]) error {
	var path string
	if err := pool.QueryRow(ctx, `SELECT path FROM file WHERE id = $1`, job.Args.FileID).Scan(&path); err != nil {
		return fmt.Errorf("find file %d: %w", job.Args.FileID, err)
	}
	sum, failure := sum(path)
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE file SET sha256 = nullif($2, ''), error = nullif($3, '') WHERE id = $1`, job.Args.FileID, sum, failure)
		if err != nil {
			return err
		}
		// From here on the hash and the job's end are one: both commit, or neither does.
		return job.CompleteTx(ctx, tx)
	})
}

// sum returns the SHA-256 of a file in hexadecimal, or why there is none.
func sum(path string) (sum, failure string) {
	file, err := os.Open(path)
	if err != nil {
		return "", err.Error()
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", err.Error()
	}
	return hex.EncodeToString(h.Sum(nil)), ""
}

// report prints the hashes in the format of sha256sum.
func report(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	rows, err := pool.Query(ctx, `SELECT path, coalesce(sha256, 'error: ' || error) FROM file ORDER BY path`)
	if err != nil {
		return err
	}
	var path, result string
	_, err = pgx.ForEachRow(rows, []any{&path, &result}, func() error {
		_, err := fmt.Fprintf(out, "%s  %s\n", result, path)
		return err
	})
	return err
}
