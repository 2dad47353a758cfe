package natsrelay

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-pg/weir/weirrelay"
)

// SourceConfig specifies a source. Conn and Stream are required.
type SourceConfig struct {
	Conn *nats.Conn
	// Stream is the name of a stream, whose messages are read, and left there: it keeps them by its limits, and is no work queue.
	Stream string
	// Subject, if set, is the subject, or pattern, of the messages that are read.
	Subject string
	// Domain is the JetStream domain; "": that of the server.
	Domain string
	// New begins with messages that arrive from now on, if nothing is recorded of the relay; otherwise it begins with the oldest.
	New bool
}

// Source implements weirrelay.Source: it reads a stream in the order of its sequence numbers. Its positions are the time at which the stream was created, and a
// number: so a stream that was deleted and made anew is told from the old one, and is read from its beginning.
type Source struct {
	SourceConfig
	js       jetstream.JetStream
	stream   jetstream.Stream
	created  string
	last     uint64 // the number of the message that was read last
	messages jetstream.MessagesContext
	consumer string              // the name of the one that reads them
	looked   time.Time           // when the stream was last asked whether it is still there
	lost     error               // to be returned by the next call of Next
	held     []weirrelay.Arrival // by the call after that one
	hole     uint64              // the first number that was to come, and did not; 0: none is missing
}

// NewSource returns a source. Whoever opened the connection closes it.
func NewSource(c SourceConfig) (*Source, error) {
	switch {
	case c.Conn == nil:
		return nil, errors.New("natsrelay: SourceConfig.Conn is nil: connect with nats.Connect")
	case c.Stream == "":
		return nil, errors.New("natsrelay: SourceConfig.Stream is empty: name the stream that is read")
	}
	js, err := open(c.Conn, c.Domain)
	if err != nil {
		return nil, err
	}
	return &Source{SourceConfig: c, js: js}, nil
}

// Begin implements weirrelay.Source.
func (s *Source) Begin(ctx context.Context, position string) (at string, err error) {
	if s.messages != nil {
		s.messages.Stop()
		s.messages = nil
	}
	if s.stream, err = s.js.Stream(ctx, s.Stream); err != nil {
		return "", fmt.Errorf("stream %s: %w", s.Stream, plainly(s.Conn, err))
	}
	info := s.stream.CachedInfo()
	s.created, s.last, s.lost, s.held, s.hole = strconv.FormatInt(info.Created.UnixMicro(), 10), 0, nil, nil, 0
	created, number, _ := strings.Cut(position, ".")
	n, err := strconv.ParseUint(number, 10, 64)
	switch {
	case position == "" && s.New:
		s.last = info.State.LastSeq
		at = s.position()
	case position == "":
	case err != nil:
		return "", fmt.Errorf("position %q is not one of a stream: it must have the form created.number", position)
	case created != s.created:
		s.lost = &weirrelay.Lost{What: fmt.Sprintf("the stream %s was deleted and made anew: it is read from its beginning", s.Stream)}
	default:
		s.last = n
		if n > info.State.LastSeq {
			s.last, s.lost = info.State.LastSeq, &weirrelay.Lost{What: fmt.Sprintf("the stream %s has %d messages, and %d were read: it was set back", s.Stream, info.State.LastSeq, n)}
		} else if info.State.FirstSeq > n+1 && s.Subject == "" {
			s.lost = &weirrelay.Lost{What: fmt.Sprintf("the stream %s no longer has its messages %d to %d", s.Stream, n+1, info.State.FirstSeq-1)}
		}
	}
	s.last = max(s.last+1, info.State.FirstSeq) - 1 // what is missing before was said, or is none of what is read
	// What the library begins anew by itself goes on at the same number, also in another stream: so it tries once, and then Next fails.
	c := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: s.last + 1, MaxResetAttempts: 1}
	if s.Subject != "" {
		c.FilterSubjects = []string{s.Subject}
	}
	consumer, err := s.stream.OrderedConsumer(ctx, c)
	if err != nil {
		return "", fmt.Errorf("stream %s: read it: %w", s.Stream, err)
	}
	if s.messages, err = consumer.Messages(jetstream.PullExpiry(pull), jetstream.PullHeartbeat(heartbeat)); err != nil {
		return "", fmt.Errorf("stream %s: read it: %w", s.Stream, err)
	}
	s.consumer, s.looked = consumer.CachedInfo().Name, time.Now()
	return at, nil
}

func (s *Source) position() string { return s.created + "." + strconv.FormatUint(s.last, 10) }

const (
	linger    = 2 * time.Millisecond // that Next waits for more messages, once it has one
	lookEvery = 5 * time.Second      // whether the stream is still there
	pull      = 20 * time.Second     // that a request for messages lasts
	heartbeat = 2 * time.Second      // while it does: twice as long without one, and less than lookEvery, ends it
)

// look returns an error if the stream does not answer, or is not the one that is read: the relay begins anew then.
func (s *Source) look(ctx context.Context) error {
	if time.Since(s.looked) < lookEvery {
		return nil
	}
	info, err := s.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.Stream, plainly(s.Conn, err))
	}
	s.looked = time.Now()
	if strconv.FormatInt(info.Created.UnixMicro(), 10) != s.created || info.State.LastSeq < s.last {
		return fmt.Errorf("the stream %s was made anew, or set back", s.Stream)
	}
	return nil
}

// Next implements weirrelay.Source.
func (s *Source) Next(ctx context.Context, most int) (arrived []weirrelay.Arrival, position string, err error) {
	if s.lost != nil {
		err, s.lost = s.lost, nil
		return nil, "", err
	}
	arrived, s.held = s.held, nil
	for len(arrived) == 0 {
		if err := s.look(ctx); err != nil {
			return nil, "", err
		}
		if arrived, err = s.some(ctx, most); err != nil {
			return nil, "", err
		}
		if err := s.missed(ctx); err != nil {
			s.held = arrived
			return nil, "", err
		}
	}
	return arrived, s.position(), nil
}

// missed returns a gap if messages are missing because the stream does not keep them any more. What was deleted among others that it keeps is none, as when the relay begins.
func (s *Source) missed(ctx context.Context) error {
	hole := s.hole
	if s.hole = 0; hole == 0 || s.Subject != "" {
		return nil
	}
	info, err := s.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.Stream, plainly(s.Conn, err))
	}
	if info.State.FirstSeq <= hole {
		return nil
	}
	return &weirrelay.Lost{What: fmt.Sprintf("the stream %s no longer has all of its messages %d to %d, of which some were not read", s.Stream, hole, s.last)}
}

// some waits for messages, but not for long.
func (s *Source) some(ctx context.Context, most int) (arrived []weirrelay.Arrival, err error) {
	wait, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	for len(arrived) < most {
		m, err := s.messages.Next(jetstream.NextContext(wait))
		if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			break
		} else if err != nil {
			return nil, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		if meta.Consumer != s.consumer {
			return nil, fmt.Errorf("stream %s: the connection was lost, or the stream was made anew", s.Stream)
		}
		if s.hole == 0 && meta.Sequence.Stream > s.last+1 {
			s.hole = s.last + 1
		}
		s.last = meta.Sequence.Stream
		arrived = append(arrived, weirrelay.Arrival{Subject: m.Subject(), ID: strconv.FormatUint(s.last, 10), Payload: m.Data(), Key: m.Headers().Get(HeaderKey)})
		if len(arrived) == 1 {
			var cancel context.CancelFunc
			wait, cancel = context.WithTimeout(ctx, linger)
			defer cancel()
		}
	}
	return arrived, nil
}
