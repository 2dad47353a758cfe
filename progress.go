package weir

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/weir-pg/weir/internal/sealed"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// LogLine is a line that an attempt has logged with JobMeta.Log.
type LogLine struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Level   string    `json:"level"`
	Text    string    `json:"text"`
}

// SetProgress sets how far the attempt is, from 0 to 100 percent, and a message of up to 1,000 bytes for people; longer messages are
// truncated. Client.Job and `weir jobs` show both. Call it as often as you like: a worker stores the last values of all its attempts once a
// second, in one statement, and before the attempt's end is recorded. On a job that was constructed directly it does nothing.
func (j *JobMeta) SetProgress(percent float64, message string) {
	if r := j.report(); r != nil {
		r.Progress(percent, message)
	}
}

// SetCheckpoint sets what [JobMeta.Checkpoint] returns from then on, in this attempt and in later ones: any value that encodes to JSON of up
// to 64 KiB, for example the id of the last row that was processed. nil means that there is nothing to go on from. Call it as often as you
// like: it is stored within about a second, and before the attempt's end is recorded. If the process or the server dies, what was set in the
// last second may be lost; call [JobMeta.Sync] where that matters, or SetCheckpointTx, which is exact. On a job that was constructed directly it does nothing.
func (j *JobMeta) SetCheckpoint(data any) error {
	stored, err := j.encodeCheckpoint(data)
	if err != nil || j.report() == nil {
		return err
	}
	j.report().SetCheckpoint(stored)
	return nil
}

// SetCheckpointTx sets the checkpoint in your transaction, so that the work and the checkpoint commit together or not at all: the next attempt goes on
// exactly behind the last transaction that was committed, whatever dies in between. The transaction must be READ COMMITTED, and in the database of the
// worker. While it is open, no other attempt at the job starts, even if this worker is thought lost, so commit it soon.
//
// SetCheckpointTx fails by design if the worker has been fenced: another worker has the job then, or will have it, and you must roll the transaction back.
// On a job that was constructed directly it fails with ErrNotClaimed; in weirtest.Work it does the same as SetCheckpoint.
func (j *JobMeta) SetCheckpointTx(ctx context.Context, tx Tx, data any) error {
	r := j.report()
	if r == nil {
		return fmt.Errorf("weir: set the checkpoint of job %d: %w", j.ID, ErrNotClaimed)
	}
	stored, err := j.encodeCheckpoint(data)
	switch {
	case err != nil:
		return err
	case j.attempt.worker == noWorker:
		r.SetCheckpoint(stored)
		return nil
	}
	if err := r.SetCheckpointTx(ctx, func() error {
		return store.SetCheckpointTx(ctx, tx, j.attempt.worker, j.attempt.batch, j.ID, string(stored))
	}); err != nil {
		return fmt.Errorf("weir: set the checkpoint of job %d: %w", j.ID, explain(err, "weir_work"))
	}
	return nil
}

// encodeCheckpoint returns a checkpoint in the form in which it is stored.
func (j *JobMeta) encodeCheckpoint(data any) (json.RawMessage, error) {
	text, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("weir: encode the checkpoint of job %d: %w", j.ID, err)
	}
	if j.attempt == nil {
		return nil, nil
	}
	if seal := j.attempt.seal; seal != nil {
		stored, err := seal(sealed.Checkpoint, string(text))
		if err != nil {
			return nil, fmt.Errorf("weir: encrypt the checkpoint of job %d: %w", j.ID, err)
		}
		text = []byte(stored)
	} else if bytes.Contains(bytes.ReplaceAll(text, []byte(`\\`), nil), []byte(`\u0000`)) {
		return nil, fmt.Errorf("weir: the checkpoint of job %d contains a NUL character, which PostgreSQL cannot store", j.ID)
	}
	if len(text) > worker.MaxCheckpoint {
		return nil, fmt.Errorf("weir: the checkpoint of job %d has %d bytes, at most %d are allowed: keep larger data elsewhere, and its place in the checkpoint", j.ID, len(text), worker.MaxCheckpoint)
	}
	return text, nil
}

// Checkpoint decodes the last value that was passed to SetCheckpoint, or to SetCheckpointTx in a transaction that was committed, in this attempt or an earlier one, and reports whether there is one. It
// survives retries, snoozes, lost workers and moves of the database, and is kept as long as the job. The first attempt at a job asks the
// database nothing; later attempts ask it in each call until they set a checkpoint themselves. On a job that was constructed directly there
// is none.
func (j *JobMeta) Checkpoint(ctx context.Context, into any) (found bool, err error) {
	if j.attempt == nil {
		return false, nil
	}
	stored, outside := j.report().Checkpoint()
	if stored == nil {
		if stored, err = j.attempt.task.StoredCheckpoint(ctx, outside); err != nil {
			return false, fmt.Errorf("weir: read the checkpoint of job %d: %w", j.ID, explain(err, "weir_work"))
		}
	}
	if sealed.Is(stored) {
		if stored, err = j.attempt.codecs.decode(ctx, sealed.Checkpoint, j.ID, j.attempt.task.Kind, stored); err != nil {
			return false, fmt.Errorf("weir: job %d: %w", j.ID, err)
		}
	}
	if stored == nil || string(stored) == "null" {
		return false, nil
	}
	if err := json.Unmarshal(stored, into); err != nil {
		return false, fmt.Errorf("weir: the checkpoint of job %d does not decode into %T: %w", j.ID, into, err)
	}
	return true, nil
}

// Sync returns when everything that was passed to SetProgress, SetCheckpoint and Log before is stored and durable. The error is ErrFenced if
// the attempt is not this worker's any more. Each call waits for a commit, so don't call it for every row. On a job that was constructed
// directly it does nothing.
func (j *JobMeta) Sync(ctx context.Context) error {
	r := j.report()
	if r == nil {
		return nil
	}
	if err := r.Sync(ctx); err != nil {
		if errors.Is(err, worker.ErrFenced) {
			return fmt.Errorf("weir: job %d: %w", j.ID, err)
		}
		return fmt.Errorf("weir: store the progress of job %d: %w", j.ID, explain(err, "weir_work"))
	}
	return nil
}

// Log returns a logger whose lines are kept with the attempt: Client.Job and `weir jobs show` show them. Of an attempt, 1,000 lines and 256
// KiB are kept, of a line 4 KiB; a last line says how many were dropped. They are stored as progress is. Lines below slog.LevelInfo are not
// kept. On a job that was constructed directly, lines are discarded.
func (j *JobMeta) Log() *slog.Logger {
	r := j.report()
	if r == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(worker.NewLogHandler(r))
}

// report returns what the attempt reports; nil: the job was constructed directly.
func (j *JobMeta) report() *worker.Report {
	if j.attempt == nil {
		return nil
	}
	return j.attempt.task.Report(j.attempt.seal)
}
