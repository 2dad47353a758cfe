package weir_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
)

// TestAMissingKeyFailsTheAttemptAndIsNamed: a job whose key the worker does not have fails as often as any other, and no handler, middleware or
// policy of the kind sees it; its error names the key and is readable.
func TestAMissingKeyFailsTheAttemptAndIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	job, err := r.client.WithCodec(codec(t, "gone")).Enqueue(t.Context(), secret{Text: "x"}, &weir.Options{MaxAttempts: 2})
	if err != nil {
		t.Fatal(err)
	}
	var policy error
	log, stop := r.secrets(r.client.WithCodec(codec(t, "k1")), func(cfg *weir.WorkerConfig) {
		cfg.Retry = func(_ int, err error) time.Duration { policy = err; return 0 }
		cfg.Middleware = append(cfg.Middleware, func(next weir.WorkFunc) weir.WorkFunc {
			return func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
				t.Errorf("middleware sees %s", job.Args)
				return next(ctx, job)
			}
		})
	}, func(_ context.Context, job *weir.Job[secret]) error {
		t.Errorf("the handler sees %+v", job.Args)
		return nil
	})
	info := r.await(job.ID, weir.StateFailed)
	if len(info.Errors) != 2 || !strings.Contains(*info.Error, `encrypted with key "gone"`) || info.Attempt != 2 {
		t.Errorf("the job is %+v", info)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(policy, weir.ErrUnknownKey) || log.Count("cannot be decrypted") != 2 || log.Count(`gone`) == 0 {
		t.Errorf("the policy got %v, and the log is\n%s", policy, log)
	}
	if err := r.client.WithCodec(codec(t, "k1")).Decrypt(t.Context(), info); !errors.Is(err, weir.ErrUnknownKey) || string(info.Args) != `{"encrypted":"gone"}` {
		t.Errorf("decrypting it: %v, args %s", err, info.Args)
	}
}

