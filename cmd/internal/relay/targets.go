package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir/cmd/internal/refer"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/natsrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// target returns a relay's target, and what closes it. Brokers that can't be reached are waited for.
func (f relayFile) target(ctx context.Context, name string, log *slog.Logger) (weirrelay.Target, func(), error) {
	switch {
	case f.NATS != nil:
		return f.NATS.target(name, log)
	case f.Redis != nil:
		return f.Redis.target(name)
	}
	return f.Database.target(ctx, name)
}

func (f natsFile) target(name string, log *slog.Logger) (weirrelay.Target, func(), error) {
	url, err := refer.LookUp(f.URL)
	if err == nil && url == "" {
		err = errors.New("it is empty: give it, as in nats://127.0.0.1:4222")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("nats.url: %w", err)
	}
	options := []nats.Option{
		nats.Name("weir relay " + name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(time.Second), nats.ReconnectJitter(time.Second, time.Second),
		nats.ReconnectBufSize(-1), // what is sent while disconnected is sent again in order, rather than buffered in part
		nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2), nats.IgnoreAuthErrorAbort(),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("weir: disconnected from NATS", "error", err)
			}
		}),
	}
	if f.Credentials != "" {
		options = append(options, nats.UserCredentials(f.Credentials))
	}
	if f.TLSCA != "" {
		options = append(options, nats.RootCAs(f.TLSCA))
	}
	conn, err := nats.Connect(url, options...)
	if err != nil {
		return nil, nil, fmt.Errorf("nats: %w", err)
	}
	t, err := natsrelay.New(natsrelay.Config{Conn: conn, Name: name, Stream: f.Stream, Domain: f.Domain})
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return t, conn.Close, nil
}

func (f redisFile) target(name string) (weirrelay.Target, func(), error) {
	url, err := refer.LookUp(f.URL)
	if err != nil {
		return nil, nil, fmt.Errorf("redis.url: %w", err)
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, errors.New("redis.url is not valid: write it as redis://user:password@host:6379/0") // the library's error may show the password
	}
	client := redis.NewClient(options)
	t, err := redisrelay.New(redisrelay.Config{Client: client, Name: name, Form: redisrelay.Form(f.Form), MaxLength: f.MaxLength})
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return t, func() { client.Close() }, nil
}

func (f databaseFile) target(ctx context.Context, name string) (weirrelay.Target, func(), error) {
	url, err := refer.LookUp(f.URL)
	if err == nil && url == "" {
		err = errors.New("it is empty: give the URL of a database with Weir's schema")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("database.url: %w", err)
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, errors.New("database.url is not valid: write it as postgres://user:password@host:5432/name")
	}
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, fmt.Errorf("database: %w", err)
	}
	return &weirrelay.Database{Pool: pool, Name: "from " + name, Kind: f.Kind}, pool.Close, nil
}
