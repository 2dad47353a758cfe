// Package natsrelay relays Weir's messages to NATS JetStream.
package natsrelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirrelay"
)

// Config specifies a target. Conn, Name and Stream are required.
type Config struct {
	// Conn had better be opened with nats.ReconnectBufSize(-1): then what is sent while it is disconnected is sent again in order, rather than buffered in part.
	Conn *nats.Conn
	// Name is the relay's, unique among all that go into this stream, also those of other databases.
	Name string
	// Stream is the name of the stream that stores what is relayed: it must exist, and have the subjects that the routes make. Its duplicate window should
	// be at least a minute: within it the stream itself drops repeats. A stream that allows atomic publishing (NATS 2.12) keeps the order of the log even if a
	// connection is lost while messages are sent; otherwise some that are sent again may come after later ones.
	Stream string
	// Domain is the JetStream domain; "": that of the server.
	Domain string
}

// The headers of relayed messages, besides those of the route and Nats-Msg-Id.
const (
	HeaderChannel  = "Weir-Channel"
	HeaderPosition = "Weir-Position"
	// of jobs:
	HeaderJob   = "Weir-Job" // the id
	HeaderQueue = "Weir-Queue"
	HeaderKind  = "Weir-Kind"
	HeaderKey   = "Weir-Key" // if it has one
	// HeaderEnqueuedAt is when it was enqueued, in the form of RFC 3339. After a failover that has lost jobs, others get their ids: the time tells them apart.
	HeaderEnqueuedAt = "Weir-Enqueued-At"
)

const (
	// tail is how many of the newest messages of the stream are looked at when a relay begins, so as not to repeat what the last one has sent and not
	// recorded. A relay records at least every 50,000 messages; what else goes into the stream counts as well.
	tail       = 200_000
	ackTimeout = 10 * time.Second
	quiet      = 5 * time.Second // without a message of the tail: it is not complete

	codeTooLarge jetstream.ErrorCode = 10054 // of a message that exceeds the stream's limit
	codeHeaders  jetstream.ErrorCode = 10097 // of a message whose headers exceed the server's
	maxHeaders                       = 65535 // which is this
	codeRollup   jetstream.ErrorCode = 10111 // of a message that replaces others, in a way that there is not, or that the stream does not allow
	codeOther    jetstream.ErrorCode = 10060 // of a message whose subject is one of another stream
)

// codesOfHeaders are errors about a header of a message that no stream takes: what the stream does not allow is none of them.
var codesOfHeaders = []jetstream.ErrorCode{
	10165,        // a time to live
	10170, 10171, // an increment of a counter, or one with a payload
	10193,                                           // an expected sequence
	10189, 10190, 10191, 10192, 10203, 10212, 10223, // a schedule
}

// Target implements weirrelay.Target. Messages have the record's ID as their Nats-Msg-Id.
type Target struct {
	Config
	js      jetstream.JetStream
	atomic  bool                // the stream allows atomic publishing
	most    int                 // messages that the server takes in a batch; 0: not known to be fewer than maxBatch
	isQueue bool                // the stream is a work queue
	takes   []string            // the subjects, or patterns, that the stream has
	maxSize int                 // of a message; 0 or less: that of the server
	seen    map[string]struct{} // IDs that the stream has already
	newest  weir.Position       // of the newest of them
	unsure  bool                // it may have more, because an answer was lost
}

// New returns a target. Whoever opened the connection closes it.
func New(c Config) (*Target, error) {
	switch {
	case c.Conn == nil:
		return nil, errors.New("natsrelay: Config.Conn is nil: connect with nats.Connect")
	case c.Name == "":
		return nil, errors.New("natsrelay: Config.Name is empty: give the relay's")
	case c.Stream == "":
		return nil, errors.New("natsrelay: Config.Stream is empty: name the stream that stores what is relayed")
	}
	js, err := open(c.Conn, c.Domain, jetstream.WithPublishAsyncTimeout(ackTimeout), jetstream.WithPublishAsyncMaxPending(16384))
	if err != nil {
		return nil, err
	}
	return &Target{Config: c, js: js}, nil
}

// open returns the JetStream of a domain; "": that of the server.
func open(conn *nats.Conn, domain string, options ...jetstream.JetStreamOpt) (js jetstream.JetStream, err error) {
	if domain == "" {
		js, err = jetstream.New(conn, options...)
	} else {
		js, err = jetstream.NewWithDomain(conn, domain, options...)
	}
	if err != nil {
		return nil, fmt.Errorf("natsrelay: %w", err)
	}
	return js, nil
}

// Begin implements weirrelay.Target: it reads which messages the stream has already at its end.
func (t *Target) Begin(ctx context.Context, recorded weir.Position) (weir.Position, error) {
	t.newest, t.seen = "", nil
	if err := t.readEnd(ctx); err != nil {
		return "", err
	}
	if recorded == "" {
		return t.newest, nil
	}
	return recorded, nil
}

