package weirtest_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirtest"
)

// The rest of this file is shown in docs/testing.md.

// TestTheGuideIsWhatIsRunHere: every example of the guide is in this file, word for word.
func TestTheGuideIsWhatIsRunHere(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.ReadFile("guide_test.go")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(guide, -1)
	if len(examples) != 5 {
		t.Errorf("found %d examples in docs/testing.md", len(examples))
	}
	for _, example := range examples {
		if !strings.Contains(string(here), string(example[1])) {
			t.Errorf("this example of the guide is not in this file:\n%s", example[1])
		}
	}
}

type SendMail struct {
	To string `json:"to"`
}

func (SendMail) Kind() string { return "send_mail" }

type AskForFeedback struct{ Of string }

func (AskForFeedback) Kind() string { return "ask_for_feedback" }

type DeleteAccount struct{ ID int64 }

func (DeleteAccount) Kind() string { return "delete_account" }

var (
	pool         *pgxpool.Pool
	client       *weir.Client
	errNoAddress = errors.New("there is no address")
)

type txKey struct{}

func withTx(ctx context.Context, tx pgx.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

func migrate(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `CREATE TABLE account (mail text PRIMARY KEY)`)
	return err
}

func signUp(ctx context.Context, client *weir.Client, tx pgx.Tx, mail string) error {
	if _, err := tx.Exec(ctx, `INSERT INTO account (mail) VALUES ($1)`, mail); err != nil {
		return err
	}
	_, err := client.EnqueueTx(ctx, tx, SendMail{To: mail}, &weir.Options{Queue: "mail", RunAt: time.Now().Add(time.Minute)})
	return err
}

func workerConfig() weir.WorkerConfig {
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		switch job.Args.To {
		case "":
			return weir.Fail(errNoAddress)
		case "down@example.org":
			return errors.New("connection refused")
		}
		tx := ctx.Value(txKey{}).(pgx.Tx)
		if err := job.CompleteTx(ctx, tx); err != nil {
			return err
		}
		_, err := client.EnqueueTx(ctx, tx, AskForFeedback{Of: job.Args.To}, nil)
		return err
	})
	return weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 8, "mail": 8}, Logger: new(pgtest.Log).Logger()}
}

var databases = weirtest.Databases{
	Setup:   migrate, // func(ctx context.Context, conn *pgx.Conn) error
	Version: "7",     // of your migrations: change it whenever they change
}

func TestSigningUpSendsAWelcome(t *testing.T) {
	tx := weirtest.Tx(t, pool) // rolled back at the end of the test
	if err := signUp(t.Context(), client, tx, "ada@example.org"); err != nil {
		t.Fatal(err)
	}
	job := weirtest.RequireEnqueuedTx(t, tx, SendMail{To: "ada@example.org"}, &weir.Options{Queue: "mail"})
	if job.RunAt.IsZero() {
		t.Error("the mail is sent at once, want a delay")
	}
	weirtest.RequireNotEnqueuedTx[DeleteAccount](t, tx)
}

func TestAMailWithoutAnAddressFailsForGood(t *testing.T) {
	result := weirtest.Work(t.Context(), t, workerConfig(), &weir.Job[SendMail]{Args: SendMail{To: ""}})
	if result.Outcome != weir.OutcomeFailed || !errors.Is(result.Err, errNoAddress) {
		t.Errorf("got %+v", result)
	}
}

func TestAWelcomeIsCountedAndFollowedUp(t *testing.T) {
	tx := weirtest.Tx(t, pool)
	if err := signUp(t.Context(), client, tx, "ada@example.org"); err != nil {
		t.Fatal(err)
	}
	job := weirtest.RequireEnqueuedTx(t, tx, SendMail{To: "ada@example.org"}, nil)
	if result := weirtest.Work(withTx(t.Context(), tx), t, workerConfig(), &job.Job); result.Outcome != weir.OutcomeCompleted {
		t.Errorf("got %+v", result)
	}
	weirtest.RequireEnqueuedTx(t, tx, AskForFeedback{Of: "ada@example.org"}, nil)
}

func TestAMailIsTriedAgainWhenTheServerIsDown(t *testing.T) {
	client := weir.NewClient(databases.Pool(t)) // a new database, dropped at the end of the test
	if _, err := client.Enqueue(t.Context(), SendMail{To: "down@example.org"}, nil); err != nil {
		t.Fatal(err)
	}
	ended := weirtest.Drain(t.Context(), t, client, workerConfig(), nil)
	if len(ended) != 1 || ended[0].Outcome != weir.OutcomeRetried {
		t.Fatalf("got %+v", ended)
	}
	ended = weirtest.Drain(t.Context(), t, client, workerConfig(), &weirtest.DrainOptions{Until: time.Now().Add(time.Hour)})
	if len(ended) != 1 || ended[0].Attempt != 2 {
		t.Errorf("an hour later got %+v", ended)
	}
}
