package weirrelay

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hub"
)

// Route says what becomes of the messages of some channels, or of the jobs of a queue. Subject, Key and the values of Headers are templates, in which
// {payload.FIELD} is replaced, and of messages {channel} and {position}, of jobs {queue}, {kind}, {key} and {id}. {payload.order.id} is the id in the
// object order of a JSON payload, or of a job's args, and empty if there is none.
type Route struct {
	Channels string // of messages: a channel or a pattern, such as orders.>
	Queue    string // of jobs: a queue or a pattern, such as mail.>. A pattern fits no queue whose name ends in -dead-letters, unless it ends so itself

	Subject string            // the target's subject, stream or topic; default {channel}, or {queue}
	Key     string            // by which the target orders or partitions; default {channel}, or {key}
	Headers map[string]string // optional
}

// router gives messages and jobs what the first route that selects them says.
type router struct {
	routes   []route
	named    map[string]int // of a channel or queue: the first route that names it
	patterns []int          // the routes with patterns, in their order
}

type route struct {
	Route
	filter       hub.Filter // nil: an exact queue
	subject, key template
	headers      map[string]template
	names        []string // of the headers, sorted
}

func newRouter(routes []Route, jobs bool) (*router, error) {
	if len(routes) == 0 {
		return nil, errors.New("no routes are given: a route names what is relayed")
	}
	r := &router{named: map[string]int{}}
	filters := make([]hub.Filter, 0, len(routes))
	for i, given := range routes {
		made := route{Route: given, headers: map[string]template{}}
		fields, subject, key := messageFields, "{channel}", "{channel}"
		var err error
		if jobs {
			fields, subject, key = jobFields, "{queue}", "{key}"
			if given.Queue == "" || given.Channels != "" {
				err = errors.New("a route of jobs names a queue, and no channels")
			} else {
				made.filter, err = queueFilter(given.Queue)
			}
		} else if given.Queue != "" {
			err = errors.New("a route of messages names channels, and no queue")
		} else {
			made.filter, err = hub.ParseFilter(given.Channels)
		}
		if err == nil {
			made.subject, err = parseTemplate(cmp.Or(given.Subject, subject), fields)
		}
		if err == nil {
			made.key, err = parseTemplate(cmp.Or(given.Key, key), fields)
		}
		for name, text := range given.Headers {
			if err == nil {
				made.headers[name], err = parseTemplate(text, fields)
			}
			made.names = append(made.names, name)
		}
		if err != nil {
			return nil, err
		}
		slices.Sort(made.names)
		r.routes = append(r.routes, made)
		name := given.Queue
		if made.filter != nil {
			filters = append(filters, made.filter)
			if _, exact := made.filter.(hub.Channel); !exact {
				r.patterns = append(r.patterns, i)
				continue
			}
			name = given.Channels
		}
		if _, ok := r.named[name]; !ok {
			r.named[name] = i
		}
	}
	return r, hub.CheckFilters(filters)
}

// deadLetters ends the names of the queues of dead letters, by default.
const deadLetters = "-dead-letters"

// queues is a pattern of queues. What relays have set aside is for people, so a pattern that was not written for it leaves it alone.
type queues struct{ hub.Pattern }

// Match implements hub.Filter.
func (q queues) Match(queue string) bool {
	return q.Pattern.Match(queue) && (!strings.HasSuffix(queue, deadLetters) || strings.HasSuffix(string(q.Pattern), deadLetters))
}

// wanted returns the patterns of queues.
func (r *router) wanted() (patterns []string) {
	for _, i := range r.patterns {
		patterns = append(patterns, r.routes[i].Queue)
	}
	return patterns
}

// queueFilter returns the filter of a pattern of queues; nil: it is the name of one, which may be any.
func queueFilter(name string) (hub.Filter, error) {
	if words := strings.Split(name, "."); !slices.Contains(words, "*") && !slices.Contains(words, ">") {
		return nil, nil
	}
	f, err := hub.ParseFilter(name)
	if err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	return queues{f.(hub.Pattern)}, nil
}

// route returns the first route that selects a channel or a queue; nil: there is none.
func (r *router) route(name string) *route {
	first, ok := r.named[name]
	if !ok {
		first = len(r.routes)
	}
	for _, i := range r.patterns {
		if i > first {
			break
		}
		if r.routes[i].filter.Match(name) {
			return &r.routes[i]
		}
	}
	if !ok {
		return nil
	}
	return &r.routes[first]
}