// readEnd reads which messages the stream has at its end, and how it is configured. What it was known to have stays known: its consumers may have removed that since.
func (t *Target) readEnd(ctx context.Context) error {
	t.unsure = true
	stream, err := t.js.Stream(ctx, t.Stream)
	if err != nil {
		return fmt.Errorf("stream %s: %w", t.Stream, plainly(t.Conn, err))
	}
	info := stream.CachedInfo()
	t.atomic, t.takes, t.maxSize = info.Config.AllowAtomicPublish, info.Config.Subjects, int(info.Config.MaxMsgSize)
	if t.seen == nil {
		t.seen = map[string]struct{}{}
	}
	t.isQueue = info.Config.Retention == jetstream.WorkQueuePolicy
	last := info.State.LastSeq
	if info.State.Msgs == 0 || t.isQueue {
		t.unsure = false
		return nil // a work queue can't be read by others than its workers, who remove what they have done
	}
	failed := func(err error) error { return fmt.Errorf("stream %s: read its end: %w", t.Stream, err) }
	from := max(info.State.FirstSeq, last-min(last, tail)+1)
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from, HeadersOnly: true, MaxResetAttempts: 1})
	if err != nil {
		return failed(err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return failed(err)
	}
	defer messages.Stop()
	pending, known := consumer.CachedInfo().NumPending, uint64(0)
	for read := from - 1; read < last; {
		// Nothing more is pending if the last ones were deleted, and also if the server that reads lags.
		if pending == 0 && known <= read {
			if known, err = t.next(ctx, read+1); err != nil {
				return failed(err)
			} else if known == 0 || known > last {
				break
			}
		}
		ctx, cancel := context.WithTimeout(ctx, quiet)
		m, err := messages.Next(jetstream.NextContext(ctx))
		cancel()
		if err != nil {
			return failed(err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return failed(err)
		}
		if id := m.Headers().Get(jetstream.MsgIDHeader); strings.HasPrefix(id, t.Name+"/") {
			t.seen[id] = struct{}{}
			if p := m.Headers().Get(HeaderPosition); p != "" {
				t.newest = weir.Position(p)
			}
		}
		read, pending = meta.Sequence.Stream, meta.NumPending
	}
	t.unsure = false
	return nil
}

// next returns the number of the first message that the stream has from a number on; 0: there is none. Its leader answers: whom the library would ask, if the stream allows that, may lag.
func (t *Target) next(ctx context.Context, from uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	prefix := jetstream.DefaultAPIPrefix
	if t.Domain != "" {
		prefix = "$JS." + t.Domain + ".API."
	}
	answer, err := t.Conn.RequestWithContext(ctx, prefix+"STREAM.MSG.GET."+t.Stream, fmt.Appendf(nil, `{"seq": %d, "next_by_subj": ">", "no_hdr": true}`, from))
	if err != nil {
		return 0, fmt.Errorf("ask the stream's leader for message %d: %w", from, err)
	}
	var got struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Sequence uint64 `json:"seq"`
		} `json:"message"`
	}
	if err := json.Unmarshal(answer.Data, &got); err != nil {
		return 0, fmt.Errorf("the answer of the stream's leader: %w", err)
	}
	if got.Error != nil && got.Error.ErrorCode != jetstream.JSErrCodeMessageNotFound {
		return 0, got.Error
	}
	return got.Message.Sequence, nil
}

// Send implements weirrelay.Target.
func (t *Target) Send(ctx context.Context, records []weirrelay.Record) error {
	// The stream itself drops what is sent again, but not after its duplicate window: NATS may have been away for longer.
	if t.unsure && !t.isQueue {
		if err := t.readEnd(ctx); err != nil {
			return err
		}
	}
	if t.atomic {
		return t.sendWhole(ctx, records)
	}
	return t.sendEach(ctx, records)
}

// sendEach sends the records one by one, and then waits for the answers.
func (t *Target) sendEach(ctx context.Context, records []weirrelay.Record) error {
	type waiting struct {
		jetstream.PubAckFuture
		index int
	}
	var acks []waiting
	var failed error
	skipped := 0
	for i := range records {
		r := &records[i]
		if _, ok := t.seen[r.ID]; ok {
			skipped++
			continue
		}
		if err := t.checkSubject(r.Subject); err != nil {
			failed = &weirrelay.Refused{Index: i, Err: err}
			break
		}
		ack, err := t.js.PublishMsgAsync(message(r), jetstream.WithMsgID(r.ID), jetstream.WithExpectStream(t.Stream))
		if err != nil {
			failed = t.explain(i, r, err)
			break
		}
		acks = append(acks, waiting{ack, i})
	}
	var stored []string
	for _, ack := range acks {
		r := &records[ack.index]
		select {
		case <-ack.Ok():
			stored = append(stored, r.ID)
		case err := <-ack.Err():
			if err = t.explain(ack.index, r, err); failed == nil {
				failed = err
			}
		case <-ctx.Done():
			t.unsure = true
			return ctx.Err()
		}
	}
	switch {
	case failed != nil: // the others are not sent again
		for _, id := range stored {
			t.seen[id] = struct{}{}
		}
	case skipped == 0: // everything that the stream had is behind
		clear(t.seen)
	}
	return failed
}

