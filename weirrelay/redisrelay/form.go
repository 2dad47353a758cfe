package redisrelay

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

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
	// Sidekiq makes a job for Sidekiq, in the queue that the route's subject names. The route's header class names the job's class, and may be left out in a relay of
	// jobs: it is the kind then. The header retry may be true, false or a number; other headers are fields of the job. The job's args are the payload, if that is
	// a JSON array, and otherwise it is the only one: JSON as it is, text as a string, and other bytes as {"bytes": …} in base64.
	Sidekiq Form = "sidekiq"
	// BullMQ makes a job for BullMQ, version 5 or 6, in the queue that the route's subject names. The route's header name is the job's name: by default the kind
	// of a job, and the channel of a message. The header attempts is how often it is tried. The job's data is the payload: JSON as it is, text as a string, and
	// other bytes as {"bytes": …} in base64. Its id is the relay's name and the position, or the job's id and the time, in microseconds, at which it was enqueued.
	BullMQ Form = "bullmq"
)

var forms = []Form{Stream, List, Sidekiq, BullMQ}

// call is a call of the script.
type call struct {
	target *Target
	keys   []string
	kinds  []byte         // of the keys: what they must be
	place  map[string]int // of a key in keys, from 1
	values []any
	uses   []used // by record
}

// mostArguments is how many keys and values a call has, about: Redis before version 7 takes a million.
const mostArguments = 500_000

func (c *call) isFull() bool { return len(c.keys)+len(c.values) >= mostArguments }

// used are the numbers of the keys in which a record is stored.
type used struct{ from, to int }

// What a key must be, for the script.
const (
	anything = '-'
	isList   = 'l'
	isStream = 's'
	isSet    = 'e'
	isHash   = 'h'
	isSorted = 'z'
)

func (t *Target) newCall() *call {
	return &call{target: t, keys: []string{t.key}, kinds: []byte{anything}, place: map[string]int{t.key: 1}}
}

// key returns the number of a key. One that is new gets the next number.
func (c *call) key(name string, kind byte) int {
	k, ok := c.place[name]
	if !ok {
		c.keys, c.kinds = append(c.keys, name), append(c.kinds, kind)
		k = len(c.keys)
		c.place[name] = k
	}
	return k
}

// add adds a record.
func (c *call) add(r *weirrelay.Record) error {
	if r.Subject == "" {
		return errors.New("its route's subject is empty: change the template")
	}
	switch c.target.Form {
	case List:
		return c.addTo(r, c.target.named(r.Subject), isList, r.Payload)
	case Sidekiq:
		job, err := sidekiqJob(r, time.Now())
		if err != nil {
			return err
		}
		return c.addTo(r, "queue:"+r.Subject, isList, job, r.Subject, c.key("queues", isSet))
	case BullMQ:
		return c.addBullMQ(r)
	}
	return c.addTo(r, c.target.named(r.Subject), isStream, entry(r)...)
}

func (c *call) addTo(r *weirrelay.Record, name string, kind byte, values ...any) error {
	if strings.HasPrefix(name, "weir:relay:") {
		return fmt.Errorf("%q is no key for what is relayed: change the route's template", name)
	}
	once := 0 // the key that says whether a job is there already; 0: messages have positions
	if r.Job != nil {
		once = c.key(c.target.key+":"+r.ID[strings.LastIndexByte(r.ID, '/')+1:], anything)
	}
	k := c.key(name, kind)
	c.values = append(append(c.values, k, once, string(r.Position), len(values)), values...)
	c.uses = append(c.uses, used{k, k})
	return nil
}

// entry is the id of a stream's entry, and its fields.
func entry(r *weirrelay.Record) []any {
	id := "*"
	var fields []any
	if r.Job != nil {
		fields = []any{"job", r.Job.ID, "queue", r.Job.Queue, "kind", r.Job.Kind, "key", r.Key, "payload", r.Payload}
	} else {
		_, rest, _ := strings.Cut(string(r.Position), ".")
		tick, index, _ := strings.Cut(rest, ".")
		id = tick + "-" + index
		fields = []any{"channel", r.Channel, "position", string(r.Position), "payload", r.Payload}
		if r.Key != r.Channel {
			fields = append(fields, "key", r.Key)
		}
	}
	for name, value := range r.Headers {
		fields = append(fields, name, value)
	}
	return append([]any{id}, fields...)
}

