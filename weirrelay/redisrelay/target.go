// Package redisrelay relays Weir's messages and jobs to Redis: to streams, to lists, and to the queues of Sidekiq and BullMQ.
package redisrelay

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirrelay"
)

// Config specifies a target. Client and Name are required.
type Config struct {
	Client redis.UniversalClient
	// Name is the relay's, unique among all that go into this Redis, also those of other databases. Its position is in the key weir:relay:NAME; and for a day which jobs it has passed on, in weir:relay:NAME:ID-TIME, where the time is that at which the job was enqueued.
	Name string
	// Form is stream by default.
	Form Form
	// Prefix is what the keys of streams and lists begin with, before a colon; none by default. BullMQ's is bull by default. Sidekiq has none. With a hash tag, as in {shop}, all keys of the
	// relay are in one slot of Redis Cluster; its position is then in weir:relay:{shop}:NAME.
	Prefix string
	// MaxLength is about how many entries each stream keeps; 0: all. Lists have no limit.
	MaxLength int64
}

// Target implements weirrelay.Target. Each Send is one script, which also moves the position: so Redis has both or neither, as far as its own persistence goes.
// In Redis Cluster, all keys must be in one slot.
type Target struct {
	Config
	key string
	at  weir.Position // as Redis has it; "": none
}

//go:embed send.lua
var sendText string

var send = redis.NewScript(sendText)

// New returns a target. Whoever made the client closes it.
func New(c Config) (*Target, error) {
	switch {
	case c.Client == nil:
		return nil, errors.New("redisrelay: Config.Client is nil: make one with redis.NewClient")
	case c.Name == "":
		return nil, errors.New("redisrelay: Config.Name is empty: give the relay's")
	case c.Form == "":
		c.Form = Stream
	case !slices.Contains(forms, c.Form):
		return nil, fmt.Errorf("redisrelay: Config.Form must be one of %v, got %q", forms, c.Form)
	}
	switch {
	case c.MaxLength < 0:
		return nil, fmt.Errorf("redisrelay: Config.MaxLength must be positive, or 0 for no limit, got %d", c.MaxLength)
	case c.MaxLength > 0 && c.Form != Stream:
		return nil, fmt.Errorf("redisrelay: Config.MaxLength is for the form stream, got %d with the form %s", c.MaxLength, c.Form)
	case c.Prefix != "" && c.Form == Sidekiq:
		return nil, fmt.Errorf("redisrelay: Config.Prefix is not for the form sidekiq, which knows none, got %q", c.Prefix)
	case c.Form == BullMQ && strings.Contains(c.Name, ":"):
		return nil, fmt.Errorf("redisrelay: Config.Name must have no colons, because ids of jobs of BullMQ begin with it, got %q", c.Name)
	case c.Form == BullMQ && c.Prefix == "":
		c.Prefix = "bull"
	}
	t := &Target{Config: c, key: "weir:relay:" + c.Name}
	if tag := hashTag(c.Prefix); tag != "" {
		t.key = "weir:relay:{" + tag + "}:" + c.Name
	}
	return t, nil
}

// hashTag returns the part of a key that says its slot in Redis Cluster; "": the key has none.
func hashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !closed {
		return ""
	}
	return tag
}

// named returns the key of a stream, list or queue.
func (t *Target) named(name string) string {
	if t.Prefix == "" {
		return name
	}
	return t.Prefix + ":" + name
}

// Begin implements weirrelay.Target: Redis knows what it has.
func (t *Target) Begin(ctx context.Context, _ weir.Position) (weir.Position, error) {
	at, err := t.Client.Get(ctx, t.key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("read %s: %w", t.key, explain(err))
	}
	t.at = weir.Position(at)
	return t.at, nil
}

// Send implements weirrelay.Target.
func (t *Target) Send(ctx context.Context, records []weirrelay.Record) error {
	records, passed := weirrelay.Behind(records, t.at)
	for len(records) > 0 {
		n, err := t.sendFirst(ctx, records)
		if no := (*weirrelay.Refused)(nil); errors.As(err, &no) {
			no.Index += passed
		}
		if err != nil {
			return err
		}
		records, passed = records[n:], passed+n
	}
	return nil
}

// sendFirst sends the first records, as many as one script takes.
func (t *Target) sendFirst(ctx context.Context, records []weirrelay.Record) (n int, err error) {
	call := t.newCall()
	for n < len(records) && !call.isFull() {
		if err := call.add(&records[n]); err != nil {
			return 0, &weirrelay.Refused{Index: n, Err: err}
		}
		n++
	}
	last := records[n-1].Position
	args := append([]any{string(t.at), string(last), string(t.Form), t.MaxLength, string(call.kinds), time.Now().UnixMilli()}, call.values...)
	at, err := send.Run(ctx, t.Client, call.keys, args...).Text()
	if err != nil {
		if i, why := call.refused(err); i >= 0 {
			return 0, &weirrelay.Refused{Index: i, Err: why}
		}
		return 0, call.explain(err)
	}
	if weir.Position(at) != last {
		// An earlier try has arrived, although its answer did not; or another process has sent something.
		return 0, fmt.Errorf("%w: to %q", weirrelay.ErrMoved, at)
	}
	t.at = last
	return n, nil
}

// refused returns which record an error of the script is about; -1: none.
func (c *call) refused(err error) (int, error) {
	k, why := c.wrongKey(err)
	return slices.IndexFunc(c.uses, func(u used) bool { return k >= u.from && k <= u.to }), why
}

// wrongKey returns which key is not what it must be; 0: the error is another one.
func (c *call) wrongKey(err error) (k int, why error) {
	var is, must string
	if n, _ := fmt.Sscanf(err.Error(), "WEIRKEY %d %s %s", &k, &is, &must); n < 3 || k < 1 || k > len(c.keys) { //nolint:errcheck // n says it
		return 0, nil
	}
	return k, fmt.Errorf("the key %q is a %s, not a %s", c.keys[k-1], is, must)
}

// explain says what to do about an error of the script.
func (c *call) explain(err error) error {
	var k int
	var version string
	if n, _ := fmt.Sscanf(err.Error(), "WEIRQUEUE %d %s", &k, &version); n == 2 && k >= 1 && k <= len(c.keys) { //nolint:errcheck // n says it
		return fmt.Errorf("%s is of BullMQ's version %s: versions 5 and 6 are supported, and a paused queue only if its version is known", c.keys[k-1], version)
	}
	if _, why := c.wrongKey(err); why != nil {
		return why
	}
	return explain(err)
}

func explain(err error) error {
	switch text := err.Error(); {
	case strings.HasPrefix(text, "CROSSSLOT"):
		return fmt.Errorf("in Redis Cluster all keys of a relay must be in one slot: set its prefix to one with a hash tag, as in {shop}: %w", err)
	case strings.HasPrefix(text, "MOVED"), strings.HasPrefix(text, "ASK "):
		return fmt.Errorf("this is Redis Cluster: set cluster = true, or use a client for it: %w", err)
	}
	return err
}