func message(r *weirrelay.Record) *nats.Msg {
	m := &nats.Msg{Subject: r.Subject, Data: r.Payload, Header: make(nats.Header, 6+len(r.Headers))}
	if r.Job == nil {
		m.Header[HeaderChannel], m.Header[HeaderPosition] = []string{r.Channel}, []string{string(r.Position)}
	} else {
		m.Header[HeaderJob], m.Header[HeaderQueue], m.Header[HeaderKind] = []string{strconv.FormatInt(r.Job.ID, 10)}, []string{r.Job.Queue}, []string{r.Job.Kind}
		m.Header[HeaderEnqueuedAt] = []string{r.Job.EnqueuedAt.UTC().Format(time.RFC3339Nano)}
		if r.Job.Key != "" {
			m.Header[HeaderKey] = []string{r.Job.Key}
		}
	}
	for name, value := range r.Headers {
		m.Header[name] = []string{value}
	}
	return m
}

// explain says which message an error is about, and whether it is for good. It notes if the stream may have stored the message nevertheless.
func (t *Target) explain(i int, r *weirrelay.Record, err error) error {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload), errors.As(err, &api) && isTooLarge(api):
		return &weirrelay.Refused{Index: i, Err: fmt.Errorf("%d bytes: %w", len(r.Payload), err)}
	case api != nil && slices.Contains(codesOfHeaders, api.ErrorCode), api != nil && api.ErrorCode == codeRollup && !isRollup(r.Headers[jetstream.MsgRollup]):
		return &weirrelay.Refused{Index: i, Err: fmt.Errorf("its headers: %w", err)}
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("no stream takes the subject %q: add it to the subjects of the stream, or change the route: %w", r.Subject, err)
	case api != nil && api.ErrorCode == codeOther:
		return fmt.Errorf("the subject %q is one of another stream than %s: name that one, or change the route: %w", r.Subject, t.Stream, err)
	}
	if api == nil { // it is not the stream's answer
		t.unsure = true
	}
	return fmt.Errorf("subject %q: %w", r.Subject, plainly(t.Conn, err))
}

// plainly says what the library's errors of asking for a stream mean: that there is no connection, where it speaks of its buffer for that time; and that there is no JetStream.
func plainly(conn *nats.Conn, err error) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("JetStream is not enabled there, or not for this user or domain: %w", err)
	case !errors.Is(err, nats.ErrReconnectBufExceeded):
		return err
	}
	if why := conn.LastError(); why != nil {
		return fmt.Errorf("not connected to NATS: %w", why)
	}
	return errors.New("not connected to NATS")
}

func isTooLarge(err *jetstream.APIError) bool {
	return err.ErrorCode == codeTooLarge || err.ErrorCode == codeHeaders
}

func isRollup(value string) bool {
	value = strings.ToLower(value)
	return value == jetstream.MsgRollupSubject || value == jetstream.MsgRollupAll
}

// maxSubject bounds a subject, in bytes: with what else is in the same line of the protocol, the server takes 4096, and otherwise closes the connection.
const maxSubject = 3000

// checkSubject refuses what is no subject to publish to. Channels may have any name.
func (t *Target) checkSubject(subject string) error {
	if len(subject) > maxSubject {
		return fmt.Errorf("the subject that begins with %q has %d bytes, and may have %d: change the route's template", subject[:100], len(subject), maxSubject)
	}
	for word := range strings.SplitSeq(subject, ".") {
		if word == "" || strings.ContainsAny(word, " \t\r\n\f\x00") || word == "*" || word == ">" {
			return fmt.Errorf("%q is not a subject of NATS: change the route's template", subject)
		}
	}
	// Whoever may publish messages here must not command NATS there.
	if (subject[0] == '$' || strings.HasPrefix(subject, "_INBOX.")) && !slices.ContainsFunc(t.takes, func(pattern string) bool { return matches(pattern, subject) }) {
		return fmt.Errorf("%q is a subject of NATS itself, which the stream %s does not have: change the route's template", subject, t.Stream)
	}
	return nil
}

// matches reports whether a subject fits a pattern.
func matches(pattern, subject string) bool {
	words := strings.Split(subject, ".")
	for i, p := range strings.Split(pattern, ".") {
		switch {
		case i >= len(words):
			return false
		case p == ">":
			return true
		case p != "*" && p != words[i]:
			return false
		}
	}
	return strings.Count(pattern, ".") == len(words)-1
}