// jobJSON is a payload as JSON, for those who know nothing else.
func jobJSON(r *weirrelay.Record) json.RawMessage {
	switch {
	case !utf8.Valid(r.Payload):
		text, _ := compact(map[string][]byte{"bytes": r.Payload}) //nolint:errcheck // bytes can be encoded
		return text
	case json.Valid(r.Payload):
		return r.Payload
	}
	text, _ := compact(string(r.Payload)) //nolint:errcheck // any string can be encoded
	return text
}

func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// sidekiqJob is a job as Sidekiq's clients push it.
func sidekiqJob(r *weirrelay.Record, now time.Time) ([]byte, error) {
	// Sidekiq 8 counts in milliseconds, and takes a number with a fraction for the seconds of its predecessors.
	seconds := func(t time.Time) json.RawMessage {
		return json.RawMessage(fmt.Sprintf("%.3f", float64(t.UnixMilli())/1000))
	}
	id := sha256.Sum256([]byte(r.ID))
	args := jobJSON(r)
	if !bytes.HasPrefix(bytes.TrimLeft(args, " \t\r\n"), []byte("[")) {
		args = slices.Concat([]byte("["), args, []byte("]"))
	}
	job := map[string]any{"retry": true}
	if r.Job != nil {
		job["class"] = r.Job.Kind
	}
	for name, value := range r.Headers {
		job[name] = value
	}
	if class, _ := job["class"].(string); class == "" { //nolint:errcheck // nil is no class
		return nil, errors.New(`there is none, and Sidekiq needs the class of the job: give it as a header of the route, as in headers = { class = "MailJob" }`)
	}
	if retry, ok := r.Headers["retry"]; ok {
		n, err := strconv.ParseUint(retry, 10, 31)
		switch {
		case retry == "true", retry == "false":
			job["retry"] = retry == "true"
		case err != nil:
			return nil, fmt.Errorf("the header retry is %q: write true, false or a number", retry)
		default:
			job["retry"] = n // not the text, which may have leading zeros: JSON has none
		}
	}
	created := now
	if r.Job != nil {
		created = r.Job.EnqueuedAt
	}
	job["queue"], job["args"], job["jid"] = r.Subject, args, hex.EncodeToString(id[:12])
	job["created_at"], job["enqueued_at"] = seconds(created), seconds(now)
	return compact(job)
}

// bullMQHeaders are those that a route may have with BullMQ.
var bullMQHeaders = []string{"attempts", "name"}

func (c *call) addBullMQ(r *weirrelay.Record) error {
	if strings.Contains(r.Subject, ":") {
		return fmt.Errorf("%q is no name of a queue of BullMQ, which has no colons: change the route's template", r.Subject)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
		if !slices.Contains(bullMQHeaders, name) {
			return fmt.Errorf("a job of BullMQ has no header %q: the route may have %s", name, strings.Join(bullMQHeaders, " and "))
		}
	}
	name := r.Channel
	if r.Job != nil {
		name = r.Job.Kind
	}
	if given := r.Headers["name"]; given != "" {
		name = given
	}
	options := "{}"
	if given, ok := r.Headers["attempts"]; ok {
		n, err := strconv.ParseUint(given, 10, 31)
		if err != nil || n < 1 {
			return fmt.Errorf("the header attempts is %q: write a number from 1", given)
		}
		options = fmt.Sprintf(`{"attempts":%d}`, n)
	}
	queue := c.target.named(r.Subject) + ":"
	id := strings.Replace(r.ID, "/", "-", 1)
	// The script expects these one behind another, so none of them may be there for another reason.
	wait := queue + "wait"
	c.key(wait, isList)
	for _, k := range []struct {
		name string
		kind byte
	}{{"paused", isList}, {"meta", isHash}, {"active", isList}, {"events", isStream}, {"marker", isSorted}} {
		c.key(queue+k.name, k.kind)
	}
	err := c.addTo(r, wait, isList, c.key(queue+id, anything), id, name, []byte(jobJSON(r)), options)
	if err == nil {
		c.uses[len(c.uses)-1].to += 5
	}
	return err
}
