package relay_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/relay"
	"github.com/weir-pg/weir/internal/pgtest"
)

// asVariable says, in the environment of this binary, which of the programs it is that tests kill.
const asVariable = "WEIR_TEST_AS"

func TestMain(m *testing.M) {
	as := os.Getenv(asVariable)
	if as != "" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1) // the test has ended, perhaps by a panic
		}()
	}
	switch as {
	case "nats":
		fail(asNATS(os.Args[1], os.Args[2]))
	case "relay":
		fail(asRelay(os.Args[1], os.Args[2]))
	case "hub":
		fail(asHub(os.Args[1], os.Args[2]))
	case "endpoint":
		fail(asEndpoint(os.Args[1], os.Args[2], os.Args[3]))
	default:
		pgtest.Main(m)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// asNATS serves JetStream, with every message on disk before it is answered, until the process is killed.
func asNATS(dir, port string) error {
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: n, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir, SyncAlways: true})
	if err != nil {
		return err
	}
	s.Start()
	s.WaitForShutdown()
	return nil
}

// asRelay runs the relays of a file, until the process is killed.
func asRelay(database, path string) error {
	ctx := context.Background()
	relays, err := relay.Open(ctx, relay.Config{Path: path, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), Registerer: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		return err
	}
	config.MaxConns = int32(relay.Connections * relays.Len())
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	return relays.Run(ctx, pool)
}
