package weirrelay

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hub"
)

// Route says what becomes of the messages of some channels. Subject, Key and the values of Headers are templates, in which {channel}, {position} and
// {payload.FIELD} are replaced; {payload.order.id} is the id in the object order of a JSON payload, and empty if there is none.
type Route struct {
	Channels string            // a channel or a pattern, such as orders.>
	Subject  string            // the target's subject, stream or topic; default {channel}
	Key      string            // by which the target orders or partitions; default {channel}
	Headers  map[string]string // optional
}

// router gives messages what the first route that selects their channel says.
type router struct {
	routes   []route
	channels []string // what to subscribe to
}

type route struct {
	filter       hub.Filter
	subject, key template
	headers      map[string]template
	names        []string // of the headers, sorted
}

func newRouter(routes []Route) (*router, error) {
	if len(routes) == 0 {
		return nil, fmt.Errorf("no routes are given: a route names the channels that are relayed")
	}
	r := &router{}
	for _, given := range routes {
		filter, err := hub.ParseFilter(given.Channels)
		if err != nil {
			return nil, err
		}
		made := route{filter: filter, headers: map[string]template{}}
		for _, part := range []struct {
			into           *template
			text, standard string
		}{{&made.subject, given.Subject, "{channel}"}, {&made.key, given.Key, "{channel}"}} {
			if part.text == "" {
				part.text = part.standard
			}
			if *part.into, err = parseTemplate(part.text); err != nil {
				return nil, err
			}
		}
		for name, text := range given.Headers {
			if made.headers[name], err = parseTemplate(text); err != nil {
				return nil, err
			}
			made.names = append(made.names, name)
		}
		slices.Sort(made.names)
		r.routes = append(r.routes, made)
		r.channels = append(r.channels, given.Channels)
	}
	return r, nil
}

// record returns the message as a target gets it; false: no route selects it.
func (r *router) record(m *weir.Message) (Record, bool) {
	for i := range r.routes {
		route := &r.routes[i]
		if !route.filter.Match(m.Channel) {
			continue
		}
		v := values{message: m}
		made := Record{ID: string(m.Position), Position: m.Position, Channel: m.Channel, Payload: m.Payload, Binary: m.Binary, Subject: route.subject.with(&v), Key: route.key.with(&v)}
		if len(route.names) > 0 {
			made.Headers = make(map[string]string, len(route.names))
			for _, name := range route.names {
				made.Headers[name] = route.headers[name].with(&v)
			}
		}
		return made, true
	}
	return Record{}, false
}

// template is a text with places for values.
type template []part

type part struct {
	text  string
	field []string // what stands here instead; nil: the text
}

func parseTemplate(text string) (template, error) {
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
		known := name == "channel" || name == "position" || field[0] == "payload" && len(field) > 1 && !slices.Contains(field, "")
		if !closed || !known {
			return nil, fmt.Errorf("template %q: {%s is not one of {channel}, {position} and {payload.FIELD}", text, name)
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
	case p.field[0] == "channel":
		return v.message.Channel
	case p.field[0] == "position":
		return string(v.message.Position)
	}
	return v.payload(p.field[1:])
}

// values are those of one message. Its payload is parsed when it is first asked for.
type values struct {
	message *weir.Message
	parsed  bool
	object  any
}

func (v *values) payload(field []string) string {
	if !v.parsed {
		v.parsed = true
		d := json.NewDecoder(strings.NewReader(string(v.message.Payload)))
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
		return fmt.Sprint(at)
	}
	return ""
}
