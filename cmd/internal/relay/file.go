// Package relay runs the relays of a file.
package relay

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/refer"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// Example is a file with every setting and its meaning.
//
//go:embed example.toml
var Example string

const maxRelays = 100

// file is the file as it was read.
type file struct {
	Relays map[string]relayFile `toml:"relay"`
}

type relayFile struct {
	Since       string        `toml:"since"`
	MaxRecords  int           `toml:"max_records"`
	MaxBytes    int           `toml:"max_bytes"`
	DeadLetters string        `toml:"dead_letters"`
	Routes      []routeFile   `toml:"route"`
	NATS        *natsFile     `toml:"nats"`
	Redis       *redisFile    `toml:"redis"`
	Kafka       *kafkaFile    `toml:"kafka"`
	Database    *databaseFile `toml:"database"`

	// Of a relay that makes jobs of another broker's messages:
	FromNATS  *fromNATSFile  `toml:"from_nats"`
	FromRedis *fromRedisFile `toml:"from_redis"`
	FromKafka *fromKafkaFile `toml:"from_kafka"`
	Queue     string         `toml:"queue"`
	Kind      string         `toml:"kind"`
	Key       string         `toml:"key"`
}

type routeFile struct {
	Channels string            `toml:"channels"`
	Queue    string            `toml:"queue"`
	Subject  string            `toml:"subject"`
	Key      string            `toml:"key"`
	Headers  map[string]string `toml:"headers"`
}

type natsFile struct {
	URL         string `toml:"url"`
	Stream      string `toml:"stream"`
	Domain      string `toml:"domain"`
	Credentials string `toml:"credentials"`
	TLSCA       string `toml:"tls_ca"`
}

type fromNATSFile struct {
	natsFile
	Subject string `toml:"subject"`
}

type fromRedisFile struct {
	URL     string `toml:"url"`
	Cluster bool   `toml:"cluster"`
	Stream  string `toml:"stream"`
	Field   string `toml:"field"`
}

type redisFile struct {
	URL       string `toml:"url"`
	Cluster   bool   `toml:"cluster"`
	Form      string `toml:"form"`
	Prefix    string `toml:"prefix"`
	MaxLength int64  `toml:"max_length"`
}

type kafkaFile struct {
	Brokers  string `toml:"brokers"`
	TLS      bool   `toml:"tls"`
	TLSCA    string `toml:"tls_ca"`
	SASL     string `toml:"sasl"`
	User     string `toml:"user"`
	Password string `toml:"password"`
}

type fromKafkaFile struct {
	kafkaFile
	Topic string `toml:"topic"`
}

type databaseFile struct {
	URL  string `toml:"url"`
	Kind string `toml:"kind"`
}

var relayName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)

// plan is one relay of a file, without its pool and target.
type plan struct {
	relayFile
	config weirrelay.Config
	jobs   bool              // it passes on jobs, not messages
	source *weirrelay.Source // it makes jobs of this source's messages; nil: it passes on
}

// read reads the relays of a file, in the order of their names.
func read(path string) ([]plan, error) {
	var f file
	if err := refer.TOML(path, &f); err != nil {
		return nil, err
	}
	if len(f.Relays) < 1 || len(f.Relays) > maxRelays {
		return nil, fmt.Errorf("it has %d relays: write 1 to %d, each under [relay.NAME]", len(f.Relays), maxRelays)
	}
	var plans []plan
	for _, name := range slices.Sorted(maps.Keys(f.Relays)) {
		p, err := f.Relays[name].plan(name)
		if err != nil {
			return nil, fmt.Errorf("relay %.100s: %w", name, err)
		}
		plans = append(plans, p)
	}
	return plans, nil
}

