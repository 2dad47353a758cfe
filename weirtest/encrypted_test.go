package weirtest_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weircrypt"
	"github.com/weir-pg/weir/weirtest"
)

// TestEncryptedJobsAreTestedAsOthersAre: the checks of what is enqueued, Work and Drain see encrypted jobs as they are, and a check without the codec
// says so.
func TestEncryptedJobsAreTestedAsOthersAre(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	codec, err := weircrypt.New(weircrypt.Key{ID: "k1", Secret: bytes.Repeat([]byte{7}, 32)})
	if err != nil {
		t.Fatal(err)
	}
	plain := weir.NewClient(pool)
	client := plain.WithCodec(codec, sendMail{}.Kind())
	enqueue := func(on weir.Tx) {
		t.Helper()
		for _, args := range []weir.Args{sendMail{To: "ada"}, sendMail{To: "down"}, charge{1}} {
			if _, err := client.EnqueueTx(t.Context(), on, args, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("in a transaction", func(t *testing.T) {
		tx := weirtest.Tx(t, pool)
		enqueue(tx)
		decrypting := weirtest.Decrypting(tx, client)
		if job := weirtest.RequireEnqueuedTx(t, decrypting, sendMail{To: "ada"}, nil); job.Args.To != "ada" {
			t.Errorf("found %+v", job)
		}
		weirtest.RequireManyEnqueuedTx(t, decrypting, []weir.NewJob{{Args: charge{1}}, {Args: sendMail{To: "down"}}, {Args: sendMail{To: "ada"}}})
		weirtest.RequireEnqueuedTx(t, tx, charge{1}, nil)
		wantFailure(t, func(t testing.TB) { weirtest.RequireEnqueuedTx(t, tx, sendMail{To: "ada"}, nil) }, "no such job", "encrypted: use a client that has its codec", "weirtest.Decrypting")
		wantFailure(t, func(t testing.TB) { weirtest.EnqueuedTx[sendMail](t, tx) }, "is encrypted: use a client that has its codec")
	})
	enqueue(pool)
	if all := weirtest.Enqueued[sendMail](t, client); len(all) != 2 || all[0].Args.To != "ada" {
		t.Errorf("found %+v", all)
	}
	wantFailure(t, func(t testing.TB) { weirtest.RequireEnqueued(t, plain, sendMail{To: "ada"}, nil) }, "no such job", `{"encrypted":"k1"}`, "encrypted: use a client that has its codec")

	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(_ context.Context, job *weir.Job[sendMail]) error {
		if job.Args.To == "down" {
			return weir.Fail(errDown)
		}
		job.SetOutput("sent to " + job.Args.To)
		return nil
	})
	weir.Handle(handlers, func(context.Context, *weir.Job[charge]) error { return nil })
	config := weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 1}, Logger: new(pgtest.Log).Logger()}
	if result := weirtest.Work(t.Context(), t, config, &weir.Job[sendMail]{Args: sendMail{To: "ada"}}); result.Output != "sent to ada" {
		t.Errorf("Work returned %+v", result)
	}
	ended := weirtest.Drain(t.Context(), t, client, config, nil)
	if len(ended) != 2 || !bytes.Contains(ended[0].Args, []byte(`"ada"`)) || ended[0].Output != "sent to ada" || !ended[0].Encrypted || !errors.Is(ended[1].Err, errDown) {
		t.Errorf("Drain returned %+v", ended)
	}
	info, err := plain.Job(t.Context(), ended[0].ID)
	if err != nil || *info.Output != "encrypted with key k1" {
		t.Errorf("stored is %+v, %v", info, err)
	}
}