// channels returns what to subscribe to.
func (r *router) channels() []string {
	all := make([]string, len(r.routes))
	for i := range r.routes {
		all[i] = r.routes[i].Channels
	}
	return all
}

// message returns the message as a target gets it; false: no route selects it.
func (r *router) message(relay string, m *weir.Message) (Record, bool) {
	route := r.route(m.Channel)
	if route == nil {
		return Record{}, false
	}
	v := values{payload: m.Payload, of: func(name string) string {
		if name == "channel" {
			return m.Channel
		}
		return string(m.Position)
	}}
	return route.fill(Record{ID: relay + "/" + string(m.Position), Position: m.Position, Channel: m.Channel, Payload: m.Payload, Binary: m.Binary}, &v), true
}

// job returns the job as a target gets it.
func (r *router) job(relay string, job *weir.Job[json.RawMessage]) Record {
	id := strconv.FormatInt(job.ID, 10)
	v := values{payload: job.Args, of: func(name string) string {
		switch name {
		case "queue":
			return job.Queue
		case "kind":
			return job.Kind
		case "key":
			return job.Key
		}
		return id
	}}
	// After a failover that has lost jobs, others get their ids: the time tells them apart.
	made := Record{ID: relay + "/" + id + "-" + strconv.FormatInt(job.EnqueuedAt.UnixMicro(), 10), Payload: job.Args, Job: &job.JobMeta}
	if route := r.route(job.Queue); route != nil {
		return route.fill(made, &v)
	}
	return made
}

// fill adds what the route's templates make.
func (r *route) fill(made Record, v *values) Record {
	made.Subject, made.Key = r.subject.with(v), r.key.with(v)
	if len(r.names) > 0 {
		made.Headers = make(map[string]string, len(r.names))
		for _, name := range r.names {
			made.Headers[name] = r.headers[name].with(v)
		}
	}
	return made
}

var messageFields, jobFields = []string{"channel", "position"}, []string{"queue", "kind", "key", "id"}

// template is a text with places for values.
type template []part

type part struct {
	text  string
	field []string // what stands here instead; nil: the text
}

func parseTemplate(text string, fields []string) (template, error) {
	var t template
	for rest := text; rest != ""; {
		before, after, found := strings.Cut(rest, "{")
		if before != "" {
			t = append(t, part{text: before})
		}
		if !found {
			break
		}
		name, next, closed := strings.Cut(after, "}")
		field := strings.Split(name, ".")
		known := slices.Contains(fields, name) || field[0] == "payload" && len(field) > 1 && !slices.Contains(field, "")
		switch {
		case !closed:
			return nil, fmt.Errorf("template %q: a { has no }", text)
		case !known:
			return nil, fmt.Errorf("template %q: {%s} is not one of {%s} and {payload.FIELD}", text, name, strings.Join(fields, "}, {"))
		}
		t = append(t, part{field: field})
		rest = next
	}
	return t, nil
}

func (t template) with(v *values) string {
	if len(t) == 1 {
		return t[0].with(v)
	}
	var b strings.Builder
	for _, p := range t {
		b.WriteString(p.with(v))
	}
	return b.String()
}

func (p part) with(v *values) string {
	switch {
	case p.field == nil:
		return p.text
	case p.field[0] == "payload" && len(p.field) > 1:
		return v.inPayload(p.field[1:])
	}
	return v.of(p.field[0])
}

// values are those of one message or job. Its payload is parsed when it is first asked for.
type values struct {
	of      func(name string) string
	payload []byte
	parsed  bool
	object  any
}

func (v *values) inPayload(field []string) string {
	if !v.parsed {
		v.parsed = true
		d := json.NewDecoder(bytes.NewReader(v.payload))
		d.UseNumber()
		if d.Decode(&v.object) != nil {
			v.object = nil
		}
	}
	at := v.object
	for _, name := range field {
		object, ok := at.(map[string]any)
		if !ok {
			return ""
		}
		at = object[name]
	}
	switch at := at.(type) {
	case string:
		return at
	case json.Number:
		return at.String()
	case bool:
		return strconv.FormatBool(at)
	}
	return ""
}
