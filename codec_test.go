package weir_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weircrypt"
)

// secret is a kind of job whose args must not be seen.
type secret struct {
	Text string `json:"text"`
	N    int    `json:"n"`
}

func (secret) Kind() string { return "secret" }

// otherKind is a kind with the same args.
type otherKind secret

func (otherKind) Kind() string { return "other" }

func key(id string) weircrypt.Key {
	sum := sha256.Sum256([]byte(id))
	return weircrypt.Key{ID: id, Secret: sum[:]}
}

func codec(t *testing.T, first string, others ...string) *weircrypt.Codec {
	t.Helper()
	var more []weircrypt.Key
	for _, id := range others {
		more = append(more, key(id))
	}
	c, err := weircrypt.New(key(first), more...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// secrets runs a worker of a client for the kind, and returns its log and a function that stops it.
func (r *rig) secrets(client *weir.Client, change func(*weir.WorkerConfig), run func(ctx context.Context, job *weir.Job[secret]) error) (*pgtest.Log, func() error) {
	r.t.Helper()
	log := &pgtest.Log{}
	before := r.client
	r.client = client
	defer func() { r.client = before }()
	stop := r.work(func(context.Context, *weir.Job[number]) error { return nil }, func(cfg *weir.WorkerConfig) {
		weir.Handle(cfg.Handlers, run)
		cfg.Logger = log.Logger()
		if change != nil {
			change(cfg)
		}
	})
	return log, stop
}

// everything returns all rows of the tables that hold what jobs store, as text.
func (r *rig) everything() string {
	r.t.Helper()
	var all strings.Builder
	for _, table := range []string{"job", "later", "result", "failure"} {
		rows, err := r.pool.Query(r.t.Context(), `SELECT t::text FROM weir.`+table+` t`)
		if err != nil {
			r.t.Fatal(err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			r.t.Fatal(err)
		}
		all.WriteString(strings.Join(texts, "\n"))
	}
	return all.String()
}

// TestWhatIsEncryptedIsNeverSeen: however a job is enqueued and however its attempts end, its args, output and errors are in no table, no log and
// no list, and its handler gets them.
func TestWhatIsEncryptedIsNeverSeen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const mark, number = "hunter2", 424243
	client := r.client.WithCodec(codec(t, "k1"))
	db, err := sql.Open("pgx", r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	args := secret{Text: mark, N: number}
	var ids []int64
	note := func(job weir.Enqueued, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, job.ID)
	}
	notes := func(jobs []weir.Enqueued, err error) {
		t.Helper()
		for _, job := range jobs {
			note(job, err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	note(client.Enqueue(t.Context(), args, nil))
	note(client.Enqueue(t.Context(), args, &weir.Options{RunAt: time.Now().Add(500 * time.Millisecond)}))
	notes(client.EnqueueMany(t.Context(), []weir.NewJob{{Args: args}, {Args: args}}))
	if err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		note(client.EnqueueTx(t.Context(), tx, args, nil))
		notes(client.EnqueueManyTx(t.Context(), tx, []weir.NewJob{{Args: args}}))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	note(client.EnqueueTx(t.Context(), weir.SQLTx(tx), args, nil))
	notes(client.EnqueueManyTx(t.Context(), weir.SQLTx(tx), []weir.NewJob{{Args: args}, {Args: args}}))
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}

	ways := map[int64]func(job *weir.Job[secret]) error{
		ids[1]: func(*weir.Job[secret]) error { return weir.Fail(errors.New(mark)) },
		ids[2]: func(*weir.Job[secret]) error { panic(mark) },
		ids[3]: func(*weir.Job[secret]) error { panic(&json.MarshalerError{Err: errors.New(mark)}) },
		ids[4]: func(*weir.Job[secret]) error { return weir.Cancel(errors.New(mark)) },
		ids[5]: func(job *weir.Job[secret]) error {
			return weir.RetryAfter(0, fmt.Errorf("wrapped: %w", errors.New(mark+strings.Repeat("x", 3000))))
		},
	}
	hookErrs := make(chan error, 100)
	log, stop := r.secrets(client, func(cfg *weir.WorkerConfig) {
		cfg.Hooks = []weir.Hooks{{End: func(_ context.Context, job weir.JobMeta, _ weir.Outcome, _ time.Duration, err error) {
			if !job.Encrypted {
				hookErrs <- errors.New("Encrypted is not set")
			}
			if err != nil {
				panic(err) // is logged
			}
		}}}
		cfg.Retry = func(int, error) time.Duration { panic(mark) }
	}, func(_ context.Context, job *weir.Job[secret]) error {
		if job.Args != args {
			return weir.Fail(fmt.Errorf("got %+v", job.Args))
		}
		if job.Attempt == 1 {
			if way := ways[job.ID]; way != nil {
				return way(job)
			}
		}
		job.SetOutput("the output is " + mark)
		return nil
	})
	states := map[int64]weir.State{ids[1]: weir.StateFailed, ids[4]: weir.StateCancelled}
	for _, id := range ids {
		state := weir.StateCompleted
		if s, ok := states[id]; ok {
			state = s
		}
		info := r.await(id, state)
		text, err := json.Marshal(info)
		if err != nil {
			t.Fatal(err)
		}
		if info.Encrypted != "k1" || string(info.Args) != `{"encrypted":"k1"}` || strings.Contains(string(text), mark) || strings.Contains(string(text), "weir.encrypted") {
			t.Errorf("job %d is shown as %s", id, text)
		}
		if info.State == weir.StateCompleted && *info.Output != "encrypted with key k1" {
			t.Errorf("job %d shows the output %q", id, *info.Output)
		}
		if err := client.Decrypt(t.Context(), info); err != nil {
			t.Fatal(err)
		}
		var got secret
		if err := json.Unmarshal(info.Args, &got); err != nil || got != args {
			t.Errorf("job %d is decrypted as %s (%v)", id, info.Args, err)
		}
		if info.State == weir.StateCompleted && *info.Output != "the output is "+mark {
			t.Errorf("job %d has the output %q", id, *info.Output)
		}
		if ways[id] != nil && (len(info.Errors) != 1 || !strings.Contains(info.Errors[0].Error, mark)) {
			t.Errorf("job %d has the errors %+v", id, info.Errors)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-hookErrs:
		t.Error(err)
	default:
	}
	if rows := r.everything(); strings.Contains(rows, mark) || strings.Contains(rows, fmt.Sprint(number)) || !strings.Contains(rows, "weir.encrypted") {
		t.Errorf("in the tables is\n%s", rows)
	}
	if text := log.String(); strings.Contains(text, mark) || strings.Contains(text, fmt.Sprint(number)) || log.Count("handler panicked") != 2 || log.Count("failed for good") != 1 ||
		log.Count("Hooks.End panicked") != len(ways) || log.Count("a retry policy panicked") == 0 {
		t.Errorf("the log is\n%s", text)
	}
	page, err := r.client.Jobs(t.Context(), weir.JobsParams{})
	if err != nil || len(page.Jobs) != len(ids) {
		t.Fatalf("%d jobs are listed, %v", len(page.Jobs), err)
	}
	if text, _ := json.Marshal(page); bytes.Contains(text, []byte(mark)) || bytes.Contains(text, []byte("weir.encrypted")) {
		t.Errorf("the list is %s", text)
	}
}

// TestArgsThatDoNotDecodeAreNotLogged: an error of decoding args may quote them.
func TestArgsThatDoNotDecodeAreNotLogged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.client.WithCodec(codec(t, "k1"))
	log, _ := r.secrets(client, nil, func(context.Context, *weir.Job[secret]) error { return nil })
	job, err := client.Enqueue(t.Context(), otherSecret{N: 1e300}, &weir.Options{MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	info := r.await(job.ID, weir.StateFailed)
	if err := client.Decrypt(t.Context(), info); err != nil || !strings.Contains(*info.Error, "1e+300") {
		t.Errorf("the error is %v (%v), want one that quotes the number", *info.Error, err)
	}
	if log.Count("do not decode") != 1 || log.Count("1e+300") != 0 {
		t.Errorf("the log is\n%s", log)
	}
}

// TestUniqueJobsWithEncryptedArgsNeedAKey: equal args differ once they are encrypted, so a job that would never be a duplicate is refused.
func TestUniqueJobsWithEncryptedArgsNeedAKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.client.WithCodec(codec(t, "k1"))
	for _, u := range []*weir.Unique{{}, {Fields: []string{"n"}}} {
		if _, err := client.Enqueue(t.Context(), otherSecret{N: 1}, &weir.Options{Unique: u}); err == nil || !strings.Contains(err.Error(), "set Unique.Key") {
			t.Errorf("a job with encrypted args and %+v is answered with %v", u, err)
		}
	}
	for _, u := range []*weir.Unique{{Key: "a"}, {Fields: []string{}}} {
		for _, duplicate := range []bool{false, true} {
			job, err := client.Enqueue(t.Context(), otherSecret{N: 1}, &weir.Options{Unique: u})
			if err != nil || job.Duplicate != duplicate {
				t.Errorf("a job with encrypted args and %+v is answered with %+v, %v", u, job, err)
			}
		}
	}
}

// otherSecret does not decode as secret.
type otherSecret struct {
	N float64 `json:"n"`
}

func (otherSecret) Kind() string { return "secret" }

// TestKeysAreRotatedWithoutDowntime: jobs of the old and the new key run side by side, in workers that have both, however jobs came to be run:
// retried, snoozed, rescued from a lost worker, or scheduled; and plain jobs run in the same queue.
func TestKeysAreRotatedWithoutDowntime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	old, both, rotated := r.client.WithCodec(codec(t, "old")), r.client.WithCodec(codec(t, "old", "new")), r.client.WithCodec(codec(t, "new", "old"))
	ids := map[int64]string{}
	enqueue := func(c *weir.Client, text string, o *weir.Options) {
		t.Helper()
		job, err := c.Enqueue(t.Context(), secret{Text: text}, o)
		if err != nil {
			t.Fatal(err)
		}
		ids[job.ID] = text
	}
	enqueue(old, "old", nil)
	enqueue(old, "old, scheduled", &weir.Options{RunAt: time.Now().Add(300 * time.Millisecond)})
	enqueue(both, "both", nil)
	enqueue(rotated, "new", nil)
	enqueue(r.client, "plain", nil)
	enqueue(r.client, "plain, scheduled", &weir.Options{RunAt: time.Now().Add(300 * time.Millisecond)})

	// A worker claims the jobs and is lost.
	var lost int32
	for _, statement := range []string{
		`SELECT weir.start('lost', ARRAY['default'])`,
		`SELECT weir._fence($1)::int FROM (SELECT count(*) FROM weir.take($1, limits => ARRAY[10], wait => '0')) t`,
	} {
		args := []any{}
		if strings.Contains(statement, "$1") {
			args = append(args, lost)
		}
		if err := r.pool.QueryRow(t.Context(), statement, args...).Scan(&lost); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = r.secrets(rotated, nil, func(_ context.Context, job *weir.Job[secret]) error {
		switch {
		case job.Args.Text != ids[job.ID]:
			return weir.Fail(fmt.Errorf("got %q, want %q", job.Args.Text, ids[job.ID]))
		case job.PutOff == 0 && job.Attempt <= 2:
			return weir.Snooze(10 * time.Millisecond)
		case job.Attempt <= 2:
			return errors.New("again")
		}
		job.SetOutput(job.Args.Text)
		return nil
	})
	for id, text := range ids {
		info := r.await(id, weir.StateCompleted)
		if err := rotated.Decrypt(t.Context(), info); err != nil || *info.Output != text {
			t.Errorf("job %d: %v, output %v", id, err, *info.Output)
		}
		want := "old"
		if text == "new" {
			want = "new"
		} else if strings.HasPrefix(text, "plain") {
			want = ""
		}
		if info.Encrypted != want {
			t.Errorf("job %d, %s, is encrypted with key %q", id, text, info.Encrypted)
		}
	}
}

// TestSizesOfWhatIsEncryptedCountAsStored: args that are too long with their encryption are refused, and outputs and errors are shortened before they
// are encrypted, so that what is stored decrypts.
func TestSizesOfWhatIsEncryptedCountAsStored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	client := r.client.WithCodec(codec(t, "k1"))
	if _, err := client.Enqueue(t.Context(), secret{Text: strings.Repeat("x", 800_000)}, nil); err == nil || !strings.Contains(err.Error(), "1048576") {
		t.Errorf("800,000 bytes: %v", err)
	}
	long := strings.Repeat("\xff\x00ä", 1_000_000)
	r.secrets(client, nil, func(_ context.Context, job *weir.Job[secret]) error {
		job.SetOutput(long[:4*job.Args.N])
		if job.Attempt == 1 {
			return errors.New(long[:4*job.Args.N])
		}
		return nil
	})
	for _, n := range []int{0, 1, 500_000} {
		job, err := client.Enqueue(t.Context(), secret{Text: strings.Repeat("x", n), N: n}, nil)
		if err != nil {
			t.Fatal(err)
		}
		info := r.await(job.ID, weir.StateCompleted)
		if err := client.Decrypt(t.Context(), info); err != nil {
			t.Error(err)
		}
		if e, o := len(info.Errors[0].Error), len(*info.Output); n == 0 && (e != 0 || o != 0) || n > 0 && (e < min(n, 10_000) || o < min(n, 100_000)) {
			t.Errorf("%d: %d bytes of the error and %d of the output are kept", n, e, o)
		}
	}
}

// broken is a codec that can't encrypt, and says nothing secret.
type broken struct{ weir.Codec }

func (broken) Encode(context.Context, []byte, []byte) (string, []byte, error) {
	return "", nil, errors.New("the key service is down")
}

// TestWhatCannotBeEncryptedIsNotStored: if encrypting fails, nothing is stored in the clear: a job is not enqueued, an attempt whose output can't be
// encrypted fails, and an error is replaced by the reason.
func TestWhatCannotBeEncryptedIsNotStored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	good := codec(t, "k1")
	client := r.client.WithCodec(broken{good})
	if _, err := client.Enqueue(t.Context(), secret{Text: "hunter2"}, nil); err == nil || !strings.Contains(err.Error(), "the key service is down") {
		t.Errorf("enqueue: %v", err)
	}
	r.secrets(client, nil, func(_ context.Context, job *weir.Job[secret]) error {
		if job.Args.N == 1 {
			job.SetOutput("hunter2")
			return nil
		}
		return errors.New("hunter2")
	})
	for n := range 2 {
		job, err := r.client.WithCodec(good).Enqueue(t.Context(), secret{Text: "hunter2", N: n}, &weir.Options{MaxAttempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		if info := r.await(job.ID, weir.StateFailed); !strings.Contains(*info.Error, "could not be encrypted: the key service is down") || info.Output != nil {
			t.Errorf("%d: %+v", n, info)
		}
	}
	if strings.Contains(r.everything(), "hunter2") {
		t.Error("it is in the tables")
	}
}

// TestACodecThatParseRefusedEncryptsNothing: a program that goes on after an error of Parse gets an error from Enqueue, and stores nothing in the clear.
func TestACodecThatParseRefusedEncryptsNothing(t *testing.T) {
	t.Parallel()
	refused, err := weircrypt.Parse("")
	if err == nil {
		t.Fatal("a text without keys is accepted")
	}
	r := newRig(t)
	for _, c := range []*weircrypt.Codec{refused, {}} {
		if _, err := r.client.WithCodec(c).Enqueue(t.Context(), secret{Text: "hush"}, nil); err == nil || !strings.Contains(err.Error(), "the codec is nil or has no keys: make it with Parse or New") {
			t.Errorf("got %v", err)
		}
		if _, err := c.Decode(t.Context(), "a", nil, nil); err == nil {
			t.Error("it decrypts")
		}
	}
	if page, err := r.client.Jobs(t.Context(), weir.JobsParams{}); err != nil || len(page.Jobs) > 0 {
		t.Errorf("%d jobs, %v", len(page.Jobs), err)
	}
}

// TestACodecIsForItsKindsAndMiddlewareIsInside: other kinds are not encrypted, and middleware on both ends sees args as they are, in whatever order
// client and codec were put together.
func TestACodecIsForItsKindsAndMiddlewareIsInside(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	enqueues := 0
	sees := func(next weir.EnqueueFunc) weir.EnqueueFunc {
		return func(ctx context.Context, tx weir.Tx, jobs []weir.NewJob) ([]weir.Enqueued, error) {
			enqueues++
			jobs[0].Args = secret{Text: jobs[0].Args.(secret).Text + "!"}
			return next(ctx, tx, jobs)
		}
	}
	works := make(chan string, 10)
	r.secrets(r.client.WithCodec(codec(t, "k1"), "secret"), func(cfg *weir.WorkerConfig) {
		cfg.Middleware = append(cfg.Middleware, func(next weir.WorkFunc) weir.WorkFunc {
			return func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
				if job.Kind == "secret" {
					works <- string(job.Args)
				}
				return next(ctx, job)
			}
		})
	}, func(context.Context, *weir.Job[secret]) error { return nil })
	for i, client := range []*weir.Client{
		r.client.WithCodec(codec(t, "k1"), "secret").WithMiddleware(sees),
		r.client.WithMiddleware(sees).WithCodec(codec(t, "k1"), "secret"),
		r.client.WithMiddleware(sees).WithCodec(codec(t, "k0")).WithCodec(nil).WithCodec(codec(t, "k1"), "other", "secret"),
	} {
		job, err := client.Enqueue(t.Context(), secret{Text: "x"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if info := r.await(job.ID, weir.StateCompleted); info.Encrypted != "k1" || enqueues != i+1 {
			t.Errorf("%d: after %d enqueues the job is %+v", i, enqueues, info)
		}
		if seen := pgtest.Receive(t, works, "middleware sees the job"); seen != `{"text":"x!","n":0}` {
			t.Errorf("%d: middleware sees %s", i, seen)
		}
	}
	plain, err := r.client.WithCodec(codec(t, "k1"), "secret").Enqueue(t.Context(), number{7}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if info := r.await(plain.ID, weir.StateCompleted); info.Encrypted != "" || string(info.Args) != `{"n": 7}` {
		t.Errorf("another kind is stored as %s", info.Args)
	}
}
