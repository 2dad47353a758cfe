package natsrelay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/weir-pg/weir/weirrelay"
)

// A stream that allows atomic publishing stores a batch whole or not at all, in the order of the batch, even if a connection is lost in its middle, and with one
// answer for all. The client library has no call for it yet; the headers are in NATS's ADR-50.
const (
	headerBatch    = "Nats-Batch-Id"
	headerSequence = "Nats-Batch-Sequence"
	headerCommit   = "Nats-Batch-Commit"
	headerStream   = "Nats-Expected-Stream"

	maxBatch = 1000 // messages, by default of the server

	codeRepeated jetstream.ErrorCode = 10201 // the batch has a message that the stream has already
	codeDisabled jetstream.ErrorCode = 10174 // the stream does not allow batches any more
	codeHalf     jetstream.ErrorCode = 10176 // a message of the batch was not taken, or lost
	codeSingle   jetstream.ErrorCode = 10177 // a header of a message is none for a batch
	codeLong     jetstream.ErrorCode = 10199 // the batch has more messages than the server takes in one
)

// needsSingle reports whether an error of the stream is about one message of a batch that it does not say, or would be none if the messages went one by one.
func needsSingle(err *jetstream.APIError) bool {
	return slices.Contains([]jetstream.ErrorCode{codeRepeated, codeDisabled, codeSingle, codeRollup}, err.ErrorCode) || isTooLarge(err) || slices.Contains(codesOfHeaders, err.ErrorCode)
}

// sendWhole sends the records in atomic batches. What the stream does not take in that way, because it has a part of it, goes one by one: then the stream itself drops that part.
func (t *Target) sendWhole(ctx context.Context, records []weirrelay.Record) error {
	for first := true; ; first = false {
		err := t.sendBatches(ctx, records)
		if no := (*again)(nil); !errors.As(err, &no) {
			return err
		}
		if !first || !t.atomic || t.isQueue {
			return t.sendEach(ctx, records)
		}
	}
}

func (t *Target) sendBatches(ctx context.Context, records []weirrelay.Record) error {
	var fresh []int
	for i := range records {
		if _, ok := t.seen[records[i].ID]; !ok {
			fresh = append(fresh, i)
		}
	}
	for n := 0; n < len(fresh); {
		size := min(len(fresh)-n, cmp.Or(t.most, maxBatch))
		err := t.sendBatch(ctx, records, fresh[n:n+size])
		if no := (*jetstream.APIError)(nil); size > 1 && errors.As(err, &no) && no.ErrorCode == codeLong {
			t.most = size / 2 // until the server takes it: how many it takes is its own setting, which nobody else can read
			continue
		}
		if err != nil {
			return err
		}
		n += size
		if n < len(fresh) { // if a later batch fails, this one is not sent again
			for _, i := range fresh[n-size : n] {
				t.seen[records[i].ID] = struct{}{}
			}
		}
	}
	if len(fresh) == len(records) {
		clear(t.seen)
	}
	return nil
}

// again is an error after which it has been read anew what the stream has.
type again struct{ why error }

func (a *again) Error() string { return "not stored as one batch: " + a.why.Error() }

func (a *again) Unwrap() error { return a.why }

// sendBatch sends one batch: those of the records with these indexes.
func (t *Target) sendBatch(ctx context.Context, records []weirrelay.Record, indexes []int) error {
	batch := nuid.Next()
	// A batch that ends in its middle keeps one of the server's few places for batches for some seconds. So what is refused is looked for first.
	messages := make([]*nats.Msg, len(indexes))
	for n, i := range indexes {
		r := &records[i]
		if err := t.checkSubject(r.Subject); err != nil {
			return &weirrelay.Refused{Index: i, Err: err}
		}
		m := message(r)
		if t.maxSize > 0 && size(m) > t.maxSize {
			return &weirrelay.Refused{Index: i, Err: fmt.Errorf("it has %d bytes with its headers, and the stream takes at most %d", size(m), t.maxSize)}
		}
		m.Header[jetstream.MsgIDHeader], m.Header[headerStream] = []string{r.ID}, []string{t.Stream}
		m.Header[headerBatch], m.Header[headerSequence] = []string{batch}, []string{strconv.Itoa(n + 1)}
		whole := size(m) + len(headerCommit) + 10
		if most := t.Conn.MaxPayload(); most > 0 && int64(whole) > most {
			return &weirrelay.Refused{Index: i, Err: fmt.Errorf("it has %d bytes with its headers, and the server takes at most %d", size(m), most)}
		}
		if headers := whole - len(m.Data); headers > maxHeaders {
			return &weirrelay.Refused{Index: i, Err: fmt.Errorf("it has %d bytes of headers, and the server takes at most %d", headers, maxHeaders)}
		}
		messages[n] = m
	}
	for n, i := range indexes {
		r, m := &records[i], messages[n]
		if n < len(indexes)-1 {
			if err := t.Conn.PublishMsg(m); err != nil {
				return t.explain(i, r, err)
			}
			continue
		}
		m.Header[headerCommit] = []string{"1"}
		ctx, cancel := context.WithTimeout(ctx, ackTimeout)
		defer cancel()
		answer, err := t.Conn.RequestMsgWithContext(ctx, m)
		if err != nil {
			return t.explain(i, r, err)
		}
		var ack struct {
			Error *jetstream.APIError `json:"error"`
			Count int                 `json:"count"`
		}
		if err := json.Unmarshal(answer.Data, &ack); err != nil {
			t.unsure = true
			return fmt.Errorf("the answer to a batch: %w: %q", err, answer.Data)
		}
		if ack.Error != nil && needsSingle(ack.Error) {
			// An earlier try has arrived whole, although its answer did not; or the error may be about any message of the batch. What the stream has is read, and the rest is sent.
			if err := t.readEnd(ctx); err != nil {
				return err
			}
			return &again{ack.Error}
		} else if ack.Error != nil {
			t.unsure = t.unsure || ack.Error.ErrorCode == codeHalf // the stream may take less than it did
			return t.explain(i, r, ack.Error)
		} else if ack.Count != len(indexes) {
			t.unsure = true
			return fmt.Errorf("the stream has stored %d messages of a batch of %d", ack.Count, len(indexes))
		}
	}
	return nil
}

// size is how the server counts a message: its payload, and its headers.
func size(m *nats.Msg) int { return m.Size() - len(m.Subject) - len(m.Reply) }
