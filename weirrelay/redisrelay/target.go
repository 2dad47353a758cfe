// Package redisrelay relays Weir's messages to Redis: to streams, or to lists.
package redisrelay

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirrelay"
)

// Form is how Redis stores what is relayed.
type Form string

const (
	// Stream adds an entry to the stream that the route's subject names, with the fields channel, position, payload and, if the route makes another one, key,
	// and the route's headers; of a job, with the fields job (its id), queue, kind, key and payload (its args). The entry's id is the tick and the index of the message's position, which grow; after the log was set back by a failover, it is a time.
	Stream Form = "stream"
	// List pushes the payload to the left end of the list that the route's subject names; workers pop from the right.
	List Form = "list"
)

// Config specifies a target. Client and Name are required.
type Config struct {
	Client redis.UniversalClient
	// Name is the relay's. Its position is in the key weir:relay:NAME; and for a day the id of each job that it has passed on, in weir:relay:NAME:ID.
	Name string
	// Form is stream by default.
	Form Form
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
	case c.Form != Stream && c.Form != List:
		return nil, fmt.Errorf("redisrelay: Config.Form must be stream or list, got %q", c.Form)
	}
	if c.MaxLength < 0 {
		return nil, fmt.Errorf("redisrelay: Config.MaxLength must be positive, or 0 for no limit, got %d", c.MaxLength)
	}
	return &Target{Config: c, key: "weir:relay:" + c.Name}, nil
}

// Begin implements weirrelay.Target: Redis knows what it has.
func (t *Target) Begin(ctx context.Context, recorded weir.Position) (weir.Position, error) {
	at, err := t.Client.Get(ctx, t.key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("read %s: %w", t.key, err)
	}
	t.at = weir.Position(at)
	if t.at == "" {
		return recorded, nil
	}
	return t.at, nil
}

// Send implements weirrelay.Target.
func (t *Target) Send(ctx context.Context, records []weirrelay.Record) error {
	records, passed := weirrelay.Behind(records, t.at)
	if len(records) == 0 {
		return nil
	}
	last := records[len(records)-1].Position
	call := call{target: t, keys: []string{t.key}, place: map[string]int{}, args: []any{string(t.at), string(last), string(t.Form), t.MaxLength}}
	for i := range records {
		if err := call.add(&records[i]); err != nil {
			return &weirrelay.Refused{Index: passed + i, Err: err}
		}
	}
	at, err := send.Run(ctx, t.Client, call.keys, call.args...).Text()
	if err != nil {
		var n int
		var is string
		if _, scanned := fmt.Sscanf(err.Error(), "WEIRKEY %d %s", &n, &is); scanned == nil && n >= 1 && n <= len(call.keys) {
			for i := range records {
				if records[i].Subject == call.keys[n-1] {
					return &weirrelay.Refused{Index: passed + i, Err: fmt.Errorf("the key %q is a %s, not a %s", call.keys[n-1], is, t.Form)}
				}
			}
		}
		return err
	}
	if weir.Position(at) != last {
		// An earlier try has arrived, although its answer did not; or another process has sent something.
		return fmt.Errorf("%w: to %q", weirrelay.ErrMoved, at)
	}
	t.at = last
	return nil
}

// call is a call of the script.
type call struct {
	target *Target
	keys   []string
	place  map[string]int // of a key in keys, from 1
	args   []any
}

func (c *call) key(name string) int {
	k, ok := c.place[name]
	if !ok {
		c.keys = append(c.keys, name)
		k = len(c.keys)
		c.place[name] = k
	}
	return k
}

// add adds a record.
func (c *call) add(r *weirrelay.Record) error {
	if r.Subject == "" || strings.HasPrefix(r.Subject, "weir:relay:") {
		return fmt.Errorf("%q is no key for what is relayed: change the route's template", r.Subject)
	}
	once := 0 // the key that says whether a job is there already; 0: messages have positions
	if r.Job != nil {
		once = c.key(c.target.key + ":" + strconv.FormatInt(r.Job.ID, 10))
	}
	c.args = append(c.args, c.key(r.Subject), once)
	if c.target.Form == List {
		c.args = append(c.args, r.Payload)
		return nil
	}
	at := "*"
	var fields []any
	if r.Job != nil {
		fields = []any{"job", r.Job.ID, "queue", r.Job.Queue, "kind", r.Job.Kind, "key", r.Key, "payload", r.Payload}
	} else {
		at = id(r.Position)
		fields = []any{"channel", r.Channel, "position", string(r.Position), "payload", r.Payload}
		if r.Key != r.Channel {
			fields = append(fields, "key", r.Key)
		}
	}
	for name, value := range r.Headers {
		fields = append(fields, name, value)
	}
	c.args = append(append(c.args, at, len(fields)), fields...)
	return nil
}

// id is a position as the id of an entry.
func id(p weir.Position) string {
	_, rest, _ := strings.Cut(string(p), ".")
	tick, index, _ := strings.Cut(rest, ".")
	return tick + "-" + index
}