// TestAWorkerWithoutTheCodecLeavesEncryptedJobsToOthers: the job is released without using up an attempt, and says why, until a worker with the codec
// comes. Meanwhile jobs of the same queue that are not encrypted run.
func TestAWorkerWithoutTheCodecLeavesEncryptedJobsToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.client.WithCodec(codec(t, "k1"))
	log, stop := r.secrets(r.client, nil, func(_ context.Context, job *weir.Job[secret]) error {
		if job.Args.Text != "plain" {
			t.Errorf("the handler got %+v", job.Args)
		}
		return nil
	})
	job, err := client.Enqueue(t.Context(), secret{Text: "x"}, &weir.Options{MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := r.client.Enqueue(t.Context(), secret{Text: "plain"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.await(plain.ID, weir.StateCompleted)
	info := r.await(job.ID, weir.StateScheduled)
	if info.Attempt != 1 || !strings.Contains(*info.Error, "no codec for its kind") || !strings.Contains(*info.Error, "k1") {
		t.Errorf("the job is %+v", info)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if log.Count("has no codec for their kind") != 1 {
		t.Errorf("the log is\n%s", log)
	}
	r.secrets(client, nil, func(context.Context, *weir.Job[secret]) error { return nil })
	r.await(job.ID, weir.StateCompleted)
}

// TestWhatWasTamperedWithDoesNotRun: neither a changed ciphertext, nor that of another kind, nor what only looks like one reaches a handler.
func TestWhatWasTamperedWithDoesNotRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.client.WithCodec(codec(t, "k1"))
	stored := func(args weir.Args) string {
		t.Helper()
		job, err := client.Enqueue(t.Context(), args, &weir.Options{Queue: "elsewhere"})
		var text string
		if err == nil {
			err = r.pool.QueryRow(t.Context(), `SELECT args::text FROM weir.job_info($1)`, job.ID).Scan(&text)
		}
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	mine, others := stored(secret{Text: "x"}), stored(otherKind{Text: "x"})
	if mine == stored(secret{Text: "x"}) {
		t.Error("two jobs with the same args are stored alike")
	}
	data := mine[strings.Index(mine, `"data": "`)+9:]
	changed := strings.Replace(mine, data, "B"+data[1:], 1)
	if data[0] == 'B' {
		changed = strings.Replace(mine, data, "C"+data[1:], 1)
	}
	ids := map[int64]string{}
	for _, args := range []string{
		changed, others, strings.Replace(mine, `"k1"`, `"k2"`, 1), strings.Replace(mine, data, `"}}`, 1), strings.Replace(mine, data, `A"}}`, 1),
		`{"weir.encrypted": {}}`, `{"weir.encrypted": 1}`, `{"weir.encrypted": {"key": "k1"}}`, `{"weir.encrypted": {"key": "k1", "data": "AAAA"}}`,
	} {
		var id int64
		if err := r.pool.QueryRow(t.Context(), `SELECT weir.enqueue('default', 'secret', $1, max_attempts => 1)`, args).Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids[id] = args
	}
	r.secrets(client, nil, func(_ context.Context, job *weir.Job[secret]) error {
		t.Errorf("the handler got %+v from %s", job.Args, ids[job.ID])
		return nil
	})
	for id, args := range ids {
		if info := r.await(id, weir.StateFailed); !strings.Contains(*info.Error, "decrypt the job's args") {
			t.Errorf("%s: %s", args, *info.Error)
		}
	}
	if _, err := client.Enqueue(t.Context(), raw{"secret", mine}, nil); err == nil || !strings.Contains(err.Error(), "encrypted already") {
		t.Errorf("encrypting again: %v", err)
	}
	if _, err := client.Enqueue(t.Context(), raw{"secret", `[1]`}, nil); err == nil || !strings.Contains(err.Error(), "must encode to a JSON object") {
		t.Errorf("a list: %v", err)
	}
}

// raw are args that are JSON already.
type raw struct{ kind, json string }

func (a raw) Kind() string                 { return a.kind }
func (a raw) MarshalJSON() ([]byte, error) { return []byte(a.json), nil }

// TestARetryRuleOfAKindAppliesToEncryptedErrors: its remark, which the server adds, is shown in the clear.
func TestARetryRuleOfAKindAppliesToEncryptedErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.client.WithCodec(codec(t, "k1"))
	if err := client.SetRetryRule(t.Context(), weir.RetryRule{Name: "never", Action: "fail", Kind: "secret"}); err != nil {
		t.Fatal(err)
	}
	r.secrets(client, func(cfg *weir.WorkerConfig) { cfg.Retry = nil }, func(context.Context, *weir.Job[secret]) error { return errors.New("hunter2") })
	job, err := client.Enqueue(t.Context(), secret{Text: "x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	info := r.await(job.ID, weir.StateFailed)
	shown := *info.Error
	if err := weir.NewClient(r.pool).Decrypt(t.Context(), info); !errors.Is(err, weir.ErrEncrypted) || strings.Count(err.Error(), "has no codec for its kind") != 1 {
		t.Errorf("without a codec: %v, want that it says so once", err)
	}
	if err := client.Decrypt(t.Context(), info); err != nil || !strings.HasPrefix(*info.Error, "hunter2") || !strings.HasPrefix(shown, "encrypted with key k1") ||
		!strings.Contains(shown, "never") || strings.TrimPrefix(shown, "encrypted with key k1") != strings.TrimPrefix(*info.Error, "hunter2") {
		t.Errorf("shown is %q, decrypted %q, %v", shown, *info.Error, err)
	}
}

// TestAnOutputOfAnotherJobDoesNotDecrypt: outputs and errors are bound to their job, and args are not, because it has no id yet.
func TestAnOutputOfAnotherJobDoesNotDecrypt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.client.WithCodec(codec(t, "k1"))
	r.secrets(client, nil, func(_ context.Context, job *weir.Job[secret]) error { job.SetOutput(job.Args.Text); return nil })
	var infos []*weir.JobInfo
	for _, text := range []string{"a", "b"} {
		job, err := client.Enqueue(t.Context(), secret{Text: text}, nil)
		if err != nil {
			t.Fatal(err)
		}
		infos = append(infos, r.await(job.ID, weir.StateCompleted))
	}
	if _, err := r.pool.Exec(t.Context(), `UPDATE weir.result SET outputs = (SELECT k.outputs FROM weir.result k WHERE $1 = ANY (k.ids)) WHERE $2 = ANY (ids)`, infos[0].ID, infos[1].ID); err != nil {
		t.Fatal(err)
	}
	info := r.await(infos[1].ID, weir.StateCompleted)
	if err := client.Decrypt(t.Context(), info); err == nil || !strings.Contains(err.Error(), "decrypt the job's output") || *info.Output != "encrypted with key k1" {
		t.Errorf("the output of another job: %v, %s", err, *info.Output)
	}
}
