package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// relayQueue hands jobs on to another broker: the table only makes them commit with the application's data.
var relayQueue = queueKind{
	name: "relay to NATS", kind: Fix, what: "one process moves up to a thousand jobs at a time from the table to a stream of NATS JetStream, on disk (which NATS flushes every two minutes, by default), from which " +
		"the workers take them; it deletes them when the stream has confirmed them",
	schema: "weir_lab", setup: []string{makePlainQueue, makePlainIndex}, cleanup: dropQueue, enqueue: fillQueue, left: countLeft, work: workRelay,
}

const (
	relayStream = "jobs"
	relayAtOnce = 1000
)

// relayed is a job on its way through the broker, which is in this process: both times are of its clock.
type relayed struct {
	ID     int64
	Waited float64 // seconds, when it was read from the table …
	At     time.Time
}

func workRelay(ctx, until context.Context, t *trial, m *load.Tally) (err error) {
	broker, dir, err := startBroker()
	defer func() {
		if broker != nil {
			broker.Shutdown()
			broker.WaitForShutdown()
		}
		_ = os.RemoveAll(dir) // the operating system removes it otherwise
	}()
	if err != nil {
		return fmt.Errorf("start a NATS server: %w", err)
	}
	conn, err := nats.Connect("", nats.InProcessServer(broker))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(relayAtOnce))
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := js.CreateStream(short, jetstream.StreamConfig{Name: relayStream, Retention: jetstream.WorkQueuePolicy})
	if err != nil {
		return err
	}
	consumer, err := stream.CreateConsumer(short, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: relayAtOnce})
	if err != nil {
		return err
	}
	until, stop := context.WithCancel(until)
	defer stop()
	var all sync.WaitGroup
	errs := make([]error, t.Workers+1)
	start := func(i int, f func() error) {
		all.Go(func() {
			if errs[i] = f(); errs[i] != nil {
				stop()
			}
		})
	}
	for i := range t.Workers {
		start(i, func() error { return t.consume(until, consumer, m) })
	}
	start(t.Workers, func() error { return t.relay(ctx, until, t.sessions.conns[0], js, m) })
	all.Wait()
	return errors.Join(errs...)
}

// startBroker starts a NATS server that listens nowhere.
func startBroker() (s *server.Server, dir string, err error) {
	if dir, err = os.MkdirTemp("", "weir-lab-nats-*"); err != nil {
		return nil, "", err
	}
	s, err = server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir})
	if err != nil {
		return nil, dir, err
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return s, dir, errors.New("it is not ready after 10 s")
	}
	return s, dir, nil
}

// relay moves jobs until the time is over.
func (t *trial) relay(ctx, until context.Context, conn *pgx.Conn, js jetstream.JetStream, m *load.Tally) error {
	for until.Err() == nil {
		n := 0
		err := pgx.BeginFunc(ctx, conn, func(pgx.Tx) error {
			begun := time.Now()
			jobs, err := deleteBatch(ctx, conn, relayAtOnce)
			if err != nil {
				return err
			}
			n = len(jobs)
			t.claimed(m, n, time.Since(begun))
			acks := make([]jetstream.PubAckFuture, n)
			for i, j := range jobs {
				body, err := json.Marshal(relayed{j.ID, j.Waited, time.Now()})
				if err != nil {
					return err
				}
				if acks[i], err = js.PublishAsync(relayStream, body); err != nil {
					return err
				}
			}
			for _, ack := range acks {
				select {
				case <-ack.Ok():
				case err := <-ack.Err():
					return fmt.Errorf("publish: %w", err)
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if n < relayAtOnce/10 {
			sleep.For(until, pollEvery)
		}
	}
	return nil
}

// consume does jobs, one after another, until the time is over.
func (t *trial) consume(until context.Context, consumer jetstream.Consumer, m *load.Tally) error {
	for until.Err() == nil {
		batch, err := consumer.Fetch(1, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return fmt.Errorf("take from the stream: %w", err)
		}
		for msg := range batch.Messages() {
			var j relayed
			if err := json.Unmarshal(msg.Data(), &j); err != nil {
				return err
			}
			t.handle(until, j.ID, seconds(j.Waited)+time.Since(j.At))
			if err := msg.Ack(); err != nil {
				return fmt.Errorf("acknowledge: %w", err)
			}
			t.finished(m, 1)
		}
	}
	return nil
}
