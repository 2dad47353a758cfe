package kafkarelay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-pg/weir/weirrelay"
)

// The headers of records, besides those of the route.
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

// refusal is an error for good, of one of the records from to to: what they were written with as one.
type refusal struct {
	from, to int
	error
}

func (r *refusal) Unwrap() error { return r.error }

// divide returns the ends of parts of the records, each of which is written as one and has about so many bytes at most.
func divide(records []weirrelay.Record, most int) (ends []int) {
	size := 0
	for i := range records {
		n := len(records[i].Payload) + len(records[i].Key)
		for name, value := range records[i].Headers {
			n += len(name) + len(value)
		}
		if n += overhead; size > 0 && size+n > most {
			ends, size = append(ends, i), 0
		}
		size += n
	}
	return append(ends, len(records))
}

// overhead is about what a record has apart from its payload, its key and the route's headers.
const overhead = 128

// halve divides the part that was refused.
func halve(ends []int, no *refusal) []int {
	at, _ := slices.BinarySearch(ends, no.to)
	return slices.Insert(slices.Clone(ends), at, (no.from+no.to)/2)
}

// write writes the records, one part after another. Nothing is on its way any more when it returns nil or a refusal.
func (t *Target) write(ctx context.Context, records []weirrelay.Record, ends []int) error {
	from := 0
	for _, to := range ends {
		errs := make([]error, to-from)
		for i := from; i < to; i++ {
			r := &records[i]
			if _, ok := t.have[r.ID]; !ok {
				t.client.Produce(ctx, record(r), func(_ *kgo.Record, err error) { errs[i-from] = err })
			}
		}
		if err := t.client.Flush(ctx); err != nil {
			return fmt.Errorf("write to Kafka: %w", err)
		}
		if err := t.written(records, from, errs); err != nil {
			return err
		}
		from = to
	}
	clear(t.have)
	return nil
}

// written returns the first error of a part, and a refusal before any other: when a batch is refused, others fail because of that.
func (t *Target) written(records []weirrelay.Record, from int, errs []error) error {
	var refused, first error
	for i, err := range errs {
		r := &records[from+i]
		switch {
		case err == nil && t.Jobs:
			t.have[r.ID] = struct{}{}
		case err == nil:
		case isRefusal(err) && refused == nil:
			refused = &refusal{from: from, to: from + len(errs), error: fmt.Errorf("topic %q: %w", r.Subject, err)}
		case first == nil:
			first = explain(r, err)
		}
	}
	if refused != nil {
		return refused
	}
	return first
}

// isRefusal reports whether Kafka will not take a record, or what it was written with as one, however often it is tried.
func isRefusal(err error) bool {
	for _, no := range []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTopicException} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

func explain(r *weirrelay.Record, err error) error {
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("there is no topic %q: create it, or change the route: %w", r.Subject, err)
	}
	return fmt.Errorf("topic %q: %w", r.Subject, err)
}

func record(r *weirrelay.Record) *kgo.Record {
	k := &kgo.Record{Topic: r.Subject, Value: r.Payload}
	if k.Value == nil {
		k.Value = []byte{} // without a value, a record deletes what a compacted topic has of its key
	}
	if r.Key != "" {
		k.Key = []byte(r.Key)
	}
	header := func(name, value string) {
		k.Headers = append(k.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	if r.Job == nil {
		header(HeaderChannel, r.Channel)
		header(HeaderPosition, string(r.Position))
	} else {
		header(HeaderJob, strconv.FormatInt(r.Job.ID, 10))
		header(HeaderQueue, r.Job.Queue)
		header(HeaderKind, r.Job.Kind)
		header(HeaderEnqueuedAt, r.Job.EnqueuedAt.UTC().Format(time.RFC3339Nano))
		if r.Job.Key != "" {
			header(HeaderKey, r.Job.Key)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
		header(name, r.Headers[name])
	}
	return k
}

// checkTopic refuses what can't be the name of a topic. Channels may have any name.
func checkTopic(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	if name == "" || len(name) > 249 || name == "." || name == ".." || strings.Trim(name, letters) != "" {
		return fmt.Errorf("%q is no name of a topic, which has 1 to 249 letters, digits, dots, - and _: change the route's template", name)
	}
	return nil
}
