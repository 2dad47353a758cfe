package weirtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(leaveEnv) != "" {
		os.Exit(m.Run())
	}
	if err := prepareGuide(pgtest.Shared("guide")); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}

// prepareGuide sets up the database that readers of the guide have.
func prepareGuide(url string) (err error) {
	if err := os.Setenv("WEIR_TEST_DATABASE_URL", url); err != nil {
		return err
	}
	if pool, err = pgxpool.New(context.Background(), url); err != nil {
		return err
	}
	client = weir.NewClient(pool)
	return pool.AcquireFunc(context.Background(), func(conn *pgxpool.Conn) error { return migrate(context.Background(), conn.Conn()) })
}

type sendMail struct {
	To   string `json:"to"`
	Copy int    `json:"copy,omitempty"`
}

func (sendMail) Kind() string { return "send_mail" }

type charge struct{ Cents int }

func (charge) Kind() string { return "charge" }

func (charge) EnqueueOptions() weir.Options { return weir.Options{Queue: "money", MaxAttempts: 3} }

// failing is a test that is expected to fail. It keeps the message.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatal(args ...any) { f.Fatalf("%s", fmt.Sprint(args...)) }

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// wantFailure checks that run fails its test, with a message that contains these texts.
func wantFailure(t *testing.T, run func(t testing.TB), says ...string) {
	t.Helper()
	f := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(f)
	}()
	pgtest.Receive(t, done, "the test has ended")
	if f.said == "" {
		t.Error("the test did not fail")
	}
	for _, text := range says {
		if !strings.Contains(f.said, text) {
			t.Errorf("the test failed with\n%s\nwhich does not contain %q", f.said, text)
		}
	}
}

func handle[A weir.Args](run func(ctx context.Context, job *weir.Job[A]) error) weir.WorkerConfig {
	handlers := weir.NewHandlers()
	weir.Handle(handlers, run)
	return weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 1, "mail": 1, "money": 1}}
}

var errDown = errors.New("the mail server is down")
