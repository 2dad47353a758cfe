package weir_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// reached is a checkpoint.
type reached struct {
	Done int    `json:"done"`
	Text string `json:"text,omitempty"`
}

// TestTheNextAttemptGoesOnFromTheCheckpoint: after a failure, a panic, a snooze, a release by a worker that stops, and after the worker was lost, the next attempt
// reads what was set last, of plain and of encrypted jobs; the first attempt asks the database nothing.
func TestTheNextAttemptGoesOnFromTheCheckpoint(t *testing.T) {
	t.Parallel()
	for _, encrypted := range []bool{false, true} {
		r := newRig(t)
		if encrypted {
			r.client = r.client.WithCodec(codec(t, "k1"))
		}
		job := r.enqueue(1, nil)
		signal := make(chan struct{}, 1)
		var lost weir.JobMeta
		run := func(ctx context.Context, job *weir.Job[number]) error {
			var at reached
			found, err := job.Checkpoint(ctx, &at)
			if err != nil {
				return err
			}
			if found != (at.Done > 0) || found == (job.Attempt == 1 && job.PutOff == 0) {
				return weir.Fail(fmt.Errorf("attempt %d, put off %d: found %v, %+v", job.Attempt, job.PutOff, found, at))
			}
			at.Done++
			at.Text = "hunter2"
			if err := job.SetCheckpoint(at); err != nil {
				return err
			}
			job.SetProgress(float64(10*at.Done), fmt.Sprint("hunter2, step ", at.Done))
			var again reached
			if found, err := job.Checkpoint(ctx, &again); err != nil || !found || again != at {
				return weir.Fail(fmt.Errorf("read back %+v, %v: %w", again, found, errors.Join(err, errors.New("want what was set"))))
			}
			switch at.Done {
			case 1:
				return errors.New("fails")
			case 2:
				panic("panics")
			case 3:
				return weir.Snooze(time.Millisecond)
			case 4: // the worker stops
				signal <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			case 5: // the worker is lost
				if err := job.Sync(ctx); err != nil {
					return err
				}
				lost = job.JobMeta
				signal <- struct{}{}
				<-ctx.Done()
				if err := job.SetCheckpoint(reached{Done: 1000}); err != nil {
					return err
				}
				if err := job.Sync(context.WithoutCancel(ctx)); err == nil || !weir.IsFenced(err) {
					t.Errorf("a lost worker's checkpoint: %v", err)
				}
				return ctx.Err()
			}
			job.SetOutput(fmt.Sprint(at.Done))
			return nil
		}
		stop := r.work(run, func(cfg *weir.WorkerConfig) { cfg.StopTimeout = time.Millisecond })
		pgtest.Receive(t, signal, "the attempt has come to where the worker stops or is lost")
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		r.work(run, nil)
		pgtest.Receive(t, signal, "the attempt has come to where the worker stops or is lost")
		info := r.await(job, weir.StateRunning)
		if info.Percent == nil || *info.Percent != 50 || (*info.Message == "hunter2, step 5") == encrypted {
			t.Errorf("while it runs it is shown as %+v", info)
		}
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		for fenced := false; !fenced; { // not while it claims or reports
			if err := r.pool.QueryRow(ctx, `SELECT weir._fence($1, 'its machine burned')`, *info.Worker).Scan(&fenced); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		info = r.await(job, weir.StateCompleted)
		if err := r.client.Decrypt(t.Context(), info); err != nil {
			t.Fatal(err)
		}
		if *info.Output != "6" || *info.Percent != 60 || *info.Message != "hunter2, step 6" || lost.ID != job {
			t.Errorf("it ended as %+v", info)
		}
		var rows string
		if err := r.pool.QueryRow(t.Context(), `SELECT string_agg(r::text, ' ') FROM weir.report r`).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(rows, "hunter2") == encrypted {
			t.Errorf("encrypted %v: stored is %s", encrypted, rows)
		}
		page, err := r.client.Jobs(t.Context(), weir.JobsParams{})
		if err != nil || *page.Jobs[0].Percent != 60 || page.Jobs[0].Log != nil || strings.Contains(*page.Jobs[0].Message, "hunter2") == encrypted {
			t.Errorf("it is listed as %+v, %v", page, err)
		}
	}
}

// TestAnAttemptEndsAfterItsReports: the end of an attempt is not recorded while a call still stores what it has reported.
func TestAnAttemptEndsAfterItsReports(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lock, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	if _, err := lock.Exec(t.Context(), `LOCK TABLE weir.report IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	leave := make(chan struct{})
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		if job.Attempt > 1 {
			var at reached
			if found, err := job.Checkpoint(ctx, &at); err != nil || !found || at.Done != 7 {
				return weir.Fail(fmt.Errorf("found %v, %+v, %w", found, at, err))
			}
			return nil
		}
		if err := job.SetCheckpoint(reached{Done: 7}); err != nil {
			return weir.Fail(err)
		}
		<-leave
		return errors.New("again")
	}, nil)
	job := r.enqueue(1, nil)
	is := func(sql string) (holds bool) {
		if err := lock.QueryRow(t.Context(), sql).Scan(&holds); err != nil {
			t.Fatal(err)
		}
		return holds
	}
	eventually(t, func() error {
		if !is(`SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation::regclass::text LIKE 'weir.report%')`) {
			return errors.New("no call waits to store the checkpoint")
		}
		return nil
	})
	close(leave)
	for until := time.Now().Add(500 * time.Millisecond); time.Now().Before(until) && !t.Failed(); time.Sleep(10 * time.Millisecond) {
		if is(`SELECT EXISTS (SELECT FROM weir.result)`) {
			t.Error("the attempt has ended, and its checkpoint is not stored")
		}
	}
	if err := lock.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.await(job, weir.StateCompleted)
}

// TestACheckpointIsReadAfterAMove: the first attempt at a job, claimed again after the log was moved to another cluster, goes on from the checkpoint that was stored there.
func TestACheckpointIsReadAfterAMove(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	job := r.enqueue(1, nil)
	signal := make(chan struct{})
	var runs atomic.Int32
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		var at reached
		if _, err := job.Checkpoint(ctx, &at); err != nil {
			return err
		}
		if runs.Add(1) > 1 {
			job.SetOutput(fmt.Sprintf("attempt %d goes on from %d", job.Attempt, at.Done))
			return nil
		}
		if err := errors.Join(job.SetCheckpoint(reached{Done: 7}), job.Sync(ctx)); err != nil {
			return err
		}
		close(signal)
		<-ctx.Done()
		return ctx.Err()
	}, nil)
	pgtest.Receive(t, signal, "the first run has stored its checkpoint")
	for _, sql := range []string{`UPDATE weir.setting SET value = 'elsewhere' WHERE name = 'cluster'`, `SELECT weir.rebase()`} {
		if _, err := r.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if info := r.await(job, weir.StateCompleted); *info.Output != "attempt 1 goes on from 7" {
		t.Errorf("%s", *info.Output)
	}
}

// TestProgressIsStoredOnceASecondForAllJobs: however often handlers call, a worker writes at most one row for each job and second, and all jobs in one transaction; and
// what was set last is stored before the end.
func TestProgressIsStoredOnceASecondForAllJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	began := time.Now()
	var ids []int64
	for n := range 5 {
		ids = append(ids, r.enqueue(n, nil))
	}
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		for n, until := 0, time.Now().Add(1500*time.Millisecond); time.Now().Before(until); n++ {
			job.SetProgress(float64(n%100), "working")
			if err := job.SetCheckpoint(n); err != nil {
				return err
			}
		}
		job.SetProgress(100, "done")
		return nil
	}, nil)
	for _, id := range ids {
		if info := r.await(id, weir.StateCompleted); *info.Percent != 100 || *info.Message != "done" {
			t.Errorf("job %d ended as %+v", id, info)
		}
	}
	seconds := int(time.Since(began)/time.Second) + 1
	var rows, transactions, most int
	if err := r.pool.QueryRow(t.Context(), `SELECT sum(n), (SELECT count(DISTINCT xmin::text) FROM weir.report), max(n) FROM (SELECT count(*) AS n FROM weir.report GROUP BY job_id) k`).Scan(&rows, &transactions, &most); err != nil {
		t.Fatal(err)
	}
	if most > seconds+2 || transactions >= rows {
		t.Errorf("in %d s there were up to %d rows of a job, and %d in %d transactions", seconds, most, rows, transactions)
	}
}

// TestJobsThatReportNothingCostNothing: no statement reads or writes a report.
func TestJobsThatReportNothingCostNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		if job.Attempt == 1 {
			return errors.New("again")
		}
		return nil
	}, nil)
	for n := range 20 {
		r.await(r.enqueue(n, nil), weir.StateCompleted)
	}
	var used *int64
	if err := r.pool.QueryRow(t.Context(), `SELECT pg_sequence_last_value('weir.report_no')`).Scan(&used); err != nil || used != nil {
		t.Errorf("reports were numbered up to %v, %v", used, err)
	}
}

// TestAnAttemptsLogIsKeptWithinItsBounds: lines are shown in order, with their attempt and level; too many and too long ones are counted and cut off.
func TestAnAttemptsLogIsKeptWithinItsBounds(t *testing.T) {
	t.Parallel()
	for _, encrypted := range []bool{false, true} {
		r := newRig(t)
		if encrypted {
			r.client = r.client.WithCodec(codec(t, "k1"))
		}
		r.work(func(_ context.Context, job *weir.Job[number]) error {
			if job.Attempt == 1 {
				job.Log().With("step", 7).WithGroup("g").Info("hunter2 reads", "rows", 3)
				job.Log().Debug("not kept")
				job.Log().Error("it\x00 is\xff down", "error", errors.New("a b"))
				return errors.New("again")
			}
			for n := range 1500 {
				job.Log().Info(fmt.Sprint("line ", n) + strings.Repeat("x", 10*(n%2)))
			}
			return nil
		}, nil)
		info := r.await(r.enqueue(1, nil), weir.StateCompleted)
		if hidden := strings.Contains(fmt.Sprint(info.Log), "line "); hidden == encrypted {
			t.Errorf("encrypted %v: shown is %+v", encrypted, info.Log[0])
		}
		if err := r.client.Decrypt(t.Context(), info); err != nil {
			t.Fatal(err)
		}
		if len(info.Log) != 1000 || info.Log[999].Text != "500 more lines are not kept: of an attempt, 1000 lines and 262144 bytes are" || info.Log[999].Level != "WARN" ||
			info.Log[998].Text != "line 999xxxxxxxxxx" || info.Log[0].Text != "line 1xxxxxxxxxx" || info.Log[0].Attempt != 2 || info.Log[0].Level != "INFO" {
			t.Errorf("encrypted %v: %d lines, from %+v to %+v", encrypted, len(info.Log), info.Log[0], info.Log[len(info.Log)-1])
		}
	}
	r := newRig(t)
	r.work(func(_ context.Context, job *weir.Job[number]) error {
		job.Log().With("step", 7).WithGroup("g").Info("reads", "rows", 3)
		job.Log().Debug("not kept")
		job.Log().Error("it\x00 is\xff down", "error", errors.New("a b"))
		job.Log().Info(strings.Repeat("y", 10_000))
		return nil
	}, nil)
	info := r.await(r.enqueue(1, nil), weir.StateCompleted)
	if len(info.Log) != 3 || info.Log[0].Text != "reads step=7 g.rows=3" || info.Log[1].Text != "it\uFFFD is\uFFFD down error=\"a b\"" || info.Log[1].Level != "ERROR" ||
		len(info.Log[2].Text) != 4096 || time.Since(info.Log[0].At).Abs() > time.Minute {
		t.Errorf("the log is %.300s", fmt.Sprint(info.Log))
	}
}

// TestACheckpointThatCannotBeStoredIsRefused: with its reason, and the one before stays.
func TestACheckpointThatCannotBeStoredIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		if job.Attempt == 2 {
			var at reached
			found, err := job.Checkpoint(ctx, &at)
			if err != nil || !found || at.Done != 7 {
				return weir.Fail(fmt.Errorf("found %v, %+v, %w", found, at, err))
			}
			if err := job.SetCheckpoint(nil); err != nil {
				return err
			}
			if found, err := job.Checkpoint(ctx, &at); found || err != nil {
				return weir.Fail(fmt.Errorf("after clearing: %v, %w", found, err))
			}
			return errors.New("again")
		} else if job.Attempt == 3 {
			if found, err := job.Checkpoint(ctx, new(reached)); found || err != nil {
				return weir.Fail(fmt.Errorf("after clearing: %v, %w", found, err))
			}
			return nil
		}
		if err := job.SetCheckpoint(reached{Done: 7, Text: `\u0000`}); err != nil {
			return weir.Fail(err)
		}
		for _, c := range []struct {
			data any
			want string
		}{{strings.Repeat("x", 65_536), "65538 bytes, at most 65536"}, {func() {}, "unsupported type"}, {"a\x00b", "NUL"}} {
			if err := job.SetCheckpoint(c.data); err == nil || !strings.Contains(err.Error(), c.want) {
				return weir.Fail(fmt.Errorf("want %q: %w", c.want, err))
			}
		}
		return errors.New("again")
	}, nil)
	r.await(r.enqueue(1, nil), weir.StateCompleted)
}

// TestAJobConstructedDirectlyReportsNothing: handlers can be called in tests.
func TestAJobConstructedDirectlyReportsNothing(t *testing.T) {
	t.Parallel()
	job := &weir.Job[number]{}
	job.SetProgress(1, "x")
	job.Log().Info("x")
	found, err := job.Checkpoint(t.Context(), new(reached))
	if err := errors.Join(err, job.SetCheckpoint(1), job.Sync(t.Context())); err != nil || found {
		t.Errorf("%v, %v", found, err)
	}
}
