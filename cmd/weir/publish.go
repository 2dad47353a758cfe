package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hub"
)

type publishCmd struct {
	Channel string  `arg:"" help:"Channel, such as orders.created."`
	Payload *string `arg:"" optional:"" empty:"ok" help:"Text to publish. Default: all of standard input."`
	Binary  bool    `help:"The payload is not text."`
}

// payloadLimit is the maximum of the setting message_bytes.
const payloadLimit = 16 << 20

func (publishCmd) Help() string {
	return `Examples:

    weir publish orders.created '{"order": 7}'

    weir publish --binary thumbnails < picture.jpg`
}

func (c *publishCmd) Run(ctx context.Context, s *streams, db *database) error {
	var payload []byte
	if c.Payload != nil {
		payload = []byte(*c.Payload)
	} else {
		if _, ok := isTerminal(s.in); ok {
			return usagef("the payload is missing: give it as an argument or on standard input")
		}
		var err error
		if payload, err = io.ReadAll(io.LimitReader(&contextReader{ctx: ctx, in: s.in}, payloadLimit+1)); err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		if len(payload) > payloadLimit {
			return usagef("standard input is longer than %d bytes, the maximum size of a payload: publish a reference to it instead", payloadLimit)
		}
	}
	if word, ok := wildcard(c.Channel); ok {
		fmt.Fprintf(s.err, "weir: publishing on a channel literally named %s: %s is a wildcard only in subscriptions\n", printable(c.Channel), word)
	}
	client, closePool, err := db.client(ctx)
	if err != nil {
		return err
	}
	defer closePool()
	return client.Publish(ctx, c.Channel, payload, &weir.PublishOptions{Binary: c.Binary})
}

// wildcard returns a word of a channel name that would be a wildcard in a pattern.
func wildcard(channel string) (word string, ok bool) {
	for word := range strings.SplitSeq(channel, ".") {
		if word == "*" || word == ">" {
			return word, true
		}
	}
	return "", false
}

type listenCmd struct {
	Channels []string `arg:"" help:"Channels, or patterns: orders.* (one word), orders.> (one or more words)."`
	Hub      []string `placeholder:"URL" help:"Hub to connect to, such as http://127.0.0.1:8080, or, at one for several databases, http://127.0.0.1:8080/databases/app. May be repeated. Default: read the database directly."`
	Token    string   `env:"WEIR_TOKEN" placeholder:"TOKEN" help:"Token for the hub."`
	After    string   `placeholder:"POSITION" help:"Resume after this position, as printed by --json. Default: only messages published from now on."`
	Last     int      `placeholder:"N" help:"Begin with the last N messages of each channel, up to 1000, as far as the database still keeps them."`
	Count    int      `short:"n" placeholder:"N" help:"Exit after N messages. Default: run until Ctrl-C."`
	JSON     bool     `name:"json" help:"Print one JSON object per line and message."`
}

func (listenCmd) Help() string {
	return `Prints messages as they arrive: channel and payload, or JSON with their positions. A gap, where messages may be missing, is reported on standard error, or with --json as a line of its own.

Examples:

    weir listen 'orders.>'

    weir listen --last 20 room.7

    weir listen --hub http://127.0.0.1:8080 --json --after 81985529.1042.3 orders.created`
}

// heard is a line of the output with --json.
type heard struct {
	Channel  string        `json:"channel,omitempty"`
	Payload  *string       `json:"payload,omitempty"`
	Base64   []byte        `json:"payload_base64,omitempty"`
	Position weir.Position `json:"position,omitempty"`
	Gap      string        `json:"gap,omitempty"` // why messages may be missing before this position
}

func (c *listenCmd) Run(ctx context.Context, s *streams, db *database) error {
	if c.After != "" {
		if _, err := hub.ParsePosition(c.After); err != nil {
			return usagef("--after: %w", err)
		}
	}
	switch {
	case c.Last < 0 || c.Last > 1000:
		return usagef("--last must be 0 to 1000, got %d", c.Last)
	case c.Last > 0 && c.After != "":
		return usagef("--last and --after can't be used together: --after continues where another listener ended")
	}
	config := weir.SubscribeConfig{Channels: c.Channels, Hubs: c.Hub, After: weir.Position(c.After), Last: c.Last}
	if c.Token != "" {
		config.Token = func(context.Context) (string, error) { return c.Token, nil }
	}
	if len(c.Hub) == 0 {
		client, closePool, err := db.client(ctx)
		if err != nil {
			return err
		}
		defer closePool()
		config.Client = client
	}
	sub, err := weir.Subscribe(ctx, config)
	if err != nil {
		return err
	}
	defer sub.Close()
	if _, ok := isTerminal(s.err); ok {
		fmt.Fprintln(s.err, "weir: listening; Ctrl-C stops")
	}
	n := 0
	for _, m := range sub.History().Messages {
		if c.Count > 0 && n == c.Count {
			break
		}
		if err := c.print(s, weir.Event{Message: &m}); err != nil {
			return err
		}
		n++
	}
	for c.Count == 0 || n < c.Count {
		e, err := sub.Next(ctx)
		if err != nil {
			if ctx.Err() != nil && c.Count == 0 {
				return nil // interrupting is how listening ends
			}
			return err
		}
		if err := c.print(s, e); err != nil {
			return err
		}
		if e.Message != nil {
			n++
		}
	}
	return nil
}

func (c *listenCmd) print(s *streams, e weir.Event) error {
	if e.Gap != nil {
		why := e.Gap.Reason
		switch why {
		case "truncated":
			why = "the database no longer keeps them"
		case "unknown":
			why = "the position to resume from is not from this log: the database was restored, or is a different one"
		}
		fmt.Fprintf(s.err, "weir: messages may be missing before position %s: %s\n", e.Gap.To, why)
		if c.JSON {
			return printLine(s.out, heard{Gap: e.Gap.Reason, Position: e.Gap.To})
		}
		return nil
	}
	m := e.Message
	if c.JSON {
		line := heard{Channel: m.Channel, Position: m.Position}
		if text := string(m.Payload); m.Binary {
			line.Base64 = m.Payload
		} else {
			line.Payload = &text
		}
		return printLine(s.out, line)
	}
	text := fmt.Sprintf("%d bytes", len(m.Payload))
	if !m.Binary {
		text = printable(string(m.Payload))
	}
	_, err := fmt.Fprintf(s.out, "%s %s\n", printable(m.Channel), text)
	if err != nil {
		return errors.Join(errors.New("print a message"), err)
	}
	return nil
}
