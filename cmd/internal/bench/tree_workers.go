package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// treeWorkers are the worker processes of a tree.
type treeWorkers struct {
	db     *load.Database
	inputs []io.Closer
	ended  sync.WaitGroup
	failed chan error // of the first process that has ended too early

	mu       sync.Mutex
	counts   []load.TreeCount
	errs     []error
	stopping bool
}

// startTreeWorkers starts processes, and waits until all work. stop must be called even after an error.
func startTreeWorkers(ctx context.Context, d *load.Database, client load.TreeClient, n int, command func() *exec.Cmd, w load.TreeWork) (*treeWorkers, error) {
	t := &treeWorkers{db: d, failed: make(chan error, n), counts: make([]load.TreeCount, n)}
	for i := range n {
		if err := t.start(i, command(), w); err != nil {
			return t, fmt.Errorf("bench: start a worker process: %w", err)
		}
	}
	const patience = 2 * time.Minute
	for until := time.Now().Add(patience); ; {
		here, err := client.Workers(ctx)
		if err != nil || here >= n {
			return t, err
		}
		select {
		case err := <-t.failed:
			return t, err
		default:
		}
		if time.Now().After(until) {
			return t, fmt.Errorf("bench: %d of %d worker processes work after %s", here, n, patience)
		}
		if !sleep.For(ctx, 50*time.Millisecond) {
			return t, ctx.Err()
		}
	}
}

// start starts one process, and reads what it has done until it ends.
func (t *treeWorkers) start(i int, cmd *exec.Cmd, w load.TreeWork) error {
	cmd.Stderr = t.db.Config.Progress
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	t.inputs = append(t.inputs, in)
	t.ended.Go(func() { // ends with the process, which ends when its input does
		err := json.NewEncoder(in).Encode(w)
		for decoder := json.NewDecoder(out); err == nil; {
			var count load.TreeCount
			if err = decoder.Decode(&count); err == nil {
				t.mu.Lock()
				t.counts[i] = count
				t.mu.Unlock()
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		in.Close()
		_, _ = io.Copy(io.Discard, out)
		err = errors.Join(cmd.Wait(), err)
		t.mu.Lock()
		defer t.mu.Unlock()
		if err != nil {
			t.errs = append(t.errs, fmt.Errorf("bench: a worker process: %w", err))
		}
		if !t.stopping {
			t.failed <- errors.Join(errors.New("bench: a worker process has ended early"), err)
		}
	})
	return nil
}

// stop ends the processes, and waits for them.
func (t *treeWorkers) stop() error {
	t.mu.Lock()
	t.stopping = true
	t.mu.Unlock()
	for _, in := range t.inputs {
		in.Close()
	}
	t.ended.Wait()
	return errors.Join(t.errs...)
}

// count returns what all processes together have done.
func (t *treeWorkers) count() (sum load.TreeCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.counts {
		sum.Add(c)
	}
	return sum
}

// until waits until enough is done. It returns an error if that makes no progress for a minute.
func (t *treeWorkers) until(ctx context.Context, what string, of int, done func(load.TreeCount) int64, enough func(load.TreeCount) bool) error {
	const patience, sayEvery = time.Minute, 10 * time.Second
	last, at, said := int64(-1), time.Now(), time.Now()
	for {
		count := t.count()
		n := done(count)
		switch {
		case enough(count):
			return nil
		case n != last:
			last, at = n, time.Now()
		case time.Since(at) > patience:
			return fmt.Errorf("bench: %s: %d of %d jobs are done, and none in the last %s", what, n, of, patience)
		}
		if time.Since(said) > sayEvery {
			said = time.Now()
			t.db.Say("%s: %d of %d", what, n, of)
		}
		select {
		case err := <-t.failed:
			return err
		default:
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
}