func (f relayFile) plan(name string) (p plan, err error) {
	p = plan{relayFile: f, config: weirrelay.Config{Name: name, MaxRecords: f.MaxRecords, MaxBytes: f.MaxBytes, DeadLetters: f.DeadLetters}}
	targets, sources := count(f.NATS != nil, f.Redis != nil, f.Kafka != nil, f.Database != nil), count(f.FromNATS != nil, f.FromRedis != nil, f.FromKafka != nil)
	switch {
	case !relayName.MatchString(name):
		return p, errors.New("its name must have 1 to 100 letters, digits, - and _")
	case sources == 1 && targets == 0:
		return p, p.asSource()
	case targets != 1 || sources != 0:
		return p, fmt.Errorf("it has %d targets and %d sources: give one of nats, redis, kafka, database, from_nats, from_redis and from_kafka, as in [relay.%s.nats]", targets, sources, name)
	case f.Queue != "" || f.Kind != "" || f.Key != "":
		return p, errors.New("queue, kind and key are for relays with from_nats, from_redis or from_kafka: otherwise they belong into a route")
	case len(f.Routes) == 0:
		return p, errors.New(`it has no routes: name channels, as in route = [{ channels = "orders.>" }], or a queue of jobs, as in route = [{ queue = "mail" }]`)
	}
	if f.Redis != nil {
		if err := f.Redis.check(f.Routes); err != nil {
			return p, err
		}
	}
	for _, r := range f.Routes {
		p.config.Routes = append(p.config.Routes, weirrelay.Route(r))
	}
	if p.jobs = f.Routes[0].Queue != ""; p.jobs {
		switch {
		case f.Since != "" || f.DeadLetters != "":
			return p, errors.New("since and dead_letters are for messages: a relay of jobs passes on all jobs of its queues, and those that the target refuses have failed")
		case f.Database != nil && f.Database.Kind != "":
			return p, errors.New("database.kind is for messages: jobs keep their kind")
		}
		return p, weirrelay.CheckJobs(p.jobsConfig())
	}
	if p.config.Since, p.config.After, err = since(f.Since); err != nil {
		return p, fmt.Errorf("since = %w", err)
	}
	return p, weirrelay.Check(p.config)
}

// check checks what the routes say about the jobs of Sidekiq and BullMQ, of which otherwise each would be refused.
func (f redisFile) check(routes []routeFile) error {
	for _, r := range routes {
		switch f.Form {
		case string(redisrelay.Sidekiq):
			if r.Headers["class"] == "" && r.Queue == "" {
				return errors.New(`with form = "sidekiq" a route of messages names the class of the jobs, as in headers = { class = "MailJob" }`)
			}
		case string(redisrelay.BullMQ):
			for name := range r.Headers {
				if name != "name" && name != "attempts" {
					return fmt.Errorf(`with form = "bullmq" a route has the headers name and attempts, and no %q`, name)
				}
			}
		}
	}
	return nil
}

// asSource checks a relay that makes jobs.
func (p *plan) asSource() error {
	f := p.relayFile
	switch {
	case len(f.Routes) > 0 || f.MaxBytes != 0 || f.DeadLetters != "":
		return errors.New("route, max_bytes and dead_letters are for relays that pass on: one with from_nats, from_redis or from_kafka has queue, kind and key")
	case f.Since != "" && f.Since != "now" && f.Since != "oldest":
		return fmt.Errorf(`since = %q: with from_nats, from_redis or from_kafka, write "now" or "oldest"`, f.Since)
	}
	p.source = new(weirrelay.Source)
	return weirrelay.CheckFrom(p.fromConfig())
}

func count(given ...bool) (n int) {
	for _, is := range given {
		if is {
			n++
		}
	}
	return n
}

func (p plan) fromConfig() weirrelay.FromConfig {
	c := p.config
	return weirrelay.FromConfig{Name: c.Name, Pool: c.Pool, Source: *p.source, Queue: p.Queue, Kind: p.Kind, Key: p.Key, MaxRecords: c.MaxRecords, Logger: c.Logger, Observe: c.Observe}
}

func (p plan) jobsConfig() weirrelay.JobsConfig {
	c := p.config
	return weirrelay.JobsConfig{Name: c.Name, Pool: c.Pool, Target: c.Target, Routes: c.Routes, MaxRecords: c.MaxRecords, MaxBytes: c.MaxBytes, Logger: c.Logger, Observe: c.Observe}
}

// run runs the relay.
func (p plan) run(ctx context.Context) error {
	switch {
	case p.source != nil:
		return weirrelay.RunFrom(ctx, p.fromConfig())
	case p.jobs:
		return weirrelay.RunJobs(ctx, p.jobsConfig())
	}
	return weirrelay.Run(ctx, p.config)
}

// since returns the time or the position that a text means.
func since(text string) (time.Time, weir.Position, error) {
	if text == "" || text == "now" {
		return time.Time{}, "", nil
	}
	at, position, ok := past(text)
	if !ok {
		return at, "", fmt.Errorf(`%q: write "now", %s`, text, pastForms)
	}
	return at, position, nil
}

const pastForms = `"oldest", how long ago as in "2h", a time as in "2026-11-26T08:00:00Z", or a position as in "93154770125.1042.3"`

// past reads one of the forms of a time or a position in the past; false: it is none.
func past(text string) (at time.Time, position weir.Position, ok bool) {
	if text == "oldest" {
		return time.Unix(0, 0), "", true
	}
	if _, err := hub.ParsePosition(text); err == nil {
		return time.Time{}, weir.Position(text), true
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), "", true
	}
	at, err := time.Parse(time.RFC3339, text)
	return at, "", err == nil
}
