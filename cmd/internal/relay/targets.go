package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir/cmd/internal/refer"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/kafkarelay"
	"github.com/weir-pg/weir/weirrelay/natsrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// connectTimeout is how long connecting to another database may take, and writing to NATS.
const connectTimeout = 10 * time.Second

// mostReasons bounds the reasons that are logged: some have the number of a port.
const mostReasons = 10

// connect gives a relay its target or source, and returns what closes it. Brokers that can't be reached are waited for.
func (p *plan) connect(ctx context.Context, log *slog.Logger) (end func(), err error) {
	name := p.config.Name
	switch {
	case p.NATS != nil:
		conn, err := p.NATS.dial(name, log)
		if err != nil {
			return nil, fmt.Errorf("nats: %w", err)
		}
		p.config.Target, err = natsrelay.New(natsrelay.Config{Conn: conn, Name: name, Stream: p.NATS.Stream, Domain: p.NATS.Domain})
		return closing(conn.Close, err)
	case p.FromNATS != nil:
		conn, err := p.FromNATS.dial(name, log)
		if err != nil {
			return nil, fmt.Errorf("from_nats: %w", err)
		}
		*p.source, err = natsrelay.NewSource(natsrelay.SourceConfig{Conn: conn, Stream: p.FromNATS.Stream, Domain: p.FromNATS.Domain, Subject: p.FromNATS.Subject, New: p.Since != "oldest"})
		return closing(conn.Close, err)
	case p.Redis != nil:
		client, err := openRedis(p.Redis.URL, p.Redis.Cluster)
		if err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
		p.config.Target, err = redisrelay.New(redisrelay.Config{Client: client, Name: name, Form: redisrelay.Form(p.Redis.Form), Prefix: p.Redis.Prefix, MaxLength: p.Redis.MaxLength})
		return closing(func() { _ = client.Close() }, err)
	case p.Kafka != nil:
		options, err := p.Kafka.options(name)
		if err != nil {
			return nil, fmt.Errorf("kafka: %w", err)
		}
		target, err := kafkarelay.New(kafkarelay.Config{Options: options, Name: name, Jobs: p.jobs})
		if err != nil {
			return nil, err
		}
		p.config.Target = target
		return target.Close, nil
	case p.FromKafka != nil:
		options, err := p.FromKafka.options(name)
		if err != nil {
			return nil, fmt.Errorf("from_kafka: %w", err)
		}
		source, err := kafkarelay.NewSource(kafkarelay.SourceConfig{Options: options, Topic: p.FromKafka.Topic, New: p.Since != "oldest"})
		if err != nil {
			return nil, err
		}
		*p.source = source
		return source.Close, nil
	case p.FromRedis != nil:
		client, err := openRedis(p.FromRedis.URL, p.FromRedis.Cluster)
		if err != nil {
			return nil, fmt.Errorf("from_redis: %w", err)
		}
		*p.source, err = redisrelay.NewSource(redisrelay.SourceConfig{Client: client, Stream: p.FromRedis.Stream, Field: p.FromRedis.Field, New: p.Since != "oldest"})
		return closing(func() { _ = client.Close() }, err)
	}
	p.config.Target, end, err = p.Database.target(ctx, name)
	return end, err
}

// closing closes at once if there was an error.
func closing(end func(), err error) (func(), error) {
	if err != nil {
		end()
		return nil, err
	}
	return end, nil
}

func (f natsFile) dial(name string, log *slog.Logger) (*nats.Conn, error) {
	address, err := refer.LookUp(f.URL)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	} else if address == "" {
		return nil, errors.New("url is empty: give it, as in nats://127.0.0.1:4222")
	}
	for one := range strings.SplitSeq(address, ",") {
		if one = strings.TrimSpace(one); !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		if _, err := url.Parse(one); err != nil {
			return nil, errors.New("url is not valid: write it as nats://user:password@host:4222") // the library's error may show the password
		}
	}
	if f.Credentials != "" { // which are read again whenever it connects
		if _, err := os.ReadFile(f.Credentials); err != nil {
			return nil, fmt.Errorf("credentials: %w", err)
		}
	}
	// The library says why a try to connect has failed, in a goroutine of its own. Each reason is logged once, until there is a connection.
	said := map[string]bool{}
	failed := func(_ *nats.Conn, err error) {
		if text := err.Error(); !said[text] && len(said) < mostReasons {
			said[text] = true
			log.Warn("weir: can't connect to NATS, and tries again", "error", err)
		}
	}
	connected := func(*nats.Conn) { clear(said) }
	options := []nats.Option{
		nats.ConnectHandler(connected), nats.ReconnectHandler(connected), nats.ReconnectErrHandler(failed),
		nats.Name("weir relay " + name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(time.Second), nats.ReconnectJitter(time.Second, time.Second),
		nats.ReconnectBufSize(-1), // what is sent while disconnected is sent again in order, rather than buffered in part
		nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(2), nats.FlusherTimeout(connectTimeout), nats.IgnoreAuthErrorAbort(),
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
	return nats.Connect(address, options...)
}

// hushRedis keeps the library from writing to standard error what it returns as errors as well.
var hushRedis = sync.OnceFunc(func() { redis.SetLogger(hushed{}) })

type hushed struct{}

func (hushed) Printf(context.Context, string, ...any) {}

func openRedis(from string, cluster bool) (redis.UniversalClient, error) {
	hushRedis()
	url, err := refer.LookUp(from)
	if err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	if cluster {
		options, err := redis.ParseClusterURL(url)
		if err != nil {
			return nil, errors.New("url is not valid: write it as redis://user:password@host:6379?addr=host2:6379")
		}
		return redis.NewClusterClient(options), nil
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, errors.New("url is not valid: write it as redis://user:password@host:6379/0") // the library's error may show the password
	}
	return redis.NewClient(options), nil
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
	if config.ConnConfig.ConnectTimeout == 0 { // otherwise a connection that nobody answers keeps its place for two minutes
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, fmt.Errorf("database: %w", err)
	}
	return &weirrelay.Database{Pool: pool, Name: "from " + name, Kind: f.Kind}, pool.Close, nil
}
