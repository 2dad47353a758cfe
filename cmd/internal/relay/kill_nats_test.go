package relay_test

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-pg/weir/internal/pgtest"
)

func dyingNATS(t *testing.T, pool *pgxpool.Pool) *dying {
	port, dir := freePort(t), t.TempDir()
	url := "nats://127.0.0.1:" + port
	_, js := dial(t, url)
	var server *exec.Cmd
	b := &dying{kill: func() { kill(server) }}
	b.start = func() {
		server = process(t, "nats", dir, port)
		pgtest.Until(t, "JetStream answers", func() bool { return jsAnswers(t, js) })
	}
	b.start()
	t.Cleanup(b.kill)
	at := func(relay, settings, stream string) *end {
		// Jobs come again when a lease is over, and none of 30 s ends while PostgreSQL is killed more often than that: the window is longer than any run.
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{stream}, AllowAtomicPublish: true, Duplicates: 2 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		return &end{relay, settings + fmt.Sprintf("nats = { url = %q, stream = %q }", url, stream), func() int { return inStream(t, js, stream) }, func(n int) []string {
			arrive(t, n, "in the stream "+stream, func() int { return inStream(t, js, stream) })
			return stored(t, js, stream, n)
		}}
	}
	b.messages = []*end{at("messages", messagesTo("ORDERS"), "ORDERS")}
	b.jobs = at("jobs", jobsTo("JOBS"), "JOBS")
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "IN", Subjects: []string{"in"}}); err != nil {
		t.Fatal(err)
	}
	b.source = &source{
		end: jobsFrom(t, pool, fmt.Sprintf("from_nats = { url = %q, stream = \"IN\" }", url)),
		publish: func(ctx context.Context, n int) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second) // after a kill nobody may answer
			defer cancel()
			_, err := js.Publish(ctx, "in", []byte(payload(n)), jetstream.WithMsgID(strconv.Itoa(n)))
			return err
		},
		held: func(n int) []string { return stored(t, js, "IN", n) },
	}
	return b
}

func jsAnswers(t *testing.T, js jetstream.JetStream) bool {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := js.AccountInfo(ctx)
	return err == nil
}

// inStream returns how many messages a stream has; -1: the server does not answer.
func inStream(t *testing.T, js jetstream.JetStream, name string) int {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return -1
	}
	return int(stream.CachedInfo().State.Msgs)
}
